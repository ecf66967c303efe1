"""Environments behind a real server of OpenEnv, which runs in an environment of its own: its packages need mcp<2."""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from played import played
from ray_start import free_port

from verl_mas.environment.worlds import Setup
from verl_mas.environment.worlds.hosts import Pool, Stage
from verl_mas.environment.worlds.hubs.openenv import Refused
from verl_mas.errors import ConfigError, SessionFault
from verl_mas.workflow import Task
from verl_mas.workflows.world import WorldTeam

pytest.importorskip("websockets")
PYTHON = os.environ.get("VERL_MAS_OPENENV_PYTHON") or (sys.executable if find_spec("openenv") else "")
if not PYTHON:
    reason = "OpenEnv is in no environment: python -m venv e && e/bin/pip install openenv==0.10.0, then set "
    pytest.skip(f"{reason}VERL_MAS_OPENENV_PYTHON=e/bin/python", allow_module_level=True)
SERVER = str(Path(__file__).parents[3] / "support" / "openenv_server.py")

ENVIRONMENTS = 8


def started():
    """A server with `ENVIRONMENTS` of each kind."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    process, end = subprocess.Popen([PYTHON, SERVER, port, str(ENVIRONMENTS)]), time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        with suppress(httpx.TransportError):
            httpx.get(f"{address}/guess/health")
            break
        time.sleep(0.1)
    return process, address


@pytest.fixture(scope="module")
def server():
    process, address = started()
    yield address
    process.kill()
    process.wait()


def guessing(server, **options):
    return Setup("Guessing", options={"action": "number", "steps": 1000, "base_url": f"{server}/guess", **options})


def echo(server, **options):
    return Setup("Echo", options={"action": "message", "base_url": f"{server}/echo", **options})


def tools(server, **options):
    shown = {"action": "json", "observation": ["result"]}
    return Setup("Tools", options={**shown, "base_url": f"{server}/tools", **options})


def opened(setup):
    stage = Stage()
    number, view = stage.open("openenv", setup)

    def step(text):
        return stage.step(number, {"player": text})[1]

    return view, step, stage


def guesses(seed):
    """Make more guesses than an episode takes, some of them illegal."""
    rng = random.Random(f"guesses {seed}")
    return [str(rng.randrange(-1, 11)) for _ in range(40)]


def episode(setup):
    view, step, stage = opened(setup)
    actions = iter(guesses(setup.seed))
    while view.observations:
        view = step(next(actions))
    stage.close()
    return [view.rewards["player"], view.illegal["player"]]


def test_rewards_and_refused_actions_are_those_of_openenvs_own_client(server):
    episodes = json.dumps([(seed, guesses(seed)) for seed in range(100)])
    command = [PYTHON, SERVER, f"{server}/guess"]
    theirs = json.loads(subprocess.run(command, check=True, capture_output=True, input=episodes, text=True).stdout)
    assert [episode(replace(guessing(server), seed=seed)) for seed in range(100)] == theirs
    assert len({tuple(each) for each in theirs}) > 5


def test_a_team_plays_it_and_reads_why_an_action_was_refused(server):
    setup = guessing(server, steps=4, prompt="Guess a digit.", observation=["hint"], reset={"guesses": 2})
    replies = ["no tags", "<action>ten</action>", "<action>0</action>", "<action>0</action>"]
    team = WorldTeam(world="openenv/Guessing", options=setup.options)
    team.check()
    assert not team.branches and "does not copy" in team.fixed and team.agents == ("player",)
    row = {"world_seed": 1}  # the number to guess is 2
    session, prompts = played(team, replace(Task.of("play"), extra_info=row), replies)
    form = "Put your answer between <action> and </action>."
    assert prompts[0] == f"Guess a digit.\n\nguess\n\n{form}"
    assert "guess\n\nThe last action was refused: it is not in the form of an action" in prompts[1]
    assert "guess\n\nThe last action was refused: number: Input should be a valid integer" in prompts[2]
    assert prompts[3] == f"Guess a digit.\n\nhigher\n\n{form}"
    assert session.info["illegal_player"] == 2 and session.info["ended"] == 1 and session.info["steps"] == 4
    assert session.team_reward == pytest.approx(-0.2)


async def test_sessions_wait_for_a_free_environment_and_give_it_back(server):
    pool = Pool()

    async def play(seed):
        async with pool.stage("openenv/Guessing", "thread", 60) as stages:
            place = await stages.open(replace(guessing(server), seed=seed))
            while place.view.observations:
                place = await stages.step(place, {"player": "0"})
            return place.view.info["ended"]

    assert await asyncio.gather(*map(play, range(24))) == [1.0] * 24
    all_of_them = [opened(echo(server)) for _ in range(ENVIRONMENTS)]
    assert all_of_them[0][1]("open").board == "0"  # environments of `Guessing`
    with pytest.raises(Refused, match="8/8"):
        opened(echo(server, wait_s=0.2))
    for _, _, stage in all_of_them:
        stage.close()


async def test_a_cancelled_session_gives_its_environment_back(server):
    for _ in range(ENVIRONMENTS):
        async with Pool().stage("openenv/Echo", "thread", 0.5) as stages:
            place = await stages.open(echo(server))
            with pytest.raises(SessionFault, match="took more than"):
                await stages.step(place, {"player": "hang"})
    view, _, stage = opened(echo(server))
    assert view.board == "ready"
    stage.close()


def test_an_action_can_be_a_whole_object_such_as_the_call_of_a_tool(server):
    setup = tools(server, illegal_reward=-0.5)
    view, step, stage = opened(setup)
    call = {"type": "call_tool", "tool_name": "add", "arguments": {"a": 2, "b": 3}}
    assert '"data": 5' in step(json.dumps(call)).board
    for malformed in ("[1]", "[" * 100_000, '{"tool_name": 3}', None):
        view = step(malformed)
    assert view.illegal == {"player": 4} and view.rewards == {"player": -2.0}
    assert "refused" in view.observations["player"].content
    stage.close()


def test_an_observation_of_two_megabytes_arrives_and_an_endless_episode_ends(server):
    _, step, stage = opened(echo(server, steps=2))
    assert len(step("large").observations["player"].content) == 2_000_000
    view = step("four")
    assert view.rewards == {"player": 0.4} and view.info == {"ended": 0.0} and not view.observations
    stage.close()


async def test_a_failing_environment_and_a_server_that_ends_are_faults_of_a_session(server):
    async def failed(address, message):
        async with Pool().stage("openenv/Echo", "thread", 60) as stages:
            place = await stages.open(echo(address))
            await stages.step(place, {"player": message})

    with pytest.raises(SessionFault, match=r"world openenv/Echo: step: Refused: 'no such room' \(EXECUTION_ERROR\)"):
        await failed(server, "raise")
    process, address = started()
    with pytest.raises(SessionFault, match="world openenv/Echo: step: ConnectionClosedError"):
        await failed(address, "die")
    assert process.wait() == 1
    with pytest.raises(SessionFault, match="world openenv/Echo: open: ConnectionRefusedError"):
        await failed(address, "hello")


@pytest.mark.parametrize(
    ("world", "options", "message"),
    [
        ("openenv/Guesing", {}, r"did you mean 'Guessing'"),
        ("openenv/Guessing", {"action": "numbr"}, r"action=numbr(?s:.*)did you mean 'number'"),
        ("openenv/Guessing", {"observation": ["hints"]}, r"observation=hints(?s:.*)did you mean 'hint'"),
        ("openenv/Guessing", {"base_url": "http://127.0.0.1:9"}, r"base_url=http://127.0.0.1:9(?s:.*)start it"),
        ("openenv/Guessing", {"stepz": 1}, "did you mean 'steps'"),
    ],
)
def test_a_server_that_cannot_be_used_is_refused_before_the_run(server, world, options, message):
    team = WorldTeam(world=world, options={**guessing(server).options, **options})
    with pytest.raises(ConfigError, match=message):
        team.check()
