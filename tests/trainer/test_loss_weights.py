"""Weights of rows in the loss: gradients of verl's worker equal those of plain torch over all rows at once, however
rows are split into optimiser steps, ranks and micro batches."""

from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.utils import tensordict_utils as tu
from verl.utils.torch_functional import entropy_from_logits
from verl.workers.config import ActorConfig, PolicyLossConfig
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.utils.losses import ppo_loss

from verl_mas.config.merge import LOSS_MODES
from verl_mas.config.run import ON_POLICY_LOSSES, PROPORTIONAL_LOSSES
from verl_mas.trainer.batching import plan, spread_padding
from verl_mas.trainer.loss_weights import on_policy, over_all_rows, step_weights, weighs_rows, weighted
from verl_mas.trainer.step import kept_share
from verl_mas.verl_.row import KEPT_SHARE, LOSS_WEIGHTS

KL, ENTROPY, CLIP, FACTOR, WORDS, PROMPT = 0.3, 0.1, 0.2, 7, 19, 2
WEIGHTINGS = list(LOSS_MODES)
# verl's own modes, which also count rejected tokens and rows.
MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
KINDS = ["k1", "k2", "k3", "k3+"]


def row(agent, session, tokens, *, masked=0, rejected=0):
    """Make a row. `masked`: the number of its first tokens, which are not trained. `rejected`: the number of its last
    tokens that rollout correction rejects."""
    return SimpleNamespace(agent=agent, session=session, tokens=tokens, masked=masked, rejected=rejected)


rejected = st.sampled_from([0, 0, 0, 1, 9])
a_row = st.builds(
    row, st.sampled_from("abc"), st.integers(0, 3), st.integers(2, 5), masked=st.integers(0, 1), rejected=rejected
)
ROWS = [
    row("a", 0, 4),
    row("a", 0, 2, masked=1),
    row("b", 0, 5),
    row("b", 1, 3, rejected=9),
    row("c", 1, 2, rejected=1),
]


def nested(values):
    return torch.nested.as_nested_tensor(list(values), layout=torch.jagged)


class Engine(transformer_impl.FSDPEngineWithLMHead):
    """verl's forward and backward passes on one of `ranks` ranks, with a model that only knows the last token."""

    def __init__(self, logits, ranks):
        self.module = lambda input_ids, **_: SimpleNamespace(logits=logits[input_ids])
        self.ranks, self.ulysses_sequence_parallel_size = ranks, 1
        self.use_ulysses_sp = self.pad_to_length = False
        self._autocast_dtype, self.compute_entropy_from_logits = torch.float32, entropy_from_logits
        self.engine_config = SimpleNamespace(entropy_checkpointing=False, entropy_from_logits_with_chunking=False)

    def get_data_parallel_size(self):
        return self.ranks

    def get_data_parallel_group(self):
        return None


class Step:
    """The rows of one policy and step, with padding."""

    def __init__(self, rows, weighting=None, updates=1, ranks=1, seed=0):
        draw = torch.Generator().manual_seed(seed)
        self.ranks, self.plan = ranks, plan(len(rows), updates, ranks)
        self.real = len(rows)
        self.rows = [*rows, *[row("a", 0, 1, masked=1)] * (-len(rows) % self.plan.multiple)]
        tags = [{"agent": row.agent, "is_padding": i >= len(rows)} for i, row in enumerate(self.rows)]
        keys = [f"1-0_{row.session}_{i}" if i < len(rows) else f"pad{i}_0_0" for i, row in enumerate(self.rows)]
        self.order = spread_padding(tags, ranks, self.plan.updates)
        self.logits = torch.randn(WORDS, WORDS, dtype=torch.float64, generator=draw).requires_grad_()
        self.ids = [torch.randint(WORDS, (PROMPT + row.tokens,), generator=draw) for row in self.rows]
        self.counted, self.masks = [], []
        for its in self.rows:
            place = torch.arange(its.tokens)
            self.counted.append((place >= its.masked).long())
            self.masks.append(self.counted[-1] * (place < its.tokens - its.rejected))
        self.weights = step_weights(weighting, keys, tags, torch.tensor([int(mask.sum()) for mask in self.masks]))
        drawn = [torch.rand(4, row.tokens, dtype=torch.float64, generator=draw) + 0.5 for row in self.rows]
        now = [self.log_probs(i)[0].detach() for i in range(len(self.rows))]
        # Ratios are on both sides of the clipping.
        self.old = [its - values[0].log() for its, values in zip(now, drawn, strict=True)]
        self.reference = [its - values[1].log() for its, values in zip(now, drawn, strict=True)]
        self.advantages = [(values[2] - 1).sign() * values[2] for values in drawn]
        self.corrections = [values[3] for values in drawn]

    def log_probs(self, i):
        """Return the log-probs of the reply's tokens, and the entropy there."""
        every = self.logits[self.ids[i][PROMPT - 1 : -1]].log_softmax(-1)
        return every.gather(-1, self.ids[i][PROMPT:, None])[:, 0], -(every.exp() * every).sum(-1)

    def batch(self, places):
        columns = {
            "input_ids": self.ids,
            "position_ids": [torch.arange(len(ids)) for ids in self.ids],
            "prompts": [ids[:PROMPT] for ids in self.ids],
            "responses": [ids[PROMPT:] for ids in self.ids],
            "response_mask": self.masks,
            "loss_mask": self.counted,
            "old_log_probs": self.old,
            "ref_log_prob": self.reference,
            "advantages": self.advantages,
            "rollout_is_weights": self.corrections,
        }
        fields = {name: nested(values[i] for i in places) for name, values in columns.items()}
        if self.weights.of_rows is not None:
            fields[LOSS_WEIGHTS] = self.weights.of_rows[places]
        return TensorDict(fields, batch_size=len(places))

    def shares(self):
        """The places of each optimiser step and rank."""
        chunk = len(self.order) // self.ranks
        size = chunk // self.plan.updates
        for update in range(self.plan.updates):
            yield [self.order[rank * chunk + update * size :][:size] for rank in range(self.ranks)]

    def gradient(self, loss, micro):
        """Return the gradient of all optimiser steps together, as the ranks of a worker group compute it."""
        engine = Engine(self.logits, self.ranks)
        self.logits.grad = None
        for ranks in self.shares():
            tokens = sum(int(self.counted[i].sum()) for places in ranks for i in places)
            for places in ranks:
                batch = self.batch(places)
                size = micro if len(places) % micro == 0 else 1
                tu.assign_non_tensor(batch, use_dynamic_bsz=False, micro_batch_size_per_gpu=size, temperature=1.0)
                tu.assign_non_tensor(batch, global_batch_size=self.weights.total / self.plan.updates)
                tu.assign_non_tensor(batch, calculate_entropy=True)
                with (
                    patch.object(transformer_impl, "get_device_id", lambda: "cpu"),
                    patch("torch.distributed.all_reduce", lambda count, *_, tokens=tokens, **__: count.fill_(tokens)),
                ):
                    self.loss = sum(engine.forward_backward_batch(batch, loss)["loss"])
        return self.logits.grad / self.ranks  # FSDP averages


