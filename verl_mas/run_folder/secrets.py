"""Removal of keys and passwords from the files of a run.

The functions remove values of settings whose names mean a secret, all values of `env` mappings, users and queries in
addresses, and strings in the form of a known kind of key. If the name of an environment variable means a secret, its
value is removed from every string.
"""

import os
import re
from collections.abc import Mapping, Sequence

from verl_mas.util.text import bare_address

HIDDEN = "(not written)"
# Pattern for names whose last word means a secret: `api_key`, `HF_TOKEN`, `--password`. It does not match `prompt_key`,
# `max_tokens` or `api_key_env`.
_NAME = re.compile(
    r"(?:^|[._-])(?:(?:api|access|private|secret)[_-]?key|secret|password|passwd|token|credentials?|authorization)$",
    re.IGNORECASE,
)
# Keys of OpenAI and others, the Hugging Face hub, GitHub, Slack and AWS, and the token in an HTTP header.
_FORM = re.compile(
    r"\bsk-[\w-]{16,}|\bhf_\w{16,}|\bgh[po]_\w{20,}|\bxox[abp]-[\w-]{10,}|\bAKIA[0-9A-Z]{16}\b|(?<=Bearer )\S+"
)
VARIABLES = ("env", "env_vars", "headers")  # mappings whose strings are all hidden, whatever their keys are
SHORTEST = 8  # shorter values of environment variables stay, because they may be ordinary words


def is_secret(name: str) -> bool:
    return _NAME.search(name) is not None


def without_secrets(value: object, name: str = "") -> object:
    """Copy plain data without secrets. `name`: name of the setting that has this data as its value."""
    if isinstance(value, Mapping):
        texts = {key for key, own in value.items() if isinstance(own, str) and own}
        hidden = {key for key in texts if is_secret(str(key)) or name in VARIABLES}
        return {str(key): HIDDEN if key in hidden else without_secrets(own, str(key)) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return _arguments(value, name)
    return value if value is None or isinstance(value, int | float) else clean(str(value))


def clean(text: str) -> str:
    """Remove recognisable secrets from a text."""
    for variable, secret in os.environ.items():
        if is_secret(variable) and len(secret) >= SHORTEST:
            text = text.replace(secret, HIDDEN)
    return _FORM.sub(HIDDEN, bare_address(text))


def clean_command(arguments: Sequence[str]) -> list[str]:
    """Remove secrets from the words of a command, such as `name=value` or `--name value`."""
    return [str(one) for one in _arguments(arguments, "")]


def _arguments(values: Sequence[object], name: str) -> list[object]:
    cleaned: list[object] = []
    follows = False  # whether the last word was an option such as `--token`, so that the next word is a secret
    for value in values:
        if not isinstance(value, str):
            cleaned.append(without_secrets(value, name))
            continue
        key, equals, text = value.partition("=")
        hide = equals and text and (is_secret(key) or any(f".{one}." in key for one in VARIABLES))
        cleaned.append(HIDDEN if follows else f"{key}={HIDDEN}" if hide else clean(value))
        follows = value.startswith("-") and not equals and is_secret(value)
    return cleaned
