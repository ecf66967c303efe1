"""Programs as workflows: their processes, their outcomes, and their ends."""

import asyncio
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import psutil
import pytest
import urllib_team
from urllib_team import ask

import verl_mas
from verl_mas.config.schema import FaultSpec
from verl_mas.config.values import load_dataclass
from verl_mas.errors import ConfigError, FaultKind, SessionFault, WorkflowError
from verl_mas.gateway import commands, host
from verl_mas.gateway.program import FunctionProgram
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflows.program import ReferredProgram

AGENTS = ("writer", "copier")
FILE = os.path.realpath(urllib_team.HERE)
HERE = os.path.dirname(FILE)
REPLIES = {"writer": ["w1", "w2"], "copier": "c"}


def referred(function: str, **more: object) -> ReferredProgram:
    return ReferredProgram(agents=AGENTS, function=f"{FILE}:{function}", **more)


def commanded(function: str) -> ReferredProgram:
    return ReferredProgram(agents=AGENTS, command=[sys.executable, FILE, function])


def played(program, replies=REPLIES, **faults):
    settings = {"retries": 0, "session_timeout_s": 300.0, **faults}
    return verl_mas.run(program, "q", ScriptedLLM(replies), faults=FaultSpec(**settings))


def failed(program, **how) -> SessionFault:
    with pytest.raises(SessionFault) as fault:
        played(program, **how)
    return fault.value


def of(function, **more) -> FunctionProgram:
    return verl_mas.program(agents=AGENTS)(function)(**more)


@pytest.mark.parametrize(
    "program",
    [referred("pair"), referred("apart"), commanded("pair"), of(urllib_team.pair)],
    ids=["host", "async", "command", "function"],
)
def test_a_program_is_a_session_of_its_agents(program):
    session = played(program)
    assert [[reply.text for reply in row.replies] for row in session.rows()] == [["w1", "w2"], ["c"]]
    assert session.answer == "c"
    assert [reply.origin for reply in session.replies] == [
        "new: the first request of writer",
        "continued after 2 messages",
        "new: the first request of copier",
    ]
    assert "continued after 2 messages" in str(session)


def shell(*parts: str, **more: object) -> ReferredProgram:
    """Make a shell program that asks its agent once. The output of a part that begins with `outcome` is its outcome."""
    ask = f"{sys.executable} -c 'import sys; sys.path.insert(0, sys.argv[1])\nfrom urllib_team import *\nsay()' {HERE}"
    texts = [f"{{ {part[7:]} }} >&3" if part.startswith("outcome") else part for part in parts]
    text = "\n".join([f"{ask} &&", *texts, "true"])
    return ReferredProgram(agents=AGENTS, command=["bash", "-c", text], **more)


def python(*parts: str, **more: object) -> ReferredProgram:
    """Make the same program in Python. It runs each part in a shell."""
    return ReferredProgram(agents=AGENTS, command=[sys.executable, f"{HERE}/shell_team.py", *parts], **more)


KINDS = {"command": shell, "forked": python, "interpreter": partial(python, import_once=False)}
TRUE_OUTCOME = """outcome echo '{"reward": 0.25}';"""
# Code that a model could write, and that the program runs.
FORGERIES = {
    "inherited": """bash -c 'echo "{\\"reward\\": 1}" >&3'\n""",
    "found": f"""{sys.executable} -c '
import os, socket
for pid in filter(str.isdigit, os.listdir("/proc")):
    for fd in os.listdir(f"/proc/{{pid}}/fd"):
        try:
            if os.readlink(f"/proc/{{pid}}/fd/{{fd}}").startswith("socket"):
                os.write(os.open(f"/proc/{{pid}}/fd/{{fd}}", os.O_WRONLY), b"{{\\"reward\\": 1}}")
        except OSError: pass
'\n""",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("forgery", FORGERIES)
@pytest.mark.parametrize("first", [True, False])
def test_a_child_process_of_a_command_does_not_write_its_outcome(kind, forgery, first):
    parts = [FORGERIES[forgery], TRUE_OUTCOME]
    assert played(KINDS[kind](*(parts if first else reversed(parts)))).team_reward == 0.25


@pytest.mark.parametrize("kind", KINDS)
def test_an_outcome_that_only_a_child_has_written_is_refused_with_a_fix(kind):
    assert "start it by `exec`" in failed(KINDS[kind](FORGERIES["inherited"])).cause


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_sees_no_other_process_and_no_key_of_the_run(monkeypatch, kind):
    monkeypatch.setenv("REMOTE_KEY", "secret")
    monkeypatch.setenv("TOOL_KEY", "given")
    text = """outcome variables=$(cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep ^OPENAI_API_KEY | sort -u)
keys=$(echo "$variables" | grep -vc preload) # which the fork server has in place of a key
echo "{\\"reward\\": $keys, \\"answer\\": \\"$REMOTE_KEY $TOOL_KEY\\"}";"""
    with ThreadPoolExecutor() as both:
        sessions = list(both.map(lambda _: played(KINDS[kind](text, pass_env=["TOOL_KEY"])), range(2)))
    assert [(session.team_reward, session.answer) for session in sessions] == [(1.0, " given")] * 2
    with pytest.raises(WorkflowError, match="NO_SUCH_KEY, which is not set"):
        KINDS[kind](text, pass_env=["NO_SUCH_KEY"]).check()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("yes | head -c 100000 >&2; sleep 30", "printed more than 50,000 bytes"),
        ("outcome printf '{%2000000s' x;", "more than 1,048,576 bytes"),
    ],
)
def test_the_output_and_the_outcome_of_a_command_have_limits(monkeypatch, kind, text, says):
    monkeypatch.setattr(commands, "MOST_PRINTED", 50_000)
    assert says in failed(KINDS[kind](text)).cause