def loss_of(mode, kind="k1", policy_loss="vanilla", **others):
    """Build verl's loss for a mode of verl or of `mas.loss.weighting`."""
    clip = dict.fromkeys(("clip_ratio", "clip_ratio_low", "clip_ratio_high"), CLIP)
    terms = {"entropy_coeff": ENTROPY, "use_kl_loss": True, "kl_loss_coef": KL, "kl_loss_type": kind, **clip}
    sizes = {"rollout_n": 1, "ppo_mini_batch_size": 1, "use_dynamic_bsz": True, "loss_scale_factor": FACTOR}
    terms |= {"policy_loss": PolicyLossConfig(loss_mode=policy_loss, clip_cov_lb=-9, clip_cov_ratio=0.3, dro_beta=0.5)}
    config = ActorConfig(strategy="fsdp", loss_agg_mode=LOSS_MODES.get(mode, mode), **sizes, **terms | others)
    loss = partial(ppo_loss, config=config)
    return partial(weighted, loss=loss) if weighs_rows(mode) else loss


# -- plain torch --


def divergence(now, reference, kind):
    difference = now - reference
    if kind in ("k2", "k3+"):  # k3+ has the gradient of k2, the gradient of the divergence
        return difference**2 / 2
    return difference if kind == "k1" else (-difference).exp() + difference - 1


def objective(step, mode, kind):
    """The sum of the losses of all optimiser steps."""
    trained = [int(mask.sum()) for mask in step.masks]
    total = 0.0
    for ranks in step.shares():
        tokens = sum(int(step.counted[i].sum()) for places in ranks for i in places)
        for i in (i for places in ranks for i in places if trained[i]):
            now, entropy = step.log_probs(i)
            ratio = (now - step.old[i]).exp()
            gains = [values * step.advantages[i] for values in (ratio, ratio.clamp(1 - CLIP, 1 + CLIP))]
            policy = -torch.minimum(*gains) * step.corrections[i]
            every = policy + KL * divergence(now, step.reference[i], kind) - ENTROPY * entropy
            share = 1 / tokens if mode == "token-mean" else step.plan.updates * part(step, trained, i, mode)
            total = total + share * (every * step.masks[i]).sum()
    return total


def part(step, trained, i, mode):
    """Return the weight of each trained token of row `i` in the mean over all rows."""
    live = [j for j, tokens in enumerate(trained) if tokens]
    if mode in MODES:
        return 1 / step.real / {"mean": trained[i], "sum": 1, "norm": FACTOR}[mode.rsplit("-", 1)[1]]
    if mode in ("token", "row"):
        return 1 / sum(trained) if mode == "token" else 1 / len(live) / trained[i]
    name = mode.removesuffix("_token")
    unit = [getattr(its, name) for its in step.rows]
    mine = [j for j in live if unit[j] == unit[i]]
    units = len({unit[j] for j in live})
    return 1 / units / (sum(trained[j] for j in mine) if mode == "agent_token" else len(mine) * trained[i])


