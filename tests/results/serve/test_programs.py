"""A program is served from its export like every team, by the processes that ran it in training."""

import os

import urllib_team
import yaml

import verl_mas
from verl_mas.workflow.team_file import FORMAT, TEAM_FILE

AGENTS = ("writer", "copier")


def test_an_exported_program_acts(serve, tmp_path):
    endpoint = serve(lambda body: f"{len(body['messages'])} messages")
    args = {"function": f"{os.path.realpath(urllib_team.HERE)}:pair", "agents": list(AGENTS)}
    file = {
        "format": FORMAT,
        "workflow": {"name": "program", "args": args},
        "agents": {name: {"policy": "main"} for name in AGENTS},
        "policies": {"main": {"remote": {"base_url": endpoint.url, "model": "m"}}},
    }
    (tmp_path / TEAM_FILE).write_text(yaml.safe_dump(file))
    with verl_mas.load(tmp_path, trust_remote_code=True) as team:
        session = team.run(verl_mas.Task([{"role": "user", "content": "q"}], ground_truth="1 messages"))
    acts = [(reply.agent, reply.text) for reply in session.replies]
    assert acts == [("writer", "1 messages"), ("writer", "3 messages"), ("copier", "1 messages")]
    assert session.answer == "1 messages"