@pytest.mark.parametrize("kind", KINDS)
def test_a_child_that_leaves_the_group_of_a_command_ends_with_it(kind):
    assert played(KINDS[kind]("setsid sleep 977 >&2 &\n", TRUE_OUTCOME)).team_reward == 0.25
    assert gone(lambda process: process.info["cmdline"] == ["sleep", "977"])


NEVER_ASKS = """
import verl_mas
from verl_mas.config.schema import FaultSpec
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflows.program import ReferredProgram
program = ReferredProgram(agents=["a"], command=["sh", "-c", "trap '' TERM; sleep 978; true"], start_s=2.0)
verl_mas.run(program, "q", ScriptedLLM("x"), faults=FaultSpec(retries=0))
"""


def test_a_command_that_never_asks_ends_at_the_limit_and_with_the_process_that_has_started_it():
    ended = subprocess.run([sys.executable, "-c", NEVER_ASKS], capture_output=True, text=True, timeout=60)
    assert "the program sent no request in 2 s" in ended.stderr
    assert gone(lambda process: process.info["cmdline"] == ["sleep", "978"], seconds=3.0)


def test_the_output_of_functions_is_cut_before_it_fills_the_disk():
    assert played(referred("chatty"), session_timeout_s=20.0).answer == "cut"


def gone(matches, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        alive = [p for p in psutil.process_iter(["cmdline", "status"]) if p.info["cmdline"] and matches(p)]
        if not alive:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("function", ["forks", "forks_in_the_loop", "forks_and_returns"])
def test_a_program_that_returns_in_two_processes_has_one_outcome_and_its_host_stays(function):
    process = host.host_of(sys.executable)
    for _ in range(2):
        assert played(referred(function)).answer == "c"
    assert host.host_of(sys.executable) is process


def test_a_program_that_blocks_its_loop_is_ended_with_its_host(monkeypatch):
    monkeypatch.setattr(host, "END_S", 0.1)
    process = host.host_of(sys.executable)
    assert failed(referred("blocking"), session_timeout_s=4.0).kind is FaultKind.SESSION_TIMEOUT
    assert gone(lambda found: found.pid == process.pid and found.info["status"] != "zombie")
    assert played(referred("pair")).answer == "c"


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (referred("leaves"), "SystemExit(3)"),
        (referred("dies"), "last words"),
        (referred("killed"), "ended with status -9"),
        (referred("babbles"), "ended with status"),
        (commanded("killed"), "ended with status -9"),
        (referred("no_such"), "no attribute 'no_such'"),
        (referred("verbose"), "the most are 1,048,576"),
        (commanded("leaves"), "ended with status 3"),
        (ReferredProgram(agents=AGENTS, command=["no_such_program"]), "No such file"),
        (
            ReferredProgram(agents=AGENTS, command=["sh", "-c", "echo '[]' >&$VERL_MAS_OUTCOME_FD"]),
            "one JSON object",
        ),
    ],
)
def test_a_program_that_fails_fails_its_session_with_the_cause(program, says, capfd):
    fault = failed(program)
    assert fault.kind is FaultKind.WORKFLOW and says in fault.cause
    assert "last words" not in "".join(capfd.readouterr())


def test_a_file_that_cannot_be_loaded_fails_each_session_in_the_same_way(tmp_path):
    (tmp_path / "team.py").write_text("def team(task, gateway):\n    return 1\n1 / 0")
    program = ReferredProgram(agents=AGENTS, function=f"{tmp_path}/team.py:team")
    causes = [failed(program).cause for _ in range(2)]
    assert "ZeroDivisionError" in causes[0] and causes[0] == causes[1]


