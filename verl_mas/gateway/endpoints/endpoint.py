"""Checks the address and the key of an endpoint, and keeps the key out of messages."""

import ipaddress
import json
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import SplitResult, quote, urlsplit
from urllib.request import getproxies

from verl_mas.errors import ConfigError, ConfigWarning, FaultKind, SessionFault
from verl_mas.util.text import bare_address

PATH = "/chat/completions"
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Messages repeat the name of an unset variable only if it matches this pattern. Any other text may be the key itself.
CONVENTIONAL = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")
KEY = re.compile(r"[\x21-\x7e]+")
PROXIES = "http", "https", "all"
ADDRESS = "base_url is an address like http://host:8000/v1, to which the client adds /chat/completions"


def check_endpoint(base_url: str, api_key_env: str | None, path: str) -> Iterator[ConfigError | ConfigWarning]:
    """Check the settings of an endpoint. Messages name the settings with the prefix `path`, and contain no password or
    key."""
    yield from _check_address(base_url, f"{path}base_url")
    yield from _check_proxies()
    if api_key_env is not None:
        yield from check_key(api_key_env, f"{path}api_key_env")
        if (parts := _parts(base_url)) and parts.scheme == "http" and _public(parts.hostname or ""):
            reason = "the connection is not encrypted, so everyone between here and the endpoint can read the key"
            yield ConfigWarning(f"{path}base_url={base_url} with api_key_env", reason, "use https")


def _check_address(base_url: str, setting: str) -> Iterator[ConfigError]:
    parts = _parts(base_url)
    if parts is None:
        # An address that cannot be parsed may contain a password if it has an @, and a key if it has a query.
        secret = "@" in base_url or "?" in base_url
        setting_text = f"{setting}, which is not repeated here" if secret else f"{setting}={base_url!r}"
        yield ConfigError(setting_text, rule=ADDRESS, fix=f"set {setting}=http://<host>:<port>/v1")
    elif "@" in parts.netloc:
        value = f"{setting} has a user name or password, which is not repeated here"
        rule = "a name or password in base_url is shown in logs and process lists, and replaces the key"
        fix = f"set {setting}={bare_address(base_url)}, and name the environment variable of the key in api_key_env"
        yield ConfigError(value, rule=rule, fix=fix)
    elif base_url.rstrip("/").endswith(PATH):
        fix = f"set {setting}={base_url.rstrip('/').removesuffix(PATH)}"
        yield ConfigError(f"{setting}={base_url}", rule=f"base_url is the address without {PATH}", fix=fix)


def _check_proxies() -> Iterator[ConfigError]:
    """Check the proxies of the environment, which httpx reads."""
    import httpx

    try:
        httpx.Client().close()
        for name, address in getproxies().items():
            # Reading a port that is out of range raises an error.
            _ = urlsplit(f"//{address.rpartition('//')[2]}").port if name in PROXIES else None
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        value = "http_proxy, https_proxy, all_proxy or no_proxy, which may have a password and are not repeated here"
        rule = "requests to an endpoint go through the proxies of the environment"
        fix = "export http_proxy=http://HOST:PORT and a no_proxy without brackets, or unset them"
        fix = "pip install socksio, for SOCKS proxies" if isinstance(error, ImportError) else fix
        yield ConfigError(value, rule=rule, fix=fix)


def _parts(base_url: str) -> SplitResult | None:
    """Parse the HTTP address of an endpoint. Returns None if no path can be appended to it."""
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        (parts.hostname or "").encode("idna")
    except ValueError:  # a port out of range, half an IPv6 address, or a label of a host name that is empty or too long
        return None
    plain = base_url.isprintable() and " " not in base_url
    return parts if usable and plain and not parts.query and not parts.fragment else None


def _public(host: str) -> bool:
    """Whether a connection to the host may leave the local network."""
    try:
        return not ipaddress.ip_address(host).is_private
    except ValueError:
        return "." in host


def check_key(variable: str, setting: str) -> Iterator[ConfigError]:
    """Check the environment variable that should hold a key."""
    if not VARIABLE.fullmatch(variable):
        text = f"{setting} is not the name of an environment variable; it is not repeated here, as it may be a key"
        rule = "the key is read from an environment variable, so that no file, log or process list has it"
        yield ConfigError(text, rule=rule, fix=f"export MY_KEY=<the key>, and set {setting}=MY_KEY")
        return
    setting_text = f"{setting}={variable}" if variable in os.environ or CONVENTIONAL.fullmatch(variable) else setting
    value = os.environ.get(variable)
    if value is None or not value:
        state = "not set" if value is None else "empty"
        rule = f"the key is read from that environment variable, and it is {state}"
        yield ConfigError(setting_text, rule=rule, fix=_set(variable if setting_text != setting else "<the variable>"))
    elif not KEY.fullmatch(value):
        place = next(i for i, char in enumerate(value, 1) if not KEY.fullmatch(char))
        text = f"{setting_text}: character {place} of {len(value)} of the key is a space, a line break or not ASCII"
        fix = f"export {variable} again, such as {variable}=$(tr -d '\\r\\n ' < key.txt)"
        rule = "a key is printable ASCII without spaces, as it is part of an HTTP header"
        yield ConfigError(text, rule=rule, fix=fix)


def _set(variable: str) -> str:
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        return (
            f"export {variable}=<the key> on every node before `ray start`; or, where the "
            f"run's log may show it, add ++ray_kwargs.ray_init.runtime_env.env_vars.{variable}=<the key>"
        )
    return f"export {variable}=<the key>, or remove api_key_env for an endpoint without a key"


def hidden(text: str, key: str | None) -> str:
    """Replace the key in a text by ***, including the forms in which JSON and URLs write it."""
    for form in {key, json.dumps(key)[1:-1], quote(key, safe="")} if key else ():
        text = text.replace(form, "***")
    return text


@contextmanager
def without_key(key: str | None) -> Iterator[None]:
    """Keep the key out of exceptions that are raised in this context. If the text or the causes of an exception contain
    the key, a SessionFault without the key is raised instead."""
    try:
        yield
    except Exception as error:
        written = "".join(traceback.format_exception(error))
        if hidden(written, key) == written:
            raise
        cause = error.cause if isinstance(error, SessionFault) else f"{type(error).__name__}: {error}"
        kind = error.kind if isinstance(error, SessionFault) else FaultKind.REFUSED
        # Raise without the original exception as the cause, because a traceback would print the key with it.
        raise SessionFault(kind, hidden(cause, key)) from None
