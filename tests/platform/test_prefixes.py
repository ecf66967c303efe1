"""The tree of a micro batch's prefixes: what it holds, and that a model computes with it what it computes by rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, JambaConfig, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from verl_mas.platform.prefixes import MODELS, Tree, fits

TOKENS = st.integers(0, 2)  # few, so that prefixes are shared
ROWS = st.lists(
    st.lists(TOKENS, min_size=2, max_size=7).flatmap(lambda row: st.tuples(st.just(row), st.integers(1, len(row) - 1))),
    min_size=1,
    max_size=6,
)


def path(tree: Tree, node: int) -> list[int]:
    before = [] if tree.parents[node] < 0 else path(tree, tree.parents[node])
    return [*before, tree.tokens[node]]


@given(ROWS)
def test_there_is_a_node_for_each_prefix_and_it_attends_to_that_prefix(rows):
    tree = Tree.of([row for row, _ in rows], [prompt for _, prompt in rows])
    prefixes = {tuple(row[:end]) for row, _ in rows for end in range(1, len(row))}
    assert sorted(tuple(path(tree, node)) for node in range(len(tree.tokens))) == sorted(prefixes)
    for node in range(len(tree.tokens)):
        seen = tree.mask[node].nonzero()[:, 0].tolist()
        assert [tree.tokens[place] for place in seen] == path(tree, node)
        assert [tree.depths[place] for place in seen] == list(range(len(seen)))


@given(ROWS)
def test_each_reply_token_is_predicted_by_the_node_before_it(rows):
    tree = Tree.of([row for row, _ in rows], [prompt for _, prompt in rows])
    every = [(row, place) for row, _ in rows for place in range(len(row))]
    for node, label, place in zip(tree.nodes, tree.labels, tree.places, strict=True):
        row, at = every[place]
        assert path(tree, node) == row[: at + 1] and label == row[at + 1]
    replies = sum(len(row) - prompt for row, prompt in rows)
    assert len(set(tree.places)) == len(tree.places) == replies


SIZE = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}


@pytest.mark.parametrize("kind", [LlamaConfig, Qwen2Config, Qwen3Config, MistralConfig])
def test_log_probs_and_gradients_are_those_of_the_rows(kind):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(kind(**SIZE, **HEADS), attn_implementation="sdpa")
    prompts = [[5, 6, 7, 8], [5, 6, 9]]
    rows = [[*prompt, *torch.randint(0, 50, (length,)).tolist()] for prompt in prompts for length in (1, 5, 5)]
    lengths = [len(prompt) for prompt in prompts for _ in range(3)]
    tree = Tree.of(rows, lengths)

    def of_rows():
        for row, prompt in zip(rows, lengths, strict=True):
            logits = torch.log_softmax(model(input_ids=torch.tensor([row])).logits[0], dim=-1)
            yield from (logits[place, row[place + 1]] for place in range(prompt - 1, len(row) - 1))

    def of_tree():
        logits = model(
            input_ids=torch.tensor([tree.tokens]),
            attention_mask=tree.mask[None, None],
            position_ids=torch.tensor([tree.depths]),
            logits_to_keep=torch.tensor(tree.predicting),
        ).logits[0]
        return tree.log_probs(logits)

    def gradients(log_probs):
        model.zero_grad()
        (log_probs * torch.linspace(-1, 1, len(log_probs))).sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    expected, found = torch.stack(list(of_rows())), of_tree()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(gradients(found), gradients(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


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
    assert fits(config) == fit


def test_the_models_that_fit_are_those_that_are_compared():
    kinds = next(mark for mark in test_log_probs_and_gradients_are_those_of_the_rows.pytestmark).args[1]
    assert sorted(kind.model_type for kind in kinds) == sorted(MODELS)
