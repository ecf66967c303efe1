"""The traceback of a session's failure as text, for logs and session records."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException, extract_tb

from verl_mas import errors
from verl_mas.errors import SessionFault
from verl_mas.util.text import encodable

# A record or a log line should hold the user's frames and the message, not a page of a library's frames.
LIMIT = 4000
_HERE = Path(__file__).parent
# Frames that every session has. Without them the first frame is the user's.
MACHINERY = (
    str(Path(asyncio.__file__).parent),
    contextlib.__file__,
    errors.__file__,
    *(str(_HERE / name) for name in ("run.py", "session.py", "team.py")),
)


def traceback_of(fault: SessionFault, limit: int = LIMIT) -> str:
    """The user's frames first, then those of the client or library, then the exception; the middle is cut out."""
    origin = fault.__cause__ or fault
    frames = list(extract_tb(fault.__traceback__))
    if origin is not fault:
        frames += extract_tb(origin.__traceback__)
    whole = TracebackException.from_exception(origin)
    whole.stack = StackSummary.from_list([frame for frame in frames if not _is_machinery(frame)] or frames)
    text = encodable("".join(whole.format()).rstrip())
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters ...\n{text[-half:]}"


def _is_machinery(frame: FrameSummary) -> bool:
    return frame.filename.startswith(MACHINERY)
