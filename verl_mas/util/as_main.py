"""Runs code as `__main__` of this process, and ends the process as the interpreter would. Standard library only."""

import atexit
import builtins
import contextlib
import gc
import io
import os
import sys
import threading
import traceback
import types
from collections.abc import Sequence


def run(code: types.CodeType, file: str, argv: Sequence[str], raises: type[BaseException] | tuple[()] = ()) -> int:
    """Run the code; return the exit code. Exceptions of the kind `raises` are raised to the caller."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=file, __builtins__=builtins)
    sys.modules["__main__"] = main
    sys.argv[:] = argv
    try:
        exec(code, main.__dict__)
    except SystemExit as leaving:
        return _exit_code(leaving.code)
    except raises:
        raise
    except BaseException as error:  # noqa: BLE001  boundary: exceptions of the code are reported, not raised
        _report(error)
        return 1
    return 0


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code) & 0xFF if abs(code) < 2**63 else 255
    sys.stderr.write(f"{code}\n")
    return 1


def _report(error: BaseException) -> None:
    frames = error.__traceback__.tb_next if error.__traceback__ else None
    if sys.excepthook is sys.__excepthook__:
        traceback.print_exception(type(error), error, frames)
    else:
        sys.excepthook(type(error), error, frames)


def finish(code: int) -> None:
    """End the process. An exception while the process ends changes the exit code only if the code was 0."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
        atexit._run_exitfuncs()  # noqa: SLF001
    except BaseException:  # noqa: BLE001  boundary: the program's exit functions may raise anything
        code = code or 1
    with contextlib.suppress(BaseException):
        _flush_files()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001  boundary: the program may have closed or replaced the streams
        code = code or 120
    os._exit(code)


def _flush_files() -> None:
    """Write the buffers of files that the program left open, and free its objects."""
    # `gc.get_objects` does not list the objects that `gc.freeze` froze before this process was forked.
    for each in gc.get_objects():
        with contextlib.suppress(BaseException):
            if issubclass(type(each), io.IOBase):  # isinstance trusts `__class__`, which a program can fake
                each.flush()
    del sys.modules["__main__"]
    gc.collect()
