"""What rows count in the loss, against plain Python, whatever the split into optimiser steps, ranks, micro batches."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig
from verl.workers.utils.losses import ppo_loss

from verl_mas.config.merge import LOSS_MODES, set_mode
from verl_mas.trainer.batching import plan, spread_padding
from verl_mas.trainer.loss_weights import step_weights, weighs_rows, weighted

KL, ENTROPY, CLIP, PROMPT = 0.3, 0.1, 0.2, 2
WEIGHTINGS = list(LOSS_MODES)


def row(agent, session, tokens, *, masked=0):
    return {"agent": agent, "session": session, "tokens": tokens, "masked": masked}


masked = st.sampled_from([0, 0, 0, 1, 9])
a_row = st.builds(row, st.sampled_from("abc"), st.integers(0, 3), st.integers(1, 5), masked=masked)


def shares(weighting, rows):
    """The part of every trained token of a row in the loss, by the definition: all parts sum to 1."""
    trained = [max(0, row["tokens"] - row["masked"]) for row in rows]
    live = [i for i, tokens in enumerate(trained) if tokens]
    unit = {"row": lambda i: i, "agent": lambda i: rows[i]["agent"], "session": lambda i: rows[i]["session"]}
    if weighting == "token":
        return [1 / sum(trained) if tokens else 0.0 for tokens in trained]
    name = unit[weighting]
    rows_in = Counter(name(i) for i in live)
    return [1 / len(rows_in) / rows_in[name(i)] / trained[i] if i in live else 0.0 for i in range(len(rows))]


def nested(values):
    return torch.nested.as_nested_tensor(list(values), layout=torch.jagged)


class Step:
    """The rows of one policy and step, with padding, as verl's workers have them."""

    def __init__(self, rows, weighting, updates, ranks, seed):
        generator = torch.Generator().manual_seed(seed)
        self.plan = plan(len(rows), updates, ranks)
        padding = [row("a", 0, 1, masked=1)] * self.plan.padding
        self.rows = [*rows, *padding]
        tags = [{"agent": row["agent"], "is_padding": i >= len(rows)} for i, row in enumerate(self.rows)]
        keys = [f"1-0_{row['session']}_{i}" if i < len(rows) else f"pad{i}_0_0" for i, row in enumerate(self.rows)]
        lengths = [row["tokens"] for row in self.rows]
        self.masks = [torch.tensor([1] * n) for n in lengths]
        for mask, entry in zip(self.masks, self.rows, strict=True):
            mask[: entry["masked"]] = 0
        self.weights = step_weights(weighting, keys, tags, torch.tensor([int(mask.sum()) for mask in self.masks]))
        self.order = spread_padding(tags, ranks, self.plan.updates)
        self.log_probs = [torch.randn(PROMPT + n, generator=generator).requires_grad_() for n in lengths]
        self.entropy = [torch.rand(PROMPT + n, generator=generator).requires_grad_() for n in lengths]
        self.advantages = torch.randn(len(lengths), generator=generator)
        # The ratio of each token, on both sides of the clipping.
        self.ratios = [torch.rand(n, generator=generator) + 0.5 for n in lengths]

    def data(self, places):
        def of(values):
            return nested(values[i] for i in places)

        # Of each response token: the outputs of the model are shifted by one.
        now = [values.detach()[PROMPT - 1 : -1] for values in self.log_probs]
        tokens = [torch.ones_like(ratio) for ratio in self.ratios]
        fields = {
            "prompts": of([torch.zeros(PROMPT, dtype=torch.long)] * len(self.rows)),
            "responses": of([mask.clone() for mask in self.masks]),
            "response_mask": of(self.masks),
            "old_log_probs": of([mine - ratio.log() for mine, ratio in zip(now, self.ratios, strict=True)]),
            "ref_log_prob": of(now),
            "advantages": of([a * ones for a, ones in zip(self.advantages, tokens, strict=True)]),
        }
        if self.weights.of_rows is not None:
            fields["loss_weights"] = self.weights.of_rows[places]
        return TensorDict(fields, batch_size=len(places))

    def backward(self, loss, micro, ranks):
        """As a worker of verl does: every optimiser step on its share of every rank, in micro batches."""
        chunk = len(self.order) // ranks
        size = chunk // self.plan.updates
        for update in range(self.plan.updates):
            shares = [self.order[rank * chunk + update * size :][:size] for rank in range(ranks)]
            tokens = int(sum(self.masks[i].sum() for share in shares for i in share))
            for share in shares:
                for start in range(0, size, micro):
                    places = share[start : start + micro]
                    data, counted = self.data(places), self.weights.total / self.plan.updates
                    tu.assign_non_tensor(data, dp_size=ranks, batch_num_tokens=tokens, global_batch_size=counted)
                    both = {"log_probs": self.log_probs, "entropy": self.entropy}
                    outputs = {name: nested(values[i] for i in places) for name, values in both.items()}
                    (loss(model_output=outputs, data=data)[0] / ranks).backward()  # FSDP averages over ranks


