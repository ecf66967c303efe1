"""The tree of a micro batch's prefixes: its content, and that a model has the same results with the tree as with the
rows."""

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention
from transformers import AutoModelForCausalLM, JambaConfig, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from transformers.integrations.flex_attention import WrappedFlexAttention

from verl_mas.engines.platform.prefixes import MODELS, Line, Tree, Work, cut, divided, in_order, not_covered, size_of

TOKENS = st.integers(0, 2)  # few, so that prefixes are shared
ROWS = st.lists(
    st.lists(TOKENS, min_size=2, max_size=7).flatmap(
        lambda row: st.tuples(st.just(row), st.lists(st.booleans(), min_size=1, max_size=len(row) - 1))
    ),
    min_size=1,
    max_size=6,
)


def tree_of(rows, masks) -> Tree:
    return Tree.of([torch.tensor(row) for row in rows], [torch.tensor(mask) for mask in masks])


def paths(tree: Tree) -> list[list[int]]:
    """Return the tokens to which each node attends."""
    return [tree.tokens[seen].tolist() for seen in tree.mask(torch.device("cpu"))]


@given(ROWS)
def test_there_is_a_node_for_each_prefix_and_it_attends_to_that_prefix(rows):
    tree = tree_of(*zip(*rows, strict=True))
    prefixes = {tuple(row[:end]) for row, _ in rows for end in range(1, len(row))}
    assert sorted(map(tuple, paths(tree))) == sorted(prefixes)
    assert [len(path) - 1 for path in paths(tree)] == tree.depths.tolist()
    lines = in_order(*(list(map(torch.tensor, column)) for column in zip(*rows, strict=True)))
    assert size_of(range(len(rows)), lines) == len(prefixes)


@given(ROWS)
def test_each_token_that_is_trained_is_predicted_by_the_node_before_it(rows):
    tree = tree_of(*zip(*rows, strict=True))
    every = [(row, place) for row, _ in rows for place in range(len(row))]
    for node, place in zip(tree.predicting.tolist(), tree.predicted.tolist(), strict=True):
        row, at = every[place]
        assert paths(tree)[node] == row[:at]
    assert tree.counts.tolist() == [sum(mask) for _, mask in rows]
    trained = [(row, at) for row, mask in rows for at, used in enumerate(mask, len(row) - len(mask)) if used]
    assert [every[place] for place in tree.predicted.tolist()] == trained


@given(st.lists(st.tuples(st.integers(2, 300), st.floats(0, 1)), min_size=1, max_size=20), st.integers(1, 600))
def test_micro_batches_have_every_row_once_and_no_more_tokens_than_they_may(rows, most):
    lengths, before = [length for length, _ in rows], 0
    lines = []
    for number, (length, share) in enumerate(rows):
        lines.append(Line(number, length, int(share * min(length, before)), length // 2))
        before = length
    batches = cut(lines, most, Work(token=100, logits=10, pair=1, start=1000))
    for count in {len(batches), len(rows)}:
        parts = divided(batches, count)
        assert len(parts) == count and list(chain(*parts)) == list(range(len(rows)))
        for part in parts:
            sizes = size_of(part, lines), sum(lengths[row] // 2 for row in part)
            assert len(part) == 1 or max(sizes) <= most


def test_rows_share_a_micro_batch_where_that_is_less_work():
    # The first two rows share a prompt. The third row shares nothing, so together with them it would only widen the
    # mask.
    lines = [Line(0, 100, 0), Line(1, 100, 90), Line(2, 100, 0)]
    assert cut(lines, 1000, Work(token=10, logits=0, pair=1, start=0)) == [[0, 1], [2]]


SIZE = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}


@pytest.mark.parametrize("kind", [LlamaConfig, Qwen2Config, Qwen3Config, MistralConfig])
def test_log_probs_and_gradients_are_those_of_the_rows(kind, monkeypatch):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(kind(**SIZE, **HEADS), attn_implementation="sdpa")
    prompts = [[5, 6, 7, 8], [5, 6, 9]]
    rows = [[*prompt, *torch.randint(0, 50, (length,)).tolist()] for prompt in prompts for length in (1, 5, 5)]
    rows[2][:7] = rows[1][:7]  # a conversation with the same first turn
    masks = [[True], [True] * 5, [True, True, False, True, True]] * 2
    tree = tree_of(rows, masks)

    def of_rows():
        for row, mask in zip(rows, masks, strict=True):
            logits = torch.log_softmax(model(input_ids=torch.tensor([row])).logits[0], dim=-1)
            places = [place for place, used in enumerate(mask, len(row) - len(mask)) if used]
            yield from (logits[place - 1, row[place]] for place in places)

    def of_tree(mask):
        logits = model(
            input_ids=tree.tokens[None],
            attention_mask=mask,
            position_ids=tree.depths[None],
            logits_to_keep=tree.predicting,
        ).logits[0]
        labels = torch.tensor([*chain(*rows)])[tree.predicted]
        return torch.log_softmax(logits, dim=-1).gather(1, labels[:, None])[:, 0]

    def gradients(log_probs):
        model.zero_grad()
        (log_probs * torch.linspace(-1, 1, len(log_probs))).sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    cpu = torch.device("cpu")
    expected, found = torch.stack(list(of_rows())), of_tree(tree.mask(cpu)[None, None])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(gradients(found), gradients(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    # FlexAttention has no gradient on a CPU, and is not compiled here.
    model.set_attn_implementation("flex_attention")
    monkeypatch.setattr(WrappedFlexAttention, "__call__", lambda self: flex_attention)
    with torch.no_grad():
        torch.testing.assert_close(of_tree(tree.blocks(cpu)), expected, rtol=1e-5, atol=1e-5)


WINDOWS = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}


@pytest.mark.parametrize(
    ("config", "fit"),
    [
        (LlamaConfig(), True),
        (Qwen2Config(), True),
        (Qwen3Config(), True),
        (MistralConfig(sliding_window=None), True),
        (MistralConfig(sliding_window=8), False),
        (Qwen2Config(num_hidden_layers=2, **WINDOWS), False),
        (JambaConfig(), False),  # its Mamba layers carry a state from one branch to the next
    ],
    ids=lambda value: getattr(value, "model_type", value),
)
def test_a_model_whose_layers_see_something_else_is_computed_by_rows(config, fit):
    assert (not_covered(config.to_dict(), fused=False, ulysses=1) is None) == fit


def test_the_models_that_fit_are_those_that_are_compared():
    kinds = next(mark for mark in test_log_probs_and_gradients_are_those_of_the_rows.pytestmark).args[1]
    assert sorted(kind.model_type for kind in kinds) == sorted(MODELS)


@pytest.mark.parametrize(("fused", "ulysses", "why"), [(True, 1, "use_fused_kernels"), (False, 2, "ulysses")])
def test_what_does_not_combine_is_named(fused, ulysses, why):
    assert why in not_covered(Qwen3Config().to_dict(), fused=fused, ulysses=ulysses)