def compare(rows, mode, kind, updates=1, ranks=1, micro=1, seed=0):
    step = Step(rows, mode if mode in WEIGHTINGS else None, updates, ranks, seed)
    wanted = torch.autograd.grad(objective(step, mode, kind), step.logits)[0]
    assert (step.gradient(loss_of(mode, kind), micro) - wanted).norm() < 1e-6 * wanted.norm()


@pytest.mark.parametrize("mode", MODES + WEIGHTINGS)
def test_ranks_and_micro_batches_do_not_change_the_gradient(mode):
    for ranks, micro in ((1, len(ROWS)), (2, 1)):
        compare(ROWS, mode, "k3", ranks=ranks, micro=micro)


@pytest.mark.parametrize("kind", KINDS)
def test_the_kl_term_has_the_gradient_of_its_kind(kind):
    compare(ROWS, "agent_token", kind)


@settings(max_examples=8, deadline=None)
@given(st.data(), st.lists(a_row, min_size=1, max_size=12), st.sampled_from(MODES + WEIGHTINGS))
def test_the_gradient_is_that_of_the_mean_over_all_rows_whatever_the_split(data, rows, mode):
    assume(any(row.tokens > row.masked + row.rejected for row in rows))
    updates, ranks, micro, seed = (data.draw(st.integers(1, most)) for most in (3, 3, 4, 99))
    compare(rows, mode, "k1", updates, ranks, micro, seed)


@pytest.mark.parametrize("weighting", [None, *WEIGHTINGS])
def test_padding_does_not_count_whatever_its_mask(weighting):
    keys, tags = ["1-0_0_0", "1-0_1_0", "pad0_0_0"], [{"agent": "a", "is_padding": i == 2} for i in range(3)]
    found = step_weights(weighting, keys, tags, torch.tensor([2, 3, 4]))
    expected = step_weights(weighting, keys[:2], tags[:2], torch.tensor([2, 3]))
    assert found.total == expected.total == (5 if weighting in ("token", "agent_token") else 2)
    assert (found.of_rows is None) == (expected.of_rows is None)
    assert found.of_rows is None or found.of_rows.tolist() == [*expected.of_rows.tolist(), 0]


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_a_step_of_which_every_token_is_masked_has_a_loss_of_0(weighting):
    step = Step([row("a", 0, 2, rejected=2), row("b", 0, 1, rejected=1)], weighting)
    assert bool((step.gradient(loss_of(weighting), 2) == 0).all())


# -- updates whose old log-probs are their own, and rows without advantage --


def on_policy_step(rounding, mode):
    """A step whose stored old log-probs differ by rounding, up and down, from those of the update itself."""
    step = Step(ROWS, mode if mode in WEIGHTINGS else None)
    signs = [torch.arange(row.tokens) % 2 * 2.0 - 1 for row in step.rows]
    step.old = [step.log_probs(i)[0].detach() + rounding * sign for i, sign in enumerate(signs)]
    return step


@pytest.mark.parametrize("mode", ["token-mean", "agent"])
@pytest.mark.parametrize("name", sorted(POLICY_LOSS_REGISTRY.keys() - {"bypass_mode"}))
def test_the_updates_own_log_probs_in_place_of_the_old_ones_change_rounding_alone(name, mode):
    """The loss has importance weights, KL to a reference and entropy; verl's own worker computes it in micro
    batches."""
    loss, step = loss_of(mode, "k3", name), on_policy_step(1e-9, mode)
    torch.manual_seed(0)
    separate = step.gradient(loss, micro=len(ROWS) // 2)
    # The stored log-probs must not be read.
    step.old = [values * float("nan") for values in step.old]
    torch.manual_seed(0)
    own = step.gradient(partial(on_policy, loss=loss), micro=len(ROWS) // 2)
    assert ((own - separate).norm() < 1e-7 * own.norm()) == (name in ON_POLICY_LOSSES)


@pytest.mark.parametrize(
    ("mode", "name"),
    [*(("token-mean", name) for name in sorted(PROPORTIONAL_LOSSES)), *((mode, "vanilla") for mode in MODES[1:])],
)
def test_the_rows_with_an_advantage_have_the_gradient_of_all_rows(mode, name):
    loss, step = loss_of(mode, policy_loss=name, use_kl_loss=False, entropy_coeff=0.0), Step(ROWS)
    step.advantages = [values * (i not in (1, 4)) for i, values in enumerate(step.advantages)]
    whole, tokens = step.gradient(loss, micro=2), torch.stack([counted.sum() for counted in step.counted])
    step.order = [0, 2, 3]

    def skipping(model_output, data, dp_group=None):
        tu.assign_non_tensor(data, **{KEPT_SHARE: kept_share(tokens, step.order, mode)})
        return over_all_rows(model_output, data, dp_group, loss=loss)

    assert (step.gradient(skipping, micro=1) - whole).norm() < 1e-6 * whole.norm()
