"""Which attention and which log-probs a run trains with, here and on other machines."""

import importlib.util
import inspect
import sys
from types import ModuleType

import pytest
import torch
from recipe_configs import composed
from verl.utils import torch_functional
from verl.workers.engine.utils import enable_full_determinism

from verl_mas.checks import run as checks
from verl_mas.checks.rules import engines
from verl_mas.checks.run import examine_command, finalize_team
from verl_mas.config.verl_settings import ATTENTION, attention
from verl_mas.planning import path
from verl_mas.planning.hardware import parse_gpus
from verl_mas.planning.path import BLOCKS, FLASH, FUSED, training_path

DISABLED = "VERL_DISABLE_FLASH_ATTN_CE"
LARGE, SMALL = "+recipe=math/separate_8b", "+recipe=math/separate"


@pytest.fixture
def finds(monkeypatch):
    """Return a function that makes the given packages look installed, and all others not installed. flash-attn needs
    CUDA, so it is not really installed."""

    def finds(*packages: str) -> None:
        for module in (path, engines):
            monkeypatch.setattr(module, "find_spec", lambda name: name in packages or None)

    return finds


def settled(*arguments: str):
    config = composed(arguments)
    finalize_team(config)
    return config


def test_a_team_takes_flash_attn_where_it_is_installed_and_starts_without_it(finds):
    finds("flash_attn")
    assert (attention(settled(LARGE)), training_path(settled(LARGE)).log_probs) == ("flash_attention_2", FLASH)
    finds()
    config = settled(LARGE)
    assert (attention(config), training_path(config).log_probs) == ("sdpa", BLOCKS)
    assert training_path(settled(SMALL)).log_probs == FUSED
    asked = settled(LARGE, f"++{ATTENTION}=flash_attention_2")
    assert attention(asked) == "flash_attention_2", "what is asked for is never replaced"


@pytest.mark.parametrize(("gpu", "attended"), [(False, "flash_attention_2 (assumed: it is not"), (True, "sdpa over")])
def test_of_other_machines_flash_attn_is_assumed_unless_this_one_has_gpus(finds, monkeypatch, gpu, attended):
    monkeypatch.setattr(checks, "has_gpu", lambda: gpu)
    monkeypatch.setattr(checks, "compose", composed)
    finds()
    report = examine_command([LARGE], parse_gpus("8x80"))
    assert all(
        policy["training"].startswith(f"attention: {attended}") for policy in report.summary["policies"].values()
    )
    assert "flash" not in report.problems


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("disabled", ["0", "1"])
def test_log_probs_are_those_that_verl_takes(finds, monkeypatch, installed, disabled):
    """Load verl's own module with a fake package flash_attn, whose cross entropy records that it was called."""
    finds(*["flash_attn"] * installed)
    monkeypatch.setenv(DISABLED, disabled)
    asked = []

    def cross_entropy_loss(logits, labels, inplace_backward):
        asked.append(FLASH)
        return logits.sum(-1), None

    names = "flash_attn flash_attn.ops flash_attn.ops.triton flash_attn.ops.triton.cross_entropy".split()
    for name in names if installed else ():
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    if installed:
        sys.modules[names[-1]].cross_entropy_loss = cross_entropy_loss
    spec = importlib.util.spec_from_file_location("verl_with_flash_attn", torch_functional.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "logprobs_from_logits_v2", lambda logits, labels: asked.append(BLOCKS))
    module.logprobs_from_logits(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))
    assert asked == [training_path(settled(LARGE)).log_probs]


def test_determinism_turns_flash_attns_cross_entropy_off(finds):
    finds("flash_attn")
    assert f'os.environ.setdefault("{DISABLED}", "1")' in inspect.getsource(enable_full_determinism)
    deterministic = settled(LARGE, "actor_rollout_ref.actor.fsdp_config.full_determinism=true")
    assert training_path(deterministic).log_probs == BLOCKS
