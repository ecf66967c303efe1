"""A few real steps of laptop variants, by the commands of their pages."""

import pytest

from verl_mas import read_sessions
from verl_mas.cli import data, retriever

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

# This warm-up is too short to learn anything.
BRIEF = ["--warm-up", "steps=20", "batch=16", "lessons=500"]
SMALL = [
    "data.train_batch_size=4",
    "data.val_max_samples=8",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.val_kwargs.n=1",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "trainer.total_training_steps=2",
    "trainer.test_freq=2",
    "trainer.save_freq=-1",
]


def of(folder, *overrides):
    """The variant's data and model, instead of those of the letters task."""
    return [
        *SMALL,
        f"data.train_files={folder}/train.parquet",
        f"data.val_files={folder}/test.parquet",
        f"actor_rollout_ref.model.path={folder}/model",
        *overrides,
    ]


def steps(main_ppo, folder, recipe, own, present):
    """Run two steps, in which these metrics are present and no session is lost. Return the metrics of step 1."""
    done = main_ppo(folder / "run", *own, recipe=recipe)
    assert done.exit_code == 0, done.output[-6000:]
    assert present <= done.steps[1].keys() | done.steps[2].keys()
    assert [done.steps[step]["session/dropped"] for step in (1, 2)] == [0, 0]
    assert done.steps[2]["val-session/count"] == 8 and done.steps[2]["val-session/dropped"] == 0
    return done.steps[1]


def test_math_takes_real_steps(main_ppo, tmp_path):
    made = tmp_path / "arithmetic"
    assert data.main(["arithmetic", "--out", str(made), "--noise", "0.25", *BRIEF]) == 0
    present = {"agent/solver/advantage/std", "agent/verifier/malformed"}
    present |= {"val-core/arithmetic/pass@1", "val-aux/arithmetic/unchecked/mean@1"}
    # A solver, and a verifier of its proposal.
    assert steps(main_ppo, tmp_path, "math/laptop", of(made), present)["session/acts/mean"] >= 2


def test_search_takes_real_steps(main_ppo, tmp_path):
    made = tmp_path / "invented"
    size = ["--entities", "200", "--hops", "2", "--train-rows", "100", "--test-rows", "20"]
    assert data.main(["invented", "--out", str(made), *size, "--noise", "0.2", *BRIEF]) == 0
    retriever.main(["build", "--corpus", str(made / "corpus.jsonl"), "--index", str(made / "index")])
    own = of(made, f"mas.workflow.args.retriever={made}/index")
    present = {"agent/verifier/malformed", "session/searches/mean", "val-core/invented_2_hops/pass@1"}
    assert steps(main_ppo, tmp_path, "search/laptop", own, present)["agent/searcher/acts"] > 0


def test_code_takes_real_steps_with_programs_that_are_really_run(main_ppo, tmp_path):
    made = tmp_path / "programs"
    size = ["--train-rows", "60", "--test-rows", "20"]
    assert data.main(["programs", "--out", str(made), *size, "--noise", "0.2", *BRIEF]) == 0
    own = of(made, "mas.branch.k=2", "actor_rollout_ref.rollout.n=1")
    present = {"session/compiled/mean", "session/tests_right/mean", "val-core/programs/pass@1"}
    first = steps(main_ppo, tmp_path, "code/laptop", own, present)
    # Two turns of a coder and a tester with two candidates each: nothing that the model writes is right yet.
    assert (first["agent/coder/acts"], first["agent/tester/acts"]) == (16, 16)


def test_candidates_are_played_on_in_real_steps(main_ppo, tmp_path):
    made = tmp_path / "boards"
    size = ["--size", "size=4", "slip=0.2", "--train-rows", "16", "--test-rows", "8", "--args", "moves=1"]
    assert data.main(["puzzle", "plan_path", "--out", str(made), *size, "--noise", "0.6", *BRIEF]) == 0
    two_tasks = ["data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2"]
    four_each = ["mas.branch.commit=uniform", "mas.branch.k=4", "actor_rollout_ref.rollout.n=1"]
    played_on = "mas.workflow.args={text: compact, moves: 1, max_turns: 3, reward: sparse, continuations: 1}"
    team = ("+mas=planner_executor", "+recipe=plan_path/laptop")
    done = main_ppo(tmp_path / "run", *team, *of(made, played_on, *four_each, *two_tasks), recipe=None)
    assert done.exit_code == 0, done.output[-6000:]
    first = done.steps[1]
    assert first["session/dropped"] == 0 and first["session/probe_acts"] > first["session/acts/mean"] * 2
    assert 0 < first["session/probe_tokens"] < first["session/generated_tokens"]
    # Candidates of one prompt: every group has four rows, and probes are no rows.
    assert first["agent/planner/group/one_prompt"] == first["agent/executor/group/one_prompt"] == 1
    assert first["agent/planner/acts"] + first["agent/executor/acts"] == first["session/acts/mean"] * 2
    assert "val-session/probe_acts" not in done.steps[2]
    folder = tmp_path / "run" / "checkpoints" / "trajectories"
    acts = [act for session in read_sessions(folder) for act in session["acts"]]
    probes = [act for act in acts if act["probe"]]
    assert probes and all(act["key"] is None for act in probes) and all(act["key"] for act in acts if not act["probe"])
