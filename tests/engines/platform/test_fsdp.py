"""verl's FSDP engines on the CPU: every way to compute an update gives the same update."""

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
SMALL = (f"{ACTOR}.ppo_max_token_len_per_gpu=130", f"{ROLLOUT}.log_prob_max_token_len_per_gpu=130")
LORA = (f"{MODEL}.lora_rank=4", f"{MODEL}.target_modules=all-linear")
EAGER = f"{MODEL}.override_config.attn_implementation=eager"  # attention by rows; trees use another kind
TEMPERATURES = (1.0, 0.5)
VARIANTS = {
    "rows": Variant((), False),
    "default": Variant(()),
    "packed": Variant((PACKED,)),
    "small trees": Variant(SMALL, True),
    "fixed trees": Variant((*FIXED, PACKED, EAGER), True),
    "FSDP1": Variant((*FIXED, FSDP1, EAGER), True),
    "rows at two temperatures": Variant((PACKED,), False, TEMPERATURES),
    "trees at two temperatures": Variant((), True, TEMPERATURES),
    "rows, LoRA": Variant(LORA, False),
    "trees, LoRA": Variant((*LORA, EAGER), True),
}
CLOSE = {"atol": 1e-6, "rtol": 1e-5}


@pytest.fixture(scope="module")
def alone(letters):
    return updates(letters / "model", VARIANTS)


@pytest.fixture(scope="module")
def two_workers(letters):
    variants = {"rows": Variant((), False), "FSDP2": Variant(SMALL, True), "FSDP1": Variant((FSDP1,), True)}
    return updates(letters / "model", variants, workers=2)


BESIDE = {"trees at two temperatures": "rows at two temperatures", "trees, LoRA": "rows, LoRA"}


@pytest.mark.parametrize("name", [name for name in VARIANTS if not name.startswith("rows")])
def test_the_update_does_not_depend_on_how_it_is_computed(alone, name):
    same_update(alone[BESIDE.get(name, "rows")], alone[name])


def test_prefixes_are_shared_as_the_setting_says(alone):
    trees = {name for name, done in alone.items() if done["trees"]}
    assert trees == {"default", "FSDP1", *(name for name in VARIANTS if "trees" in name)}
    shares = {name: done["metrics"].get("shared_tokens") for name, done in alone.items()}
    assert all((shares[name] is not None and min(shares[name]) > 0.1) == (name in trees) for name in alone), shares


def test_two_workers_make_the_same_update_with_trees(alone, two_workers):
    for name in ("FSDP2", "FSDP1"):
        assert two_workers[name]["trees"] > 0
        assert two_workers[name]["work"] == alone["rows"]["work"], "a worker of FSDP1 has a part of each parameter"
        same_update(two_workers["rows"], two_workers[name])


def same_update(expected, found):
    same_weights(expected["weights"], found["weights"])
    for metric in ("loss", "grad_norm"):
        assert found["metrics"][metric] == pytest.approx(expected["metrics"][metric], rel=1e-5)
    for one, other in zip(expected["log_probs"], found["log_probs"], strict=True):
        torch.testing.assert_close(other, one, **CLOSE)


def same_weights(expected, found):
    expected, found = plain(expected), plain(found)
    assert expected.keys() == found.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, **CLOSE, msg=name)


def plain(weights):
    return {name.replace("_fsdp_wrapped_module.", ""): weight for name, weight in weights.items()}
