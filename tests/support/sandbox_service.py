"""A service like SandboxFusion for tests: it runs programs as subprocesses, or answers what a test wants."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from endpoint import serving

Question = dict[str, object]
# HTTP status and body of a response.
Response = tuple[int, bytes]
Answer = Callable[[Question], Response]
CAPTURED = 2**20  # bytes of each stream that SandboxFusion sends


def answer(status: str, /, **run: object) -> Response:
    """Make SandboxFusion's response about a program."""
    body = {"status": status, "message": "", "compile_result": None, "run_result": run, "files": {}}
    return 200, json.dumps(body).encode()


def runs(question: Question) -> Response:
    """Run the program by a shell, as SandboxFusion does."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
        program.write(str(question["code"]))
        program.flush()
        try:
            done = subprocess.run(
                ["/bin/bash", "-c", f"{sys.executable} -I -S {program.name}"],
                input=str(question["stdin"]).encode(),
                capture_output=True,
                timeout=float(str(question["run_timeout"])),
                check=False,
                env={},
            )
        except subprocess.TimeoutExpired:
            return answer("Failed", status="TimeLimitExceeded", return_code=None, stdout="", stderr="")
    stdout, stderr = (stream[:CAPTURED].decode(errors="replace") for stream in (done.stdout, done.stderr))
    return answer(
        "Failed" if done.returncode else "Success",
        status="Finished",
        return_code=done.returncode,
        stdout=stdout,
        stderr=stderr,
        execution_time=0.01,
    )


@dataclass
class Service:
    """The service. `plan` has the answers to the next requests; `answer` answers the requests after them."""

    answer: Answer = runs
    plan: list[Answer] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    url: str = ""
    at_once: int = 0
    most_at_once: int = 0
    lock: Lock = field(default_factory=Lock)

    def asked(self, question: Question) -> Response:
        with self.lock:
            self.questions.append(question)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            answering = self.plan.pop(0) if self.plan else self.answer
        try:
            return answering(question)
        finally:
            with self.lock:
                self.at_once -= 1


@contextmanager
def sandbox_service(answer: Answer = runs, *plan: Answer) -> Iterator[Service]:
    service = Service(answer, list(plan))
    with serving(service.asked, "/run_code") as endpoint:
        service.url = endpoint.url.removesuffix("/v1")
        yield service
