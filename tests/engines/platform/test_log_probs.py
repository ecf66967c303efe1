"""Log-probs in blocks equal those of verl's loop over tokens, which the plugin replaces."""

import importlib.util

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl.utils import torch_functional

from verl_mas.engines.platform import log_probs
from verl_mas.engines.platform.log_probs import REPLACED, log_probs_in_blocks


@pytest.fixture(scope="module")
def loop():
    """Return verl's own function, from a copy of its module that no plugin has patched."""
    spec = importlib.util.spec_from_file_location("torch_functional_of_verl", torch_functional.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, REPLACED)


def computed(function, logits, labels, entropy):
    """Return the log-probs and the gradient of the logits. The loss is a weighted sum of the log-probs, plus `entropy`
    times the entropy."""
    logits = logits.clone().requires_grad_()
    found = function(logits, labels)
    loss = (found.double() * torch.linspace(-1, 2, found.numel()).view(found.shape)).sum()
    (loss + entropy * torch_functional.entropy_from_logits(logits).sum()).backward()
    return found.detach(), logits.grad


@settings(deadline=None)
@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=2),
    vocabulary=st.integers(1, 40),
    block=st.integers(1, 100),
    kind=st.sampled_from([(torch.float32, 1e-5), (torch.float64, 1e-12)]),
    entropy=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 2**31),
)
def test_log_probs_and_gradients_are_those_of_the_loop_however_blocks_are_cut(
    loop, shape, vocabulary, block, kind, entropy, seed
):
    dtype, close = kind
    torch.manual_seed(seed)
    logits, labels = 8 * torch.randn(*shape, vocabulary, dtype=dtype), torch.randint(vocabulary, shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(log_probs.BLOCKS, "cpu", block)
        found = computed(log_probs_in_blocks, logits, labels, entropy)
    for ours, verls in zip(found, computed(loop, logits, labels, entropy), strict=True):
        assert ours.dtype == verls.dtype == dtype
        torch.testing.assert_close(ours, verls, rtol=close, atol=close)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_log_probs_of_half_precision_are_nearer_to_the_exact_ones_than_the_loops(loop, dtype):
    torch.manual_seed(0)
    logits, labels = (8 * torch.randn(50, 300)).to(dtype), torch.randint(300, (50,))
    exact, gradient = computed(loop, logits.double(), labels, 0.0)
    ours, mine = computed(log_probs_in_blocks, logits, labels, 0.0)
    assert ours.dtype == torch.float32 and (ours - exact).abs().max() < 1e-5
    assert (loop(logits, labels) - exact).abs().max() > 1e-3
    assert mine.dtype == dtype and (mine - gradient).abs().max() <= torch.finfo(dtype).eps


def test_verl_computes_by_it_and_beside_logits_and_gradient_only_a_block_is_held(monkeypatch):
    assert getattr(torch_functional, REPLACED) is log_probs_in_blocks
    monkeypatch.setitem(log_probs.BLOCKS, "cpu", 1 << 10)
    logits = torch.randn(4096, 64, requires_grad=True)
    with torch.profiler.profile(profile_memory=True) as profile:
        log_probs_in_blocks(logits, torch.zeros(4096, dtype=torch.long)).sum().backward()
    made = [event.cpu_memory_usage for event in profile.events() if event.name == "aten::empty_like"]
    sizes = [event.self_cpu_memory_usage for event in profile.events()]
    assert max(made) >= logits.numel() * 4
    assert sum(size >= logits.numel() for size in sizes) == 1, "the gradient alone is as large as the logits"
