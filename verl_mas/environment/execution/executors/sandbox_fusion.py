"""Runs programs in a service that is compatible with SandboxFusion: `POST <url>/run_code`.

The service decides how well programs are contained. SandboxFusion's default configuration isolates nothing.
"""

import json
import secrets
from collections.abc import Mapping

import httpx

from verl_mas.environment.execution.executor import SETTING, Execution, Limits, Result, Status, register_executor
from verl_mas.environment.execution.wrapper import Wrapped, status_of, wrapped
from verl_mas.environment.service import ServiceDown, ServiceFailed, beginning, posted, repeated
from verl_mas.errors import ConfigError, ExecutorFailed
from verl_mas.util.bodies import TooLong
from verl_mas.util.loops import PerLoop, waited_for
from verl_mas.util.text import encodable

PATH = "/run_code"
# SandboxFusion sends at most 1 MB of each stream. In JSON, each byte may become six bytes.
MAX_BODY = 16 * 2**20


# RETRIES is the maximum number of repetitions of a request. BACKOFF_S is the wait before the first repetition, and
# doubles with each further repetition. MARGIN_S is the time that a request may take in addition to its program.
RETRIES, BACKOFF_S, MARGIN_S = 4, 0.5, 30.0


@register_executor("sandbox_fusion")
class SandboxFusion(Wrapped):
    """The client of one service. A request that fails permanently raises ExecutorFailed."""

    def __init__(self, settings: Execution):
        super().__init__(settings)
        self._url = _address(settings.url)
        # The client sets no limits: slots limit the connections, and `posted` limits the time of the whole request.
        self._http = PerLoop(lambda: httpx.AsyncClient(trust_env=False, timeout=None, limits=httpx.Limits()))

    def check(self) -> None:
        """Check that the service can run a program that imports the packages, reads a random word and prints it."""
        word = secrets.token_hex(8)
        program = "".join(f"import {package}\n" for package in self.packages) + "print(input())"

        async def probe() -> Result:
            try:
                return await self._asked(program, word, self.limits)
            finally:
                await self.aclose()

        try:
            result = waited_for(probe())
        except ServiceFailed as error:
            raise self._refused(f"does not serve: {error}") from error
        if not result.ok:
            imported = f"imports {', '.join(self.packages)}" if self.packages else "imports nothing"
            raise self._refused(f"cannot run a program that {imported}: {result.error}")
        if result.last_line != word:
            raise self._refused(f"does not run programs: {result.stdout!r:.80} instead of {word}")

    async def aclose(self) -> None:
        client = self._http.discard()
        if client is not None:
            await client.aclose()

    async def _run(self, program: str, stdin: str, limits: Limits) -> Result:
        try:
            return await repeated(lambda: self._asked(program, stdin, limits), RETRIES, BACKOFF_S)
        except ServiceFailed as error:
            raise ExecutorFailed(f"{self._url}: {error}") from error

    async def _asked(self, program: str, stdin: str, limits: Limits) -> Result:
        """Send one request. A failure of the program is in the result; a failure of the service is raised."""
        question = {
            "code": wrapped(program, limits),
            "stdin": encodable(stdin),
            "language": "python",
            "compile_timeout": limits.seconds,
            "run_timeout": limits.seconds,
            "memory_limit_MB": limits.memory_mb,
            "files": {},
            "fetch_files": [],
        }
        try:
            body = await posted(self._http.here(), self._url, question, limits.seconds + MARGIN_S, MAX_BODY)
        except TooLong:  # a service without a limit of its own sends all that a program printed
            return Result(Status.TOO_MUCH_OUTPUT)
        return _result(body, limits)

    def _refused(self, problem: str) -> ConfigError:
        rule = "a service that runs programs is ready before training starts"
        fix = f"start it, and set ++{SETTING}.url to its address"
        return ConfigError(f"the sandbox service at {self._url} {problem}", rule=rule, fix=fix)


def _address(url: str | None) -> str:
    if url is None or not url.startswith(("http://", "https://")):
        rule = "the executor sandbox_fusion sends programs to a service"
        fix = f"set ++{SETTING}.url=http://HOST:8080, or '++{SETTING}.url=${{reward.sandbox_fusion.url}}'"
        raise ConfigError(f"{SETTING}.url={url}", rule=rule, fix=fix)
    address = url.rstrip("/")
    return address if address.endswith(PATH) else address + PATH


def _result(body: bytes, limits: Limits) -> Result:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ServiceFailed(f"not JSON: {beginning(body)!r}") from error
    match answer:
        case {"status": "SandboxError", **rest}:
            raise ServiceDown(f"SandboxError: {rest.get('message')!r:.200}")
        case {"status": "Success" | "Failed" as status, "run_result": {"status": str(ended), **run}}:
            return _ended(str(status), ended, {str(name): value for name, value in run.items()}, limits)
    raise ServiceFailed(f"not an answer of SandboxFusion: {beginning(body)!r}")


def _ended(status: str, ended: str, run: Mapping[str, object], limits: Limits) -> Result:
    seconds, exit_code = run.get("execution_time") or 0.0, run.get("return_code")
    stdout, stderr = run.get("stdout") or "", run.get("stderr") or ""
    if not isinstance(stdout, str) or not isinstance(stderr, str) or not isinstance(seconds, int | float):
        raise ServiceFailed(f"a run_result of other types: {run!r:.200}")
    if ended == "TimeLimitExceeded":
        outcome, exit_code = Status.TIMED_OUT, None
    elif ended != "Finished" or type(exit_code) is not int or (exit_code == 0) != (status == "Success"):
        raise ServiceFailed(f"status {status}, run_result.status {ended}, return_code {exit_code!r:.20}")
    else:
        outcome = status_of(exit_code, stderr, seconds, limits)
    streams = [encodable(text).encode() for text in (stdout, stderr)]
    if max(map(len, streams)) > limits.output_bytes:
        outcome = Status.TOO_MUCH_OUTPUT
    stdout, stderr = (stream[: limits.output_bytes].decode(errors="replace") for stream in streams)
    return Result(outcome, stdout, stderr, float(seconds), exit_code=exit_code)
