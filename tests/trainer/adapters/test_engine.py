"""Several adapters on one base: each is trained as if it were alone, by one worker and by two."""

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from adapter_workers import ALPHAS, POLICIES, RANKS, STEPS, VARIANTS, Bfloat16, Found, observed
from safetensors.torch import load_file

from verl_mas.engines.adapters import by_policy
from verl_mas.trainer.adapters import files

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

# CI runs one of the models.
MODELS = [pytest.param(model, marks=[] if model == "tied" else pytest.mark.nightly) for model in VARIANTS]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a variant, which runs when a test first reads it."""

    def folder(model: str) -> Path:
        folder = tmp_path_factory.mktemp(model)
        observed(folder, model)
        return folder

    return cache(folder)


@pytest.fixture
def tied(folder_of) -> Path:
    return folder_of("tied")


@pytest.fixture(params=MODELS)
def model(request) -> str:
    return request.param


@pytest.fixture(params=(1, 2))
def workers(request) -> int:
    return request.param


@pytest.fixture
def saved(folder_of, model, workers) -> Path:
    return folder_of(model) / str(workers) / model


@pytest.fixture
def found(folder_of, model, workers) -> Found:
    return torch.load(folder_of(model) / f"{model}_{workers}.pt", weights_only=False)


@pytest.fixture
def bfloat16(tied) -> Bfloat16:
    return torch.load(tied / "bfloat16.pt", weights_only=False)


def differing(one, other):
    keys = one.keys() | other.keys()
    return [key for key in keys if key not in one or key not in other or not torch.equal(one[key], other[key])]


@pytest.mark.parametrize("policy", POLICIES)
def test_an_adapter_beside_another_ends_where_verls_own_engine_with_it_alone_does(found, saved, policy):
    together = {key: found.together[policy][key] for key in found.alone[policy]}
    assert differing(found.alone[policy], together) == []
    start = load_file(saved / "start" / policy / files.WEIGHTS)
    assert sorted(differing(start, together)) == sorted(start)


@pytest.mark.nightly
def test_adapters_of_one_base_are_on_modules_of_their_own(folder_of):
    alone = torch.load(folder_of("untied") / "untied_2.pt", weights_only=False).alone
    on = {policy: {key.split(".")[-3] for key in weights} for policy, weights in alone.items()}
    assert on == {"layers": {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"}, "solver": {"q_proj", "down_proj"}}


def test_the_checkpoint_of_an_adapter_without_rows_in_a_step_stays_the_same_byte_for_byte(saved):
    for name in (files.CONFIG, files.WEIGHTS, files.TRAINING):
        before, after = ((saved / moment / "solver" / name).read_bytes() for moment in ("before", "after"))
        assert before == after, name
    before, after = (load_file(saved / moment / "layers" / files.WEIGHTS) for moment in ("before", "after"))
    assert sorted(differing(before, after)) == sorted(before), "the one with rows was updated"


def test_every_trainable_parameter_is_in_one_optimizer_and_an_update_changes_no_other_policy_and_not_the_base(found):
    assert found.disturbed == []
    assert {len(owners) for owners in found.trainable.values()} == {1}
    assert {policy for owners in found.trainable.values() for policy in owners} == set(POLICIES)
    assert all(".lora_" in key for key in found.trainable)


def test_the_reference_is_the_base_whatever_the_adapters_have_learned_and_leaves_them_trainable(found):
    norms = [metrics["grad_norm"][0] for policy in POLICIES for metrics in found.metrics[policy]]
    assert len(norms) == STEPS * len(POLICIES) and min(norms) > 0
    before, after, adapted = found.reference
    assert torch.equal(before, after)
    assert (after - adapted).abs().max() > 1e-3


def test_each_policy_follows_its_own_schedule(found):
    cosine = [1e-2 * 0.5 * (1 + math.cos(math.pi * step / 6)) for step in range(1, STEPS + 1)]
    assert [metrics["lr"][0] for metrics in found.metrics["layers"]] == pytest.approx(cosine)
    assert [metrics["lr"][0] for metrics in found.metrics["solver"]] == pytest.approx([1.5e-3, 3e-3, 3e-3])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_resumed_adapter_ends_where_an_unbroken_one_does(found, policy):
    assert any("exp_avg" in key for key in found.together[policy])
    assert differing(found.together[policy], found.resumed[policy]) == []


def test_a_warm_start_takes_the_weights_of_a_folder_and_a_base_saves_the_random_state_of_its_workers(
    found, saved, workers
):
    assert differing(load_file(saved / "after_2" / "solver" / files.WEIGHTS), found.warm) == []
    once, again = found.drawn
    assert torch.equal(once, again)
    assert len(list((saved / "base").iterdir())) == workers


@pytest.mark.parametrize("policy", POLICIES)
def test_any_number_of_workers_loads_what_another_number_has_saved(folder_of, model, policy):
    folder = folder_of(model)
    one, two = folder / "1" / model / "after_2" / policy, folder / "2" / model / "copied" / policy
    for name in (files.CONFIG, files.WEIGHTS):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    (before, steps), (after, again) = (files.read_training(path) for path in (one, two))
    assert before.keys() == after.keys() and steps == again > 0
    assert [key for key in before if differing(before[key], after[key])] == []


@pytest.mark.parametrize("policy", POLICIES)
def test_the_folder_of_an_adapter_is_one_of_peft(tied, policy):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    saved = tied / "1" / "tied" / "after_2" / policy
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tied / "tied"), str(saved))
    config = model.peft_config["default"]
    assert (config.r, config.lora_alpha) == (RANKS[policy], ALPHAS[policy])
    named = {key.replace(".default.", "."): value for key, value in model.named_parameters() if ".lora_" in key}
    assert differing(load_file(saved / files.WEIGHTS), named) == []


def test_engines_are_sent_the_weights_of_all_adapters(found):
    sent = by_policy(found.sent.items(), POLICIES)
    assert [sent[policy].keys() for policy in POLICIES] == [found.alone[policy].keys() for policy in POLICIES]
    for policy, weights in sent.items():
        assert differing(weights, {key: found.together[policy][key] for key in weights}) == []


def test_the_first_weights_of_an_adapter_do_not_depend_on_its_neighbours(tied, bfloat16):
    beside = load_file(tied / "1/tied/start/solver" / files.WEIGHTS)
    # PEFT samples the initial weights in the dtype of the base.
    assert differing({key: value.bfloat16().float() for key, value in beside.items()}, bfloat16.before) == []


def test_adapters_on_a_base_in_bfloat16_are_trained_in_float32_also_after_a_forward_of_the_reference(bfloat16):
    assert bfloat16.types == {"base": {torch.bfloat16}, "solver": {torch.float32}}
    assert bfloat16.grad_norm > 0
    learned = {key for key in bfloat16.before if "lora_B" in key}
    assert learned and learned <= set(differing(bfloat16.before, bfloat16.after))


def test_an_adapter_of_another_rank_is_refused(tied):
    answer = (tied / "refused.txt").read_text()
    assert "r=4" in answer and "model.lora_rank=4" in answer
