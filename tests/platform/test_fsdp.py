"""verl's FSDP engines on the CPU: every way to compute an update gives the same one."""

import pytest
import torch
from training_workers import ACTOR, MODEL, ROLLOUT, Variant, updates

pytestmark = pytest.mark.e2e

FIXED = (
    f"{ACTOR}.use_dynamic_bsz=false",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=5",
)
FSDP1, PACKED = f"{ACTOR}.strategy=fsdp", f"{MODEL}.use_remove_padding=true"
SETTINGS = {
    "by tokens": (),
    "fixed micro batches": FIXED,
    "no padding tokens": (PACKED,),
    "FSDP1": (FSDP1,),
    "all of them": (*FIXED, PACKED, FSDP1),
}
TWO_TEMPERATURES = (1.0, 0.5)
CLOSE = {"atol": 1e-6, "rtol": 1e-5}


@pytest.fixture(scope="module")
def alone(letters):
    variants = {name: Variant(given, TWO_TEMPERATURES) for name, given in SETTINGS.items()}
    return updates(letters / "model", variants | {"tree": Variant(()), "rows": Variant((PACKED,))})


def test_what_rows_share_is_computed_once_and_the_update_is_that_of_verls_own_path(alone):
    assert [alone[name]["trees"] > 0 for name in ("tree", "rows")] == [True, False]
    same_update(alone["rows"], alone["tree"])


@pytest.fixture(scope="module")
def two_workers(letters):
    return updates(letters / "model", {"FSDP2": Variant(FIXED), "FSDP1": Variant((*FIXED, FSDP1))}, workers=2)


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "by tokens"])
def test_the_update_does_not_depend_on_how_it_is_computed(alone, name):
    same_update(alone["by tokens"], alone[name])


def same_update(expected, found):
    same_weights(expected["weights"], found["weights"])
    for metric in ("loss", "grad_norm"):
        assert found["metrics"][metric] == pytest.approx(expected["metrics"][metric], rel=1e-5)
    for one, other in zip(expected["log_probs"], found["log_probs"], strict=True):
        torch.testing.assert_close(other, one, **CLOSE)


def test_fixed_micro_batches_need_more_padding_rows(alone):
    # Of 7 rows: to 2 optimiser steps; to lcm(2 steps x 4 rows, 5 rows).
    assert [alone[name]["padding"] for name in ("by tokens", "fixed micro batches")] == [1, 33]


@pytest.mark.nightly
def test_two_workers_of_fsdp1_make_the_update_that_those_of_fsdp2_make(two_workers):
    same_weights(two_workers["FSDP2"]["weights"], two_workers["FSDP1"]["weights"])


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["FSDP1", "FSDP2"])
def test_a_checkpoint_has_the_weights_that_it_was_made_of(two_workers, name):
    done = two_workers[name]
    assert all(torch.equal(done["weights"][key], done["restored"][key]) for key in done["weights"])


def same_weights(expected, found):
    expected, found = plain(expected), plain(found)
    assert expected.keys() == found.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, **CLOSE, msg=name)


def plain(weights):
    return {name.replace("_fsdp_wrapped_module.", ""): weight for name, weight in weights.items()}