def test_a_program_that_ignores_an_error_has_not_succeeded():
    def careless(task, gateway):
        try:
            ask(gateway, "editor", task.messages)
        except OSError:
            return 1.0

    fault = failed(of(careless))
    assert "no agent 'editor'" in fault.cause and "copier, writer" in fault.cause

    def greedy(task, gateway):
        for _ in range(3):
            try:
                ask(gateway, "writer", task.messages)
            except OSError:
                continue
        return 1.0

    assert failed(of(greedy), max_acts=2).kind is FaultKind.LIMIT
    assert played(of(greedy, tolerate=["limit"]), max_acts=2).team_reward == 1.0


def test_connections_that_a_program_leaves_open_end_with_its_session():
    before = psutil.Process().num_fds()
    for _ in range(3):
        assert played(referred("leaks")).answer == "c"
    assert psutil.Process().num_fds() <= before + 5  # descriptors of the host


def test_the_key_of_a_session_is_in_no_fault():
    def shows(task, gateway):
        raise ValueError(f"{gateway} {gateway.api_key}")

    assert "***" in failed(of(shows)).cause


def test_an_async_program_that_blocks_does_not_block_the_server():
    async def blocks(task, gateway):
        return ask(gateway, "writer", task.messages)["content"]

    assert played(of(blocks)).answer == "w1"


def test_a_session_that_is_cancelled_cancels_its_program():
    ended = []

    async def waits(task, gateway):
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    assert failed(of(waits, start_s=0.2)).kind is FaultKind.SESSION_TIMEOUT
    deadline = time.monotonic() + 5
    while not ended and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended


@pytest.mark.parametrize(
    ("returned", "reward", "answer"),
    [
        (1, 1.0, None),
        (np.float32(0.5), 0.5, None),
        ("42", None, "42"),
        (None, None, "w1"),
        ({"reward": 0.5, "info": {"acc": 1.0}}, 0.5, None),
        (verl_mas.Outcome(answer="42", reward=0.25), 0.25, "42"),
        ([1], "returned a list", None),
        ({"score": 1}, "known: answer, info, reward", None),
        ({"reward": "high"}, "finite number", None),
    ],
)
def test_the_return_value_of_a_program_is_its_outcome_or_is_refused(returned, reward, answer):
    def returns(task, gateway):
        ask(gateway, "writer", task.messages)
        return returned

    if isinstance(reward, str):
        assert reward in failed(of(returns)).cause
        return
    outcome = played(of(returns)).outcome
    assert (outcome.reward, outcome.text) == (reward, answer)


def test_the_time_limit_of_a_session_starts_with_its_first_request():
    def imports(task, gateway):
        time.sleep(1.0)
        return ask(gateway, "writer", task.messages)["content"]

    assert played(of(imports), session_timeout_s=0.7).answer == "w1"
    assert "sent no request in 0.2 s: it asks another address" in failed(of(imports, start_s=0.2)).cause


def test_a_command_gets_the_addresses_of_every_client_that_gets_a_key():
    openai, others = "OPENAI_BASE_URL OPENAI_API_BASE OPENAI_API_BASE_URL", "ANTHROPIC_BASE_URL AZURE_OPENAI_ENDPOINT"
    text = f"""for name in {openai}; do [ "${{!name}}" = $ANTHROPIC_BASE_URL/v1 ] || exit 1; done
for name in {others}; do [ "${{!name}}/v1" = $OPENAI_BASE_URL ] || exit 1; done
echo '{{"reward": 1}}' >&3"""
    assert played(shell(text)).team_reward == 1.0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({}, "exactly one of them is set"),
        ({"command": ["sh"], "function": "a.py:b"}, "exactly one of them is set"),
        ({"command": ["no_such_program"]}, "has that program"),
        ({"function": "no_such.py:team"}, "FILE.py:NAME"),
        ({"function": FILE}, "FILE.py:NAME"),
        ({"function": f"{FILE}:pair", "python": "/no/python"}, "has that program"),
        ({"function": f"{FILE}:no_such"}, "no attribute 'no_such'"),
        ({"models": {"gpt": "editor"}}, "models.gpt=editor"),
        ({"typed": {"gpt": 2}}, "typed.gpt"),
    ],
)
def test_a_program_that_cannot_run_is_refused_before_the_run(args, says):
    with pytest.raises(ConfigError, match=says):
        load_dataclass(ReferredProgram, args, "mas.workflow.args").check()
