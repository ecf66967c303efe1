"""Two worlds of each hub with several players train a random tiny model, on one policy and on two."""

from pathlib import Path

import pytest

# Their libraries are in the environment of `make test-hubs` alone.
pytest.importorskip("textarena")
pytestmark = pytest.mark.e2e
ZOO = Path(__file__).parents[3] / "support" / "toy_zoo.py"
WORLDS = [
    ("open_spiel/kuhn_poker", {}),
    ("open_spiel/goofspiel", {"num_cards": 4}),
    ("textarena/IteratedPrisonersDilemma-v0", {"points": "scores"}),
    ("textarena/SimpleNegotiation-v0-short", {"points": "inventory_value.change"}),
    ("pettingzoo/classic/rps_v2", {"max_cycles": 3}),
    (f"pettingzoo/{ZOO}:Signals", {}),
]


@pytest.mark.parametrize("policies", [1, 2])
@pytest.mark.parametrize(("world", "options"), WORLDS)
def test_a_world_trains_on_one_policy_and_on_two(world, options, policies, train_world):
    second = {"Signals": "runner"}.get(world.rpartition(":")[2], "player_1")
    two = ["mas.policies={main:{},other:{}}", f"mas.agents={{{second}:{{policy:other}}}}"]
    metrics = train_world(world, options, *(two if policies == 2 else ()))
    assert metrics["session/acts/mean"] >= 1
