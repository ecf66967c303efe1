"""verl's own trainer with our rollout: sessions and groups that fail."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
HERE = Path(__file__).parent
MANAGER = "+actor_rollout_ref.rollout.agent.agent_loop_manager_class=verl_mas.rollout.manager.MasAgentLoopManager"


@pytest.fixture(scope="module")
def train(main_ppo, model, tmp_path_factory):
    """Run one step and one validation, and return the rows that the trainer saw, by partition."""

    def run(*overrides: str) -> dict[str, list[dict]]:
        folder = tmp_path_factory.mktemp("stock")
        rows = folder / "rows"
        rows.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
            patch.setenv("ROWS_DIR", str(rows))
            done = main_ppo(
                folder,
                f"actor_rollout_ref.model.path={model}",
                *("data.train_batch_size=4", "data.val_max_samples=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4"),
                *("actor_rollout_ref.rollout.n=2", "actor_rollout_ref.rollout.top_k=1"),
                "actor_rollout_ref.rollout.val_kwargs.top_k=1",
                *("data.shuffle=False", "trainer.total_training_steps=1", "trainer.test_freq=-1"),
                f"trainer.v1.sampler.custom_sampler.path={HERE / 'row_recorder.py'}",
                "trainer.v1.sampler.custom_sampler.name=RowRecorder",
                "trainer.val_before_train=true",
                *overrides,
            )
        assert done.exit_code == 0, done.output[-8000:]
        return {path.stem.split("-")[0]: pickle.loads(path.read_bytes()) for path in rows.iterdir()}

    return run


@pytest.fixture(scope="module")
def model(letters, tmp_path_factory) -> Path:
    """A random model repeats one token for every prompt; with larger weights the prompt matters."""
    import torch
    from transformers import AutoModelForCausalLM

    path = tmp_path_factory.mktemp("model") / "model"
    shutil.copytree(letters / "model", path)
    model = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" not in name:
                weight.mul_(20)
    model.save_pretrained(path)
    return path


def by_place(rows: list[dict]) -> dict[tuple, dict]:
    """Map rows by dataset index, session and act, because uids differ from run to run."""
    return {(row["fields"]["index"], *map(int, row["key"].rsplit("_", 2)[1:])): row for row in rows}


TROUBLED = """
from verl_mas.workflow import Outcome, Workflow

class Troubled(Workflow):
    agents = ("planner", "doer")

    async def run(self, task, team):
        plans = await team.planner.branch(task.messages, k=3)
        for number, plan in enumerate(plans):
            plan.reward = float(number)
        talk = team.doer.conversation()
        await talk.act(str(team.commit(plans)))
        if task.session == 1 or task.extra_info["index"] in (2, 258):
            raise RuntimeError("trouble")
        await talk.act("and again")
        return Outcome(reward=0.5)
"""


def test_a_step_survives_sessions_and_groups_that_fail(train, tmp_path):
    (tmp_path / "troubled.py").write_text(TROUBLED)
    rows = train(
        MANAGER,
        "actor_rollout_ref.rollout.agent.default_agent_loop=mas",
        "actor_rollout_ref.rollout.prompt_length=512",
        "actor_rollout_ref.rollout.response_length=128",
        "+mas.agents.planner.sampling.max_tokens=8",
        f"+mas.workflow.path={tmp_path}/troubled.py",
        "+mas.workflow.name=Troubled",
        "+mas.faults.retries=0",
        "+mas.agents.doer.sampling.temperature=0.7",
        "+mas.agents.doer.sampling.max_tokens=8",
    )
    train_rows = by_place(rows["train"])
    assert {place[:2] for place in train_rows} == {(0, 0), (1, 0), (3, 0)}
    for index in (0, 1, 3):
        session = [train_rows[place] for place in sorted(train_rows) if place[:2] == (index, 0)]
        tags = [(r["tags"]["agent"], r["tags"]["turn"], r["tags"]["branch"], r["tags"]["committed"]) for r in session]
        assert tags == [
            ("planner", 0, 0, False), ("planner", 0, 1, False), ("planner", 0, 2, True), ("doer", 0, 0, True),
            ("doer", 1, 0, True),
        ][: len(session)]  # fmt: skip
        assert [sum(r["fields"]["rm_scores"]) for r in session] == [0.5, 1.5, 2.5, 0.5, 0.5][: len(session)]
        assert [r["fields"]["temperature"] for r in session] == pytest.approx([1.0, 1.0, 1.0, 0.7, 0.7][: len(session)])
        assert len({r["tags"]["observation"] for r in session[:3]}) == 1
        mask = session[3]["fields"]["response_mask"]
        # A reply that max_tokens has cut ends the row.
        assert len(session) == 5 or (mask[0] == mask[-1] == 1 and 0 in mask), "the messages in between are masked"
    # In validation, whose rows begin with 256, the failed one counts as zero, not left out; there is one candidate.
    scores = {place[0] - 256: sum(row["fields"]["rm_scores"]) for place, row in by_place(rows["val"]).items()}
    assert scores == {0: 0.5, 1: 0.5, 2: 0.0, 3: 0.5}


def test_the_worker_can_be_the_first_module_a_process_imports(warm_python):
    """Ray does so; the import reaches verl's trainers, and from there the plugin."""
    code = "import verl_mas.rollout.worker; from verl.trainer.ppo.v1 import get_trainer_cls; get_trainer_cls('mas')"
    subprocess.run([warm_python, "-c", code], check=True, timeout=120)
