"""The acts of the programs of other frameworks become the rows in their README. Needs the environments of
`make frameworks`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from framework_programs import ENVIRONMENT, HERE, MISSING, REPLIES, ROOT, played, program, row
from reference_rows import placed

import verl_mas
from verl_mas import cli
from verl_mas.cli.new import FRAMEWORKS
from verl_mas.config.hydra.recipe.smollm2.words import SecretWords, secrets
from verl_mas.config.schema import FaultSpec
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow.task import Task
from verl_mas.workflows.program import ReferredProgram

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(MISSING), reason=f"{MISSING} missing: make frameworks")]


@pytest.mark.parametrize("name", REPLIES)
def test_the_acts_of_a_program_are_the_rows_of_the_readme(name):
    session, requests = played(name)
    assert row(name, requests) in (HERE / "programs" / "README.md").read_text()
    acts = [(reply.agent, reply.origin.partition(" ")[0].rstrip(":")) for reply in session.replies]
    assert acts == [(place.agent, place.why) for place in placed(requests)]
    assert session.team_reward == 1.0 or str(session.answer).strip() == "5"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_new_team_passes_the_commands_of_its_readme_and_trains_two_steps(tmp_path, monkeypatch, framework):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", "adders", "--framework", framework, "--tiny-model"]) == 0
    folder = tmp_path / "adders"
    (folder / f".venv-{framework}").symlink_to(ENVIRONMENT)
    written = re.findall(r"^    (.+)$", (folder / "README.md").read_text(), re.MULTILINE)
    commands = [line for line in written if not re.search(r"-m venv|pip install|--endpoint", line)]
    assert [len(written), len(commands)] == [9, 6]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl")}
    for line in commands:
        more = " trainer.total_training_steps=2 trainer.logger=[file]" if "main_ppo" in line else ""
        how = {"cwd": folder, "env": environment, "capture_output": True, "text": True, "timeout": 900}
        done = subprocess.run(line + more, shell=True, check=False, **how)
        assert done.returncode == 0, f"{line}\n{(done.stdout + done.stderr)[-4000:]}"
    steps = [json.loads(line)["data"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [step["session/dropped"] for step in steps if "session/dropped" in step] == [0, 0]


@pytest.mark.parametrize("answer", ["{0}", "It is a {0}.", "{0} {0}", "{1}", "{2} {2}", "{2} {1}", ""])
def test_the_program_of_a_recipe_has_the_prompts_and_rewards_of_the_native_team(answer):
    [secret] = secrets("pair", "test", 1)
    command = [str(ENVIRONMENT / "bin/python"), str(ROOT / "recipes/langgraph_words/team.py")]
    task = Task([{"role": "user", "content": "?"}], ground_truth=secret.answer, extra_info=vars(secret))
    found = []
    for team in (SecretWords(), ReferredProgram(agents=("scout", "judge"), command=command)):
        llm = ScriptedLLM({"scout": "A hint.", "judge": answer.format(secret.answer, *secret.answer.split())})
        session = verl_mas.run(team, task, llm, faults=FaultSpec(retries=0))
        asked = [(request.agent, [dict(message) for message in request.messages]) for request in llm.requests]
        found.append((asked, session.team_reward, session.answer, session.info))
    assert found[0] == found[1]


# A program of each client and framework that `verl-mas new` does not have.
OTHERS = {
    "langgraph_supervisor_team:full_history": 1,
    # With its Responses model, the SDK raises an error for a reply that is cut, like the replies of the tiny model.
    "agents_sdk_team:chat_streamed": 1,
    "ag2_team:team": 2,
    "ag2_classic_team:team": 2,
    "crewai_team:team": 2,
    "openai_client:responses": 1,
    "anthropic_client:team": 1,
    "anthropic_client:streamed": 1,
    "node_client.mjs": 2,
    "curl_client.sh": 2,
    # If a reply cannot be parsed, DSPy asks for it again as JSON.
    "dspy_team:team": 4,
}


@pytest.mark.parametrize(("name", "least_acts"), OTHERS.items())
def test_a_program_trains(trained, name, least_acts):
    """Train a program for two steps. The tiny model calls no tools, so a program may ask fewer agents."""
    made = program(name)
    about = {"function": made.function, "python": made.python} if made.function else {"command": list(made.command)}
    arguments = ",".join(f"{key}:{value!r}" for key, value in {**about, "agents": list(made.agents)}.items())
    steps = trained(arguments.replace(" ", ""))
    assert all(metrics["session/acts/mean"] >= least_acts for metrics in steps)
