"""Policies behind an endpoint: addresses, limits and keys. The message must not repeat a password or a key."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from wrong_configs.case import Case

URL = "http://127.0.0.1:8000/v1"
ADDRESS = "base_url is an address like http://host:8000/v1"
SECRET = "the variable's name"


def remote(setting: str = f"base_url={URL}", says: str = "", **more: object) -> Case:
    """The verifier on a remote policy, with one setting of the endpoint."""
    name, _, value = setting.partition("=")
    settings = {"base_url": URL, "model": "m", name: value}
    listed = ", ".join(f"{key}: {text}" for key, text in settings.items())
    arguments = (f"++mas.policies={{main: {{}}, far: {{remote: {{{listed}}}}}}}", "++mas.agents.verifier.policy=far")
    return Case(arguments, says, **more)


def variable(name: str, value: str) -> Callable[[Path], object]:
    return lambda folder: os.environ.update({name: value})


CASES = (
    remote("base_url=localhost", ADDRESS),
    remote("base_url='127.0.0.1:8000/v1'", ADDRESS),
    remote("base_url='ftp://127.0.0.1/v1'", ADDRESS),
    remote("base_url='http://127.0.0.1:99999/v1'", ADDRESS),
    remote("base_url='http://127.0.0.1:0/v1'", ADDRESS),
    remote("base_url='http://'", ADDRESS),
    remote("base_url='http:///v1'", ADDRESS),
    remote("base_url='http://a b/v1'", ADDRESS),
    remote("base_url='http://[::1/v1'", ADDRESS),
    remote("base_url='http://127.0.0.1/v1?key=1'", ADDRESS),
    remote("base_url='http://127.0.0.1/v1/chat/completions'", "without /chat/completions"),
    remote("base_url='http://user:PASSWORD@127.0.0.1/v1'", "a name or password in base_url"),
    remote("base_url=''", "base_url is text, not empty"),
    remote("base_url=5", "base_url is text, not empty"),
    remote("base_url=null", "has no base_url"),
    remote("base_url='http://api.example.com/v1', api_key_env: PATH", "not encrypted", warned=True),
    remote("model=''", "model is text, not empty"),
    remote("timeout=-5", "timeout is a finite number, above 0"),
    remote("timeout=0", "timeout is a finite number, above 0"),
    remote("timeout=nan", "timeout is a finite number, above 0"),
    remote("timeout=true", "timeout is a finite number, above 0"),
    remote("concurrency=0", "concurrency is a whole number, at least 1"),
    remote("api_key_env=NO_SUCH_KEY", "it is not set"),
    remote("api_key_env=EMPTY_KEY", "it is empty", prepare=variable("EMPTY_KEY", "")),
    remote("api_key_env=TORN_KEY", "printable", prepare=variable("TORN_KEY", "sk-x\r")),
    remote("api_key_env=WIDE_KEY", "printable", prepare=variable("WIDE_KEY", "sk-ключ")),
    remote("api_key_env=sk-proj-1234", "the name of an environment variable"),
    remote("api_key_env=''", "the name of an environment variable"),
    remote("api_key=sk-proj-1234", "did you mean 'api_key_env'?"),
    remote("overrides=1", "is not a setting"),
)
