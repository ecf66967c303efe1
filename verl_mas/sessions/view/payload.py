"""How data is embedded in the page: gzip, then base64, so that no text of a model is HTML or JavaScript."""

from __future__ import annotations

import base64
import gzip
import json
import math
from typing import TypeVar

T = TypeVar("T")
# Higher levels take twice the time and save a tenth.
LEVEL = 4


def packed(text: str) -> str:
    # A lone surrogate is text that a model can cause, and that UTF-8 does not have.
    return base64.b64encode(gzip.compress(text.encode("utf-8", "backslashreplace"), LEVEL, mtime=0)).decode("ascii")


def unpacked(payload: str) -> str:
    return gzip.decompress(base64.b64decode(payload)).decode("utf-8")


def as_json(value: object) -> str:
    try:
        return _dumped(value)
    except ValueError:
        return _dumped(_finite(value))


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=str)


def _finite(value: T) -> T:
    """The same value with each NaN and infinity as text: JSON has none, and a browser refuses the whole payload."""
    made: object = value
    if isinstance(value, float):
        made = value if math.isfinite(value) else str(value)
    elif isinstance(value, dict):
        made = {str(name): _finite(item) for name, item in value.items()}
    elif isinstance(value, list | tuple):
        made = [_finite(item) for item in value]
    return made  # type: ignore[return-value]
