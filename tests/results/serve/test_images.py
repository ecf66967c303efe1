"""A trained team with one vision policy, in an evaluation and behind a server."""

import asyncio
import base64
import io
import json
from pathlib import Path

import httpx
import pandas
import pytest
from commands import output_of
from PIL import Image

from verl_mas.config.schema import AgentSpec, FaultSpec
from verl_mas.results.serve.app import TeamServer
from verl_mas.results.serve.endpoints import EngineSettings
from verl_mas.results.serve.runtime import Runtime
from verl_mas.testing.tiny_model import tiny_model
from verl_mas.testing.tiny_vision_model import tiny_vision_model
from verl_mas.workflow.team_file import FORMAT, TeamFile, TeamPolicy, TeamWorkflow

TEAMS = Path(__file__).parents[2] / "trainer" / "teams.py"


def png(colour):
    file = io.BytesIO()
    Image.new("RGB", (48, 32), colour).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder as `verl-mas export` writes it."""
    out = tmp_path_factory.mktemp("team")
    models = {"main": tiny_vision_model(out / "main", initial=0.6), "words": tiny_model(out / "words", hidden=32)}
    lengths = {"dtype": "float32", "prompt_length": 128, "response_length": 12}
    policies = {name: TeamPolicy(model=str(path), folder=name, **lengths) for name, path in models.items()}
    owners = {"seer": "main", "reader": "main", "copier": "words"}
    agents = {agent: AgentSpec(policy=policy) for agent, policy in owners.items()}
    TeamFile(FORMAT, TeamWorkflow("Seer", path=str(TEAMS)), agents, policies, faults=FaultSpec(retries=3)).write(out)
    return out


async def asked(folder, *bodies):
    """Send the requests at the same time, and return the replies."""
    runtime = Runtime(folder, EngineSettings(threads=1), trust=True)
    through = httpx.ASGITransport(TeamServer(runtime, name="team").app())
    async with httpx.AsyncClient(transport=through, base_url="http://127.0.0.1") as client:
        posts = [client.post("/v1/chat/completions", json=body, timeout=60) for body in bodies]
        return await asyncio.gather(*posts)


def body(model, url):
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "Which?"}]
    return {"model": model, "temperature": 0, "seed": 3, "messages": [{"role": "user", "content": parts}]}


def data_url(content):
    return "data:image/png;base64," + base64.b64encode(content).decode()


async def test_a_served_policy_that_sees_takes_data_urls_and_one_of_text_says_that_it_reads_none(folder):
    red, blue, again, team, text, web, broken = await asked(
        folder,
        body("team/main", data_url(png("red"))),
        body("team/main", data_url(png("blue"))),
        body("team/main", data_url(png("red"))),
        body("team", data_url(png("red"))),
        body("team/words", data_url(png("red"))),
        body("team/main", "https://example.org/red.png"),
        body("team/main", data_url(b"no image")),
    )
    replies = [reply.json()["choices"][0]["message"]["content"] for reply in (red, blue, again)]
    assert replies[0] == replies[2] != replies[1], "a reply depends on the picture"
    assert team.status_code == 200
    for refused, says in ((text, "reads text"), (web, "nothing is downloaded"), (broken, "Pillow reads it")):
        assert refused.status_code == 400 and says in refused.json()["error"]["message"]


def test_an_evaluation_shows_the_pictures_of_its_rows(folder, tmp_path, capsys):
    data, truth = tmp_path / "test.parquet", {"ground_truth": "4"}
    row = {
        "prompt": [{"role": "user", "content": "<image>Which?"}],
        "data_source": "openai/gsm8k",
        "reward_model": truth,
    }
    pandas.DataFrame([{**row, "images": [{"bytes": png(colour)}]} for colour in ("red", "blue")]).to_parquet(data)
    command = ["eval", folder, "--data", data, "--n", "1", "--json", "--trust-remote-code", "--engine", "threads=1"]
    found = json.loads(output_of(capsys, *command, "--out", tmp_path / "out.jsonl"))["teams"][0]
    assert found["sessions"] == 2 and found["failed"] == 0 and found["agents"]["seer"]["acts_per_session"] == 1
    pandas.DataFrame([{**row, "images": []}, {**row, "images": [{"bytes": png("red")}] * 2}]).to_parquet(data)
    assert "1 times <image>, 2 images" in output_of(capsys, *command, "--force", code=1)
