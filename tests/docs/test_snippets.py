"""Every Python block of a page runs on its own, and verl-mas and verl accept every command."""

import argparse
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from commands import output_of
from page_blocks import ROOT, commands, fenced, indented

import verl_mas
from verl_mas.checks import machine
from verl_mas.checks.run import validate
from verl_mas.cli import main
from verl_mas.cli.demo import demos
from verl_mas.config.compose import compose
from verl_mas.config.schema import TrajectorySpec
from verl_mas.errors import ConfigError
from verl_mas.rollout.trajectories import TrajectoryWriter
from verl_mas.workflow.session import SessionResult

NO_SNIPPETS = ROOT / "docs/write/api.md"  # Its blocks are signatures
DOCS = [page for page in sorted((ROOT / "docs").glob("**/*.md")) if page != NO_SNIPPETS]
PAGES = [ROOT / "README.md", *DOCS, *sorted((ROOT / "recipes").glob("**/README.md"))]
# Arguments that replace the `...` at the end of a command.
OF_POLICY = ["actor.ppo_mini_batch_size=8", "actor.use_dynamic_bsz=true", "rollout.n=4", "rollout.name=vllm"]
REST = ["data.train_batch_size=8", *(f"actor_rollout_ref.{item}" for item in (*OF_POLICY, "model.path=hub/tiny"))]
MAIN = ["python", "-m", "verl.trainer.main_ppo"]

BLOCKS = [block for page in PAGES for block in (*fenced(page), *indented(page))]
# test_tutorial.py runs the blocks of the tutorial, which need the files of earlier blocks.
PYTHON = [block for block in BLOCKS if block.language == "python" and block.page.name != "tutorial.md"]

COMMANDS = [words for block in BLOCKS if block.language == "bash" for words in commands(block)]
# The arguments of `verl-mas x`, the arguments of verl's trainer (`check` takes the same arguments), and overrides that
# are shown alone.
OURS = [words[1:] for words in COMMANDS if words[0] == "verl-mas" and words[1] not in ("check", "plan")]
PLANS = [words[2:] for words in COMMANDS if words[:2] == ["verl-mas", "plan"]]
SCHEMAS = [words[1:] for words in COMMANDS if words[:3] == ["verl-mas", "check", "--schema"]]
CHECKS = [words for words in COMMANDS if words[:2] == ["verl-mas", "check"]]
TRAINERS = [words[3:] for words in COMMANDS if words[:3] == MAIN]
TRAINERS += [words[2:] for words in CHECKS if words[2:] and words[1:] not in SCHEMAS]
ALONE = [["+mas=solver_verifier", *words] for words in COMMANDS if all("=" in word for word in words)]


def each(commands: list[list[str]]):
    """Make a test case of each different command, named by its text."""
    return [pytest.param(shlex.split(text), id=text) for text in dict.fromkeys(map(shlex.join, commands))]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A folder with the files that the pages name, and the sessions of a training run."""
    folder = tmp_path_factory.mktemp("snippets")
    for block in BLOCKS:
        if block.file:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(block.text)
    (folder / "recipes").symlink_to(ROOT / "recipes")
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
    task = verl_mas.Task([{"role": "user", "content": "2 + 2?"}], step=3)
    session = verl_mas.run("solver_verifier", task, verl_mas.ScriptedLLM("<verify>approve</verify> \\boxed{4}"))
    writer = TrajectoryWriter(TrajectorySpec(), folder / "runs/math/shared/trajectories", "first")
    writer.write(SessionResult(session), "finished")
    return folder


@pytest.fixture
def here(workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    monkeypatch.syspath_prepend(workplace)
    yield workplace
    sys.modules.pop("my_team", None)


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_a_python_block_runs_and_prints_what_its_comments_say(block, here, serve, capsys):
    endpoint = serve(lambda body: "<verify>approve</verify> \\boxed{4}")
    code = re.sub(r"http://localhost:\d+/v1", endpoint.url, block.text)
    exec(compile(code, str(block), "exec", dont_inherit=True), {"__name__": "snippet"})
    printed = capsys.readouterr().out.splitlines()
    assert not [line for line in printed if line.startswith("FAIL")], "check_workflow reports a failure"
    comments = re.findall(r"^print\(.*\)  # (.*)$", block.text, re.MULTILINE)
    assert not comments or [line[: len(out)] for line, out in zip(comments, printed, strict=True)] == printed


class Accepted(Exception):
    """Raised in place of running a command."""


@pytest.mark.parametrize("words", each(OURS))
def test_a_command_of_verl_mas_is_accepted(words, monkeypatch):
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(self, *args, **kwargs):
        parse(self, *args, **kwargs)
        raise Accepted

    def stop(overrides, console, *, fresh):
        raise Accepted

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    for demo in demos().values():
        monkeypatch.setattr(f"{demo.module}.run", stop)
    with pytest.raises(Accepted):
        main([word for word in words if word != "&"])


@pytest.mark.parametrize("words", each(SCHEMAS))
def test_a_schema_command_lists_settings(words, here, capsys):
    assert "mas.workflow" in output_of(capsys, *words)


@pytest.mark.parametrize("words", each(PLANS))
def test_a_planned_run_fits(words, here, capsys):
    assert re.search(r"^fits:|  fits\s*$", output_of(capsys, "plan", *words), re.MULTILINE)


@pytest.mark.parametrize("recipe", ["math/shared", "math/separate"])
def test_first_page_has_the_costs_of_the_plan(recipe, here, capsys):
    words = [f"+recipe={recipe}", "--gpus", "4x80", "--assume", "steps=500", "--json"]
    time = json.loads(output_of(capsys, "plan", *words))["time"]
    costs = f"| {time['seconds']:.0f} s | {time['hours']:.1f} h |"
    alone = f"| one agent | 1 | 1x | {time['alone']:.0f} s | {time['alone'] * 500 / 3600:.1f} h |"
    page = (ROOT / "README.md").read_text()
    assert costs in page and (recipe != "math/shared" or alone in page)


@pytest.mark.parametrize("overrides", each(TRAINERS))
def test_a_training_command_composes_and_its_team_is_accepted(overrides, here, monkeypatch):
    monkeypatch.setattr(machine, "available", lambda config: None)
    config = compose([*overrides[:-1], *REST] if overrides[-1:] == ["..."] else overrides)
    if not config.get("mas"):
        return
    try:
        validate(config)
    except ConfigError as error:
        if "is not installed\n  rule: the extra" not in str(error):
            raise
        pytest.skip(f"{error.value}: make test-hubs has it")


@pytest.mark.parametrize("overrides", each(ALONE))
def test_overrides_that_a_page_shows_alone_compose(overrides, here):
    compose(overrides)
