"""A program is served and evaluated as every team: from its export, by the processes that ran it in training."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import urllib_team
import yaml

from verl_mas.serve.runtime import Runtime
from verl_mas.workflow import Task
from verl_mas.workflow.team_file import FORMAT, TEAM_FILE

AGENTS = ("writer", "copier")


@pytest.fixture
def export(serve, tmp_path) -> Path:
    endpoint = serve(lambda body: f"{len(body['messages'])} messages")
    remote = {"base_url": endpoint.url, "model": "m"}
    args = {"function": f"{os.path.realpath(urllib_team.HERE)}:pair", "agents": list(AGENTS)}
    team = {
        "format": FORMAT,
        "workflow": {"name": "program", "args": args},
        "agents": {name: {"policy": "main"} for name in AGENTS},
        "policies": {"main": {"remote": remote}},
    }
    (tmp_path / TEAM_FILE).write_text(yaml.safe_dump(team))
    return tmp_path


def test_an_exported_program_acts(export):
    async def played():
        runtime = Runtime(export, trust=True)
        task = Task([{"role": "user", "content": "q"}], ground_truth="1 messages")
        ended = await runtime.session(task)
        await runtime.aclose()
        return ended.result.session

    session = asyncio.run(played())
    acts = [(reply.agent, reply.text) for reply in session.replies]
    assert acts == [("writer", "1 messages"), ("writer", "3 messages"), ("copier", "1 messages")]
    assert session.answer == "1 messages"
