"""Worlds of the hubs train a random tiny model for three steps, on one policy and on two."""

import json
from pathlib import Path

import pytest

from verl_mas.cli.data import main
from verl_mas.testing.tiny_model import byte_tokenizer, tiny_model

# Their libraries are in the environment of `make test-hubs` alone.
pytest.importorskip("textarena")
pytestmark = pytest.mark.e2e
ZOO = Path(__file__).parents[3] / "support" / "toy_zoo.py"
# The last field is the agent that has a policy of its own, if there is one.
WORLDS = [
    ("open_spiel/kuhn_poker", {}, "player_1"),
    ("open_spiel/goofspiel", {"num_cards": 4}, "player_1"),
    ("textarena/IteratedPrisonersDilemma-v0", {"points": "scores"}, "player_1"),
    ("textarena/SimpleNegotiation-v0-short", {"points": "inventory_value.change"}, "player_1"),
    ("pettingzoo/classic/rps_v2", {"max_cycles": 3}, "player_1"),
    (f"pettingzoo/{ZOO}:Signals", {}, "runner"),
    ("reasoning_gym/chain_sum", {"max_terms": 2, "max_digits": 1}, None),
]
SMALL = (
    "+mas=world mas.workflow.args.text=compact algorithm.adv_estimator=agent_grpo data.train_batch_size=4 "
    "data.val_max_samples=4 data.max_prompt_length=4000 data.max_response_length=4 mas.updates_per_step=1 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=4 actor_rollout_ref.rollout.n=2 "
    "reward.custom_reward_function.path=null trainer.total_training_steps=3 trainer.test_freq=3"
)


@pytest.mark.parametrize(("world", "options", "second"), [*WORLDS, *((*row[:2], None) for row in WORLDS[:-1])])
def test_a_world_trains_on_one_policy_and_on_two(main_ppo, tmp_path, world, options, second):
    reader = tiny_model(tmp_path / "reader", tokenizer=byte_tokenizer(max_length=4096))
    main(["world", world, "--train-rows", "12", "--test-rows", "4", "--out", str(tmp_path)])
    given = ",".join(f"{name}:{json.dumps(value)}" for name, value in options.items())
    two = ["mas.policies={main:{},other:{}}", f"mas.agents={{{second}:{{policy:other}}}}"]
    run = (
        f"{SMALL} data.train_files={tmp_path}/train.parquet data.val_files={tmp_path}/test.parquet "
        f"actor_rollout_ref.model.path={reader} mas.workflow.args.world='{world}' mas.workflow.args.options={{{given}}}"
    )
    done = main_ppo(tmp_path / "run", *run.split(), *(two if second else ()))
    assert done.exit_code == 0 and sorted(done.steps)[-3:] == [1, 2, 3], done.output[-6000:]
    assert all(metrics["session/dropped"] == 0 for metrics in done.steps.values() if "session/dropped" in metrics)
    assert done.steps[3]["session/acts/mean"] >= 1
    # In some step, the policy that acts has a gradient.
    norms = [(n, v) for metrics in done.steps.values() for n, v in metrics.items() if n.endswith("actor/grad_norm")]
    assert norms and {name for name, _ in norms} == {name for name, value in norms if value > 0}, norms
