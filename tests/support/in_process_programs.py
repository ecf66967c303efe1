"""An executor for tests, which trusts its programs: it runs them in this process, in microseconds.

`while True` stands for a program that never ends.
"""

import contextlib
import io
import sys
from collections.abc import Sequence
from unittest.mock import patch

from verl_mas.environment.execution.executor import Answer, Call, Execution, Limits, Result, Status

NAME = f"{__name__}:InProcess"


class InProcess:
    """The executor. `ran` lists the program and the input of every run."""

    def __init__(self, settings: Execution):
        self.ran: list[tuple[str, str]] = []

    def check(self) -> None:
        """Do nothing: programs can always be run."""

    async def aclose(self) -> None:
        """Do nothing: there are no processes."""

    async def execute(self, program: str, stdin: str = "", limits: Limits = Limits()) -> Result:
        self.ran.append((program, stdin))
        return self._run(program, stdin, {})

    async def call(self, program: str, calls: Sequence[Call], limits: Limits = Limits()) -> list[Answer]:
        self.ran.append((program, ""))
        names: dict[str, object] = {}
        ran = self._run(program, "", names)
        if not ran.ok:
            return [Answer(error=ran.error)] * len(calls)
        return [self._call(names, call) for call in calls]

    def _run(self, program: str, stdin: str, names: dict[str, object]) -> Result:
        try:
            code = compile(program, "program", "exec")
        except (SyntaxError, ValueError) as error:
            return Result(Status.SYNTAX_ERROR, stderr=repr(error))
        if "while True" in program:
            return Result(Status.TIMED_OUT)
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed), patch.object(sys, "stdin", io.StringIO(stdin)):
                exec(code, names)
        except Exception as error:  # noqa: BLE001  # a program may raise anything
            return Result(Status.ERROR, printed.getvalue(), f"{type(error).__name__}: {error}")
        return Result(Status.OK, printed.getvalue(), exit_code=0)

    def _call(self, names: dict[str, object], call: Call) -> Answer:
        try:
            return Answer(names[call.function](*call.args, **call.kwargs))  # type: ignore[operator]
        except Exception as error:  # noqa: BLE001  # as above
            return Answer(error=f"{type(error).__name__}: {error}")