def loss_of(weighting):
    clip = dict.fromkeys(("clip_ratio", "clip_ratio_low", "clip_ratio_high"), CLIP)
    terms = {"entropy_coeff": ENTROPY, "use_kl_loss": True, "kl_loss_coef": KL, "kl_loss_type": "kl", **clip}
    sizes = {"rollout_n": 1, "ppo_mini_batch_size": 1, "use_dynamic_bsz": True}
    config = ActorConfig(strategy="fsdp", loss_agg_mode=LOSS_MODES[weighting], **terms, **sizes)
    loss = partial(ppo_loss, config=config)
    return partial(weighted, loss=loss) if weighs_rows(weighting) else loss


def gradient(advantage, ratio):
    """Of verl's clipped loss by the log-prob of one token."""
    clipped = ratio > 1 + CLIP if advantage >= 0 else ratio < 1 - CLIP
    return 0.0 if clipped else -advantage * ratio


@settings(max_examples=25, deadline=None)
@given(st.data(), st.lists(a_row, min_size=1, max_size=12), st.sampled_from(WEIGHTINGS))
def test_the_gradient_is_that_of_the_weighted_mean_whatever_the_split(data, rows, weighting):
    updates, ranks = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    if not any(row["tokens"] > row["masked"] for row in rows):
        return
    step = Step(rows, weighting, updates, ranks, data.draw(st.integers(0, 99)))
    step.backward(loss_of(weighting), data.draw(st.integers(1, 4)), ranks)
    for i, share in enumerate(shares(weighting, rows)):
        share *= step.plan.updates  # each optimiser step has its part of the mean, times their number
        for t, on in enumerate(step.masks[i].tolist()):
            policy = gradient(float(step.advantages[i]), float(step.ratios[i][t]))
            found = [values[i].grad[PROMPT - 1 + t] for values in (step.log_probs, step.entropy)]
            expected = [on * share * (policy + KL), on * share * -ENTROPY]
            assert [float(value) for value in found] == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_an_agent_that_acts_once_counts_as_much_as_one_that_acts_three_times():
    rows = [row("a", 0, 2), row("a", 0, 5), row("a", 1, 2), row("b", 1, 2)]
    by_agent, by_session = (Step(rows, name, 1, 1, 0).weights.of_rows for name in ("agent", "session"))
    assert by_agent.tolist() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2])
    assert by_session.tolist() == [1, 1, 1, 1]
    assert Step(rows[:3], "session", 1, 1, 0).weights.of_rows.tolist() == [0.75, 0.75, 1.5]
    weights = Step([row("a", 0, 2), row("a", 0, 2, masked=2), row("b", 1, 2)], "agent", 1, 4, 0).weights
    assert weights.total == 2 and weights.of_rows.tolist() == [1, 0, 1, 0], "no row without a trained token"


@pytest.mark.parametrize("weighting", [None, *WEIGHTINGS])
def test_padding_does_not_count_whatever_its_mask(weighting):
    keys, tags = ["1-0_0_0", "1-0_1_0", "pad0_0_0"], [{"agent": "a", "is_padding": i == 2} for i in range(3)]
    found = step_weights(weighting, keys, tags, torch.tensor([2, 3, 4]))
    expected = step_weights(weighting, keys[:2], tags[:2], torch.tensor([2, 3]))
    assert found.total == expected.total == (5 if weighting == "token" else 2)
    assert (found.of_rows is None) == (expected.of_rows is None)
    assert found.of_rows is None or found.of_rows.tolist() == [*expected.of_rows.tolist(), 0]


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_a_step_of_which_every_token_is_masked_has_a_loss_of_0(weighting):
    step = Step([row("a", 0, 2, masked=2), row("b", 0, 1, masked=1)], weighting, 1, 1, 0)
    step.backward(loss_of(weighting), 2, 1)
    assert all(bool((values.grad == 0).all()) for values in step.log_probs)


def test_without_a_weighting_verls_own_loss_and_divisor_stay():
    view = OmegaConf.create({"actor_rollout_ref": {"actor": {"loss_agg_mode": "seq-mean-token-sum-norm"}}})
    set_mode(view, None)
    assert view.actor_rollout_ref.actor.loss_agg_mode == "seq-mean-token-sum-norm"
    step = Step([row("a", 0, 2), row("a", 0, 3, masked=3)], None, 2, 2, 0)
    assert step.weights.total == 2 and step.weights.fields == {} and not weighs_rows(None)


def test_a_weighted_loss_has_the_values_of_the_loss():
    step = Step([row("a", 0, 2), row("a", 0, 4), row("b", 1, 3)], "agent", 1, 1, 0)
    data = step.data([0, 1, 2])
    tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=9, global_batch_size=3)
    outputs = {"log_probs": nested(step.log_probs), "entropy": None}
    both = [loss(model_output=outputs, data=data) for loss in (loss_of("agent"), loss_of("agent").keywords["loss"])]
    assert both[0][0].item() == both[1][0].item()
