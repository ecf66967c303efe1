"""The client of a sandbox service. A failure of the program is a result; a failure of the service is raised."""

import asyncio
import json
import time
import traceback
from contextlib import aclosing

import pytest
from ray_start import free_port
from sandbox_service import Response, answer, sandbox_service

from verl_mas.environment.execution.executor import Execution, Limits, Status
from verl_mas.environment.execution.executors import sandbox_fusion
from verl_mas.environment.execution.executors.sandbox_fusion import MAX_BODY, SandboxFusion
from verl_mas.errors import ConfigError, ExecutorFailed

LIMITS = Limits(cpu_s=3, wall_s=30, output_bytes=1_000)
BRIEF = Limits(wall_s=0.2)
FINISHED = {"status": "Finished", "return_code": 0, "stdout": "1\n", "stderr": "", "execution_time": 0.1}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    for name, value in {"RETRIES": 2, "BACKOFF_S": 0.01, "MARGIN_S": 0.8}.items():
        monkeypatch.setattr(sandbox_fusion, name, value)


def client(url: str, **settings: object) -> SandboxFusion:
    return SandboxFusion(Execution("sandbox_fusion", url=url, **settings))


async def execute(url: str, program: str = "print(1)", stdin: str = "", limits: Limits = LIMITS):
    async with aclosing(client(url)) as executor:
        return await executor.execute(program, stdin, limits)


def says(status: int, body: object):
    return lambda question: (status, body if isinstance(body, bytes) else json.dumps(body).encode())


def works(question: object) -> Response:
    return answer("Success", **FINISHED)


def slow(seconds: float):
    def late(question):
        time.sleep(seconds)
        return works(question)

    return late


@pytest.fixture(scope="module")
def real():
    with sandbox_service() as service:
        yield service


async def test_input_that_utf_8_does_not_have_is_escaped(real):
    assert (await execute(real.url, "print(input())", "é \ud800")).stdout == "é \\ud800\n"


async def test_the_limits_are_part_of_the_request():
    # Missing streams are empty.
    silent = FINISHED | {"stdout": None, "stderr": None, "execution_time": None}
    with sandbox_service(says(200, {"status": "Success", "run_result": silent})) as service:
        assert (await execute(service.url + "/run_code/", limits=Limits(cpu_s=1.5, memory_mb=77))).stdout == ""
    [question] = service.questions
    assert question["language"] == "python" and question["memory_limit_MB"] == 77
    assert question["run_timeout"] == 6.5 and "'RLIMIT_CPU': (2, 3)" in question["code"]


@pytest.mark.parametrize(
    "failure",
    [says(429, b"slow down"), says(200, {"status": "SandboxError", "message": "no pod"}), slow(1.5)],
)
async def test_a_temporary_failure_is_tried_again_and_then_raised(failure):
    with sandbox_service(works, failure, failure) as service:
        assert (await execute(service.url, limits=BRIEF)).stdout == "1\n"
        assert len(service.questions) == 3
        service.answer = failure
        with pytest.raises(
            ExecutorFailed, match=rf"{service.url}/run_code: (HTTP|SandboxError|no whole response in 1 s)"
        ):
            await execute(service.url, limits=BRIEF)
        assert len(service.questions) == 6


@pytest.mark.parametrize(
    "nonsense",
    [
        says(404, b"not found"),
        says(200, b"<html>welcome</html>"),
        says(200, {"status": "Success"}),
        says(200, {"status": "Success", "run_result": FINISHED | {"status": "Error"}}),
        says(200, {"status": "Success", "run_result": FINISHED | {"return_code": 1}}),
        says(200, {"status": "Success", "run_result": FINISHED | {"return_code": False}}),
        says(200, {"status": "Success", "run_result": FINISHED | {"stdout": ["1"]}}),
    ],
)
async def test_nonsense_is_raised_at_once_and_refused_before_a_run(nonsense):
    with sandbox_service(nonsense) as service:
        with pytest.raises(ExecutorFailed, match=f"{service.url}/run_code: "):
            await execute(service.url)
        assert len(service.questions) == 1
        with pytest.raises(ConfigError, match=f"{service.url}/run_code does not serve"):
            client(service.url).check()


async def test_a_flood_that_the_service_sends_whole_is_too_much_output_and_refused_before_a_run():
    with sandbox_service(says(200, b" " * (MAX_BODY + 1))) as service:
        assert (await execute(service.url)).status is Status.TOO_MUCH_OUTPUT
        with pytest.raises(ConfigError, match="too much output"):
            client(service.url).check()


async def test_a_service_that_is_down_is_named_without_its_password():
    nowhere = f"http://127.0.0.1:{free_port()}"
    private = nowhere.replace("://", "://me:hunter2@") + "?key=hunter2"
    for failing in (execute(private), asyncio.to_thread(client(private).check)):
        with pytest.raises((ExecutorFailed, ConfigError), match=f"{nowhere}.*: ConnectError") as raised:
            await failing
        assert "hunter2" not in "".join(traceback.format_exception(raised.value))
    for url in (None, "localhost:8080", "ftp://me:hunter2@host"):
        with pytest.raises(ConfigError, match=r"execution\.url=") as raised:
            client(url)
        assert "hunter2" not in str(raised.value)


async def test_a_service_that_runs_programs_and_has_the_packages_is_ready(real):
    client(real.url, packages=["json"]).check()
    with pytest.raises(ConfigError, match="imports json, numpie: error: ModuleNotFoundError"):
        client(real.url, packages=["json", "numpie"]).check()
    with sandbox_service(works) as service, pytest.raises(ConfigError, match="does not run programs: '1"):
        client(service.url).check()


@pytest.mark.nightly
async def test_a_program_may_run_for_longer_than_an_http_client_waits_by_default():
    with sandbox_service(slow(5.3)) as service:
        assert (await execute(service.url, limits=Limits(wall_s=7))).ok
