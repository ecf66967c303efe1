"""Text that every encoder accepts."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def encodable(text: str) -> str:
    r"""The text with each lone surrogate as the six characters `\udXXX`.

    Python's JSON decoder makes lone surrogates, so a model can cause them; UTF-8, and with it every file, has none.
    """
    return text.encode("utf-8", "backslashreplace").decode()


def all_encodable(value: T) -> T:
    """The same value with every text in it, names included, made encodable."""
    made: object = value
    if isinstance(value, str):
        made = encodable(value)
    elif isinstance(value, dict):
        made = {all_encodable(name): all_encodable(item) for name, item in value.items()}
    elif type(value) in (list, tuple):
        made = type(value)(map(all_encodable, value))  # type: ignore[call-arg,call-overload]
    return made  # type: ignore[return-value]
