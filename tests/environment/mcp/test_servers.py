"""MCP servers start, answer, fail and end. They leave no process, however the process that uses them ends."""

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from verl_mas.config.mcp import McpSpec
from verl_mas.environment.mcp import servers as mcp
from verl_mas.environment.mcp.servers import McpError, McpServers
from verl_mas.errors import ConfigError, EngineLost
from verl_mas.workflow.tools import CallContext

pytest.importorskip("mcp")
SERVER = str(Path(__file__).parents[2] / "support" / "mcp_server.py")


@pytest.fixture
def start(tmp_path):
    """Start a server of `tests/support/mcp_server.py`, and return its tools."""
    with ExitStack() as running:
        yield lambda kind, **settings: running.enter_context(McpServers({kind: spec(kind, **settings)}, tmp_path)).tools


def spec(kind, **settings):
    return McpSpec(command=[sys.executable, "-I", "-S", SERVER, kind], **settings)


def call(tool, text="hello", seconds=5.0):
    """Call a tool and return the result. After `seconds`, cancel the call and raise TimeoutError."""

    async def within():
        return await asyncio.wait_for(tool.call({"text": text}, CallContext()), seconds)

    return asyncio.run(within())


def alive(process):
    """Whether a process runs. A zombie does not count."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    return False


def before(seconds, done):
    """Whether `done` returns true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not (ended := done()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return ended


def all_gone(processes, seconds=4.0):
    return before(seconds, lambda: not any(map(alive, processes)))


@pytest.mark.parametrize("kind", ["good", "slow", "chatty"])
def test_a_tool_has_the_names_of_its_server_and_its_own_and_answers_in_every_event_loop(start, kind):
    (tool,) = start(kind)
    function = tool.schema["function"]
    assert tool.name == function["name"] == f"{kind}_echo" and function["description"] == "Repeat a text."
    assert function["parameters"]["required"] == ["text"]
    assert [call(tool, "a"), call(tool, "b")] == ["a", "b"]
    # A name has the characters and the length that endpoints accept.
    assert mcp.tool_name("files", "read.all/now") == "files_read_all_now" and len(mcp.tool_name("a", "x" * 99)) == 64


def test_a_server_gets_the_variables_that_are_named_and_no_others_and_has_a_log(start, monkeypatch, tmp_path):
    monkeypatch.setenv("TRAINER_KEY", "secret")
    monkeypatch.setenv("SERVER_KEY", "for the server")
    (tool,) = start("good", env={"MODE": "fast"}, pass_env=["SERVER_KEY"])
    environment = json.loads(call(tool, "environment"))
    assert environment["SERVER_KEY"] == "for the server" and environment["MODE"] == "fast"
    assert environment.keys() <= {*"SERVER_KEY MODE HOME LOGNAME PATH SHELL TERM USER LC_CTYPE".split()}
    assert "ready" in (tmp_path / f"good-{os.getpid()}.log").read_text()


@pytest.mark.parametrize(
    ("kind", "text", "error", "says"),
    [
        ("error", "hello", McpError, "hello"),
        ("nonsense", "hello", McpError, "validation error"),
        ("good", "wait", asyncio.TimeoutError, ""),
        ("good", "binary", asyncio.TimeoutError, ""),
    ],
)
def test_the_server_stays_after_a_call_that_fails_or_is_cancelled(start, kind, text, error, says, caplog):
    (tool,) = start(kind)
    for _ in range(3):
        with pytest.raises(error, match=says):
            call(tool, text, seconds=5.0 if says else 0.1)
    assert "is lost" not in caplog.text and (kind != "good" or call(tool) == "hello")


def test_a_result_of_10_mb_arrives_and_what_is_not_text_is_named(start):
    (big,), (image,) = start("big"), start("image")
    assert len(call(big)) == 10_000_000
    assert call(image) == "[image image/png]"


def test_a_server_that_dies_is_started_again(start, caplog, tmp_path):
    (tool,) = start("good")
    for _ in range(3):
        with pytest.raises(McpError, match="Connection closed"):
            call(tool, "die")
        assert call(tool) == "hello"
    assert "MCP server good is lost" in caplog.text
    # The client may notice the end before the log has it.
    (log,) = tmp_path.glob("good-*.log")
    assert before(5, lambda: "exit code 3" in log.read_text()), log.read_text()


@pytest.mark.parametrize("kind", ["dies", "hangs"])
def test_a_server_that_is_lost_twice_without_an_answer_ends_the_run(start, monkeypatch, caplog, kind):
    monkeypatch.setattr(mcp, "PROBE_S", 0.3)
    (tool,) = start(kind)
    with pytest.raises(EngineLost, match="lost 2 times"):  # noqa: PT012  # any of these calls may raise it
        for _ in range(50):
            with suppress(asyncio.TimeoutError, McpError):
                call(tool, seconds=0.3)
    assert caplog.text.count("is lost") == 2


def test_a_start_continues_for_others_when_the_call_that_began_it_is_cancelled(start, caplog):
    (tool,) = start("slow")
    with pytest.raises(McpError):
        call(tool, "die")
    with pytest.raises(asyncio.TimeoutError):
        call(tool, seconds=0.1)
    assert call(tool) == "hello" and caplog.text.count("is lost") == 1


async def test_calls_that_run_when_the_server_dies_count_as_one_loss(start, caplog):
    (tool,) = start("good")
    running = [asyncio.ensure_future(tool.call({"text": "wait"}, CallContext())) for _ in range(8)]
    await tool.call({"text": "after them"}, CallContext())
    running.append(asyncio.ensure_future(tool.call({"text": "die"}, CallContext())))
    assert {type(error) for error in await asyncio.gather(*running, return_exceptions=True)} == {McpError}
    assert caplog.text.count("is lost") == 1 and await tool.call({"text": "hello"}, CallContext()) == "hello"


def test_a_program_or_variable_that_is_not_there_is_refused_and_logs_without_a_folder_are_deleted(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with McpServers({"good": spec("good")}):
        assert list(tmp_path.glob("verl-mas-mcp-*/good-*.log"))
    with pytest.raises(ConfigError, match="no-such-program"):
        McpServers({"x": McpSpec(command=["no-such-program"])}).start()
    with pytest.raises(ConfigError, match="NO_SUCH_VARIABLE"):
        McpServers({"x": spec("good", pass_env=["NO_SUCH_VARIABLE"])}).start()
    gc.collect()
    assert not list(tmp_path.iterdir())
    for settings in ({}, {"command": ["x"], "url": "http://x"}):
        with pytest.raises(ConfigError, match="either"):
            McpSpec(**settings)


def test_stopping_ends_a_server_that_ignores_it_and_every_process_that_it_started(tmp_path):
    servers = McpServers({"deaf": spec("deaf")}, tmp_path)
    with servers:
        processes = json.loads(call(servers.tools[0], "pids"))
        assert len(processes) == 4 and all(map(alive, processes))
    assert all_gone(processes, seconds=0.5)
    with pytest.raises(McpError, match="stopped"):
        call(servers.tools[0])


USER = """
import asyncio, sys, time
from verl_mas.config.mcp import McpSpec
from verl_mas.environment.mcp.servers import McpServers
from verl_mas.workflow.tools import CallContext

servers = McpServers({"deaf": McpSpec(command=[sys.executable, "-I", "-S", sys.argv[1], "deaf"])}, sys.argv[2])
tool = servers.start().tools[0]
print(asyncio.run(tool.call({"text": "pids"}, CallContext())), flush=True)
if sys.argv[3] == "waits":
    time.sleep(60)
"""


@pytest.mark.parametrize("how", ["waits", "ends"])
def test_no_process_is_left_when_the_process_is_killed_or_just_ends(tmp_path, how):
    user = subprocess.Popen([sys.executable, "-c", USER, SERVER, tmp_path, how], stdout=subprocess.PIPE, text=True)
    processes = json.loads(user.stdout.readline())
    assert len(processes) == 4
    if how == "waits":
        assert all(map(alive, processes))
        user.send_signal(signal.SIGKILL)
    user.wait(20)
    user.stdout.close()
    assert all_gone(processes)


@pytest.fixture
def url():
    """Start a server of the official package over HTTP, and return its URL."""
    code = (
        "from mcp.server.mcpserver import MCPServer\nserver = MCPServer('adder')\n"
        "@server.tool()\ndef add(a: int, b: int) -> int:\n    'Add.'\n    return a + b\n"
        "import socket, uvicorn\nsock = socket.socket(); sock.bind(('127.0.0.1', 0)); sock.listen()\n"
        "print(sock.getsockname()[1], flush=True)\n"
        "uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level='error')).run([sock])"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_server_at_a_url_answers_and_one_that_is_down_is_refused(url):
    with McpServers({"math": McpSpec(url=url)}) as servers:
        (tool,) = servers.tools
        assert tool.name == "math_add"
        assert asyncio.run(tool.call({"a": 2, "b": 40}, CallContext())) == "42"
    with pytest.raises(ConfigError, match=r"mas\.mcp\.math\.url=http"):
        McpServers({"math": McpSpec(url="http://127.0.0.1:9/mcp")}).start()
