import pytest
import torch

from verl_mas.advantage import AdvantageOptions, to_tokens
from verl_mas.advantage.kernel import Partition, compact, normalise

OPTIONS = AdvantageOptions().resolved("test", {})


def random_case(rows=5000, groups=700, device="cpu"):
    generator = torch.Generator().manual_seed(3)
    scores = torch.rand(rows, generator=generator)
    return scores.to(device), compact(torch.randint(groups, (rows,), generator=generator).to(device))


def test_the_result_is_float64_and_bit_for_bit_repeatable():
    scores, groups = random_case()
    first, second = (normalise(scores, groups, OPTIONS)[0] for _ in range(2))
    assert first.dtype == torch.float64
    assert torch.equal(first, second)


def test_large_rewards_do_not_cancel():
    scores = 1e6 + torch.tensor([0.0, 1.0, 2.0])
    advantage, _ = normalise(scores, Partition(torch.zeros(3, dtype=torch.long), 1), OPTIONS)
    torch.testing.assert_close(advantage, torch.tensor([-1.0, 0.0, 1.0]).double(), atol=1e-5, rtol=0)


def test_no_rows_are_no_advantages():
    advantage, stats = normalise(torch.zeros(0), compact(torch.zeros(0, dtype=torch.long)), OPTIONS)
    assert len(advantage) == len(stats.size) == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_gives_the_cpus_numbers_and_the_same_ones_each_time():
    scores, groups = random_case()
    on_gpu = [normalise(*random_case(device="cuda"), OPTIONS)[0] for _ in range(3)]
    assert torch.equal(on_gpu[0], on_gpu[1]) and torch.equal(on_gpu[1], on_gpu[2])
    torch.testing.assert_close(on_gpu[0].cpu(), normalise(scores, groups, OPTIONS)[0])


ADVANTAGES = torch.tensor([0.5, -2.0])
MASK = [[1, 0, 1], [1, 1]]


@pytest.mark.parametrize("kind", [torch.long, torch.bool, torch.float32])
def test_trained_tokens_get_their_rows_advantage_and_the_others_zero(kind):
    mask = torch.tensor([[1, 0, 1], [1, 1, 0]]).to(kind)
    before = mask.clone()
    result = to_tokens(ADVANTAGES.double(), mask)
    assert result.dtype == torch.float32 and torch.equal(mask, before)
    assert result.tolist() == [[0.5, 0.0, 0.5], [-2.0, -2.0, 0.0]]


def test_a_jagged_mask_gives_jagged_advantages():
    mask = torch.nested.as_nested_tensor([torch.tensor(row) for row in MASK], layout=torch.jagged)
    result = to_tokens(ADVANTAGES, mask)
    assert [row.tolist() for row in result.unbind()] == [[0.5, 0.0, 0.5], [-2.0, -2.0]]
