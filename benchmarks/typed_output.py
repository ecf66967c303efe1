"""Measure the errors of a trainer that ignores its engine's grammar, and the share of free replies that fit a schema.

    python benchmarks/typed_output.py
    verl-mas data smollm2 --out runs/smollm2
    pip install --no-deps xgrammar apache-tvm-ffi
    python benchmarks/typed_output.py --model runs/smollm2/model

At each token, a JSON schema's grammar allows tokens with a share Z of the probability. The engine samples an allowed
token with probability p / Z, so the exact gradient is that of log p minus that of log Z. A trainer only knows p, unless
it masks its logits with the tokens that the engine allowed. Four ways without the mask are compared: `as it is` (verl
without correction), `forced left out` (no loss on tokens without an alternative), `times Z` (verl's importance weights
of tokens), and `Z > 0.9` (verl's rejection of tokens).
`four attempts` uses no grammar: the agent is asked again, up to four times, until its free reply fits.

Without `--model`, the script computes the expected updates of small policies with replies of four tokens exactly. With
`--model`, it compares the gradients of the same sampled replies of a pretrained model.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any

import jsonschema
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_mas.gateway.dialect import with_schema

# Way -> the loss weight of a token, from its share Z and from whether the grammar allowed no other token.
WAYS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "as it is": lambda share, forced: torch.ones_like(share),
    "forced left out": lambda share, forced: (~forced).to(share.dtype),
    "times Z": lambda share, forced: share,
    "Z > 0.9": lambda share, forced: (share > 0.9).to(share.dtype),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder of a pretrained model; default: small exact policies")
    parser.add_argument("--policies", type=int, default=40)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    if options.model is None:
        for shift in (0.0, 2.0, 4.0):
            report_small(shift, options.policies, options.steps)
    else:
        report_model(options.model, options.questions, options.sessions, options.seed)
    return 0


# -- exact: replies of four tokens, of which a grammar allows half --------------------------------------------------

RETRY, ATTEMPTS = "four attempts", 4
TOKENS, ALLOWED, LENGTH, FEATURES = 6, 3, 4, 8
STATES = [prefix for length in range(LENGTH) for prefix in product(range(ALLOWED), repeat=length)]
REPLIES = list(product(range(ALLOWED), repeat=LENGTH))
# For each reply and position: the index of the state, and the token that follows.
STATE = torch.tensor([[STATES.index(reply[:length]) for length in range(LENGTH)] for reply in REPLIES])
TOKEN = torch.tensor(REPLIES)


@dataclass
class Small:
    """`batch` small policies. Their logits are linear in the features of a state; a state is the reply so far."""

    features: Tensor  # [batch, states, FEATURES]
    weights: Tensor  # [batch, TOKENS, FEATURES]
    reward: Tensor  # [batch, replies]

    @classmethod
    def drawn(cls, batch: int, shift: float) -> Small:
        """Draw random policies. `shift` is added to the logits of the forbidden tokens."""
        features = torch.randn(batch, len(STATES), FEATURES, dtype=torch.float64)
        features[..., -1] = 1
        weights = torch.randn(batch, TOKENS, FEATURES, dtype=torch.float64) / FEATURES**0.5
        weights[:, ALLOWED:, -1] += shift
        return cls(features, weights, torch.rand(batch, len(REPLIES), dtype=torch.float64))

    def log_probs(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probs of the allowed tokens in each state, without and with the grammar. Both tensors are
        [batch, states, ALLOWED]."""
        logits = self.features @ weights.transpose(1, 2)
        return logits.log_softmax(-1)[..., :ALLOWED], logits[..., :ALLOWED].log_softmax(-1)

    def update(self, weights: Tensor, way: str | None) -> Tensor:
        """Return the expected policy gradient of the rewards minus their mean. If `way` is None, it is the gradient of
        the probabilities with the grammar."""
        weights = weights.detach().requires_grad_()
        free, masked = self.log_probs(weights)
        if way == RETRY:
            self.retried(free).sum().backward()
            assert weights.grad is not None
            return weights.grad
        chances = of_replies(masked.detach()).exp()
        share = (free - masked).detach().exp()[..., 0]
        weigh = torch.ones_like(share) if way is None else WAYS[way](share, torch.zeros_like(share, dtype=torch.bool))
        used = of_replies((masked if way is None else free) * weigh[..., None])
        (chances * (self.reward - self.average(masked.detach())[:, None]) * used).sum().backward()
        assert weights.grad is not None
        return weights.grad

    def retried(self, free: Tensor) -> Tensor:
        """Return the expected reward of four attempts: of the first free reply that fits, or 0 if none fits."""
        chances = of_replies(free).exp()
        fits = chances.sum(1)
        return (1 - (1 - fits) ** ATTEMPTS) / fits * (chances * self.reward).sum(1)

    def average(self, log_probs: Tensor) -> Tensor:
        return (of_replies(log_probs).exp() * self.reward).sum(1)


def of_replies(log_probs: Tensor) -> Tensor:
    """Sum log-probs of tokens to log-probs of replies: [batch, states, ALLOWED] -> [batch, replies]."""
    return log_probs[:, STATE, TOKEN].sum(-1)


def report_small(shift: float, batch: int, steps: int) -> None:
    small = Small.drawn(batch, shift)
    exact, best = small.update(small.weights, None), small.reward.amax(1)
    fits = of_replies(small.log_probs(small.weights)[0]).exp().sum(1).mean()
    print(f"\n{batch} policies; without a grammar {fits:.2%} of their replies fit. After {steps} steps:")
    print(f"{'':16} {'cosine':>7} {'worst':>6} {'below the best':>15} {'fit without a grammar':>22}")
    for way in (None, *(way for way in WAYS if way != "forced left out"), RETRY):
        first, weights = small.update(small.weights, way), small.weights
        cosine = torch.cosine_similarity(first.flatten(1), exact.flatten(1))
        for _ in range(steps):
            weights = weights + small.update(weights, way)
        free, masked = small.log_probs(weights)
        reached = small.retried(free) if way == RETRY else small.average(masked)
        missed, fits = (best - reached).mean(), of_replies(free).exp().sum(1).mean()
        print(f"{way or 'with the mask':16} {cosine.mean():7.3f} {cosine.min():6.2f} {missed:15.3f} {fits:22.1%}")


# -- a pretrained model ----------------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {"length": {"type": "integer"}, "unit": {"enum": ["mm", "cm", "km"]}},
    "required": ["length", "unit"],
    "additionalProperties": False,
}
FACTORS = {"mm": 1000, "cm": 100}
LONGEST = 40


@dataclass
class Sampled:
    """Replies to one question, the tokens that the grammar allowed at each position, and the rewards."""

    prompt: list[int]
    replies: list[list[int]]
    allowed: list[Tensor]  # bool, [reply, vocabulary]
    rewards: list[float]


def report_model(path: Path, questions: int, sessions: int, seed: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    xgrammar = import_module("xgrammar")
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=model.config.vocab_size)
    grammar = xgrammar.GrammarCompiler(info).compile_json_schema(SCHEMA)
    draw, batches, fits = random.Random(seed), [], list[bool]()
    for _ in range(questions):
        unit, metres = draw.choice(list(FACTORS)), draw.randrange(2, 10)
        text = f"Convert {metres} metres to {unit}."
        messages = with_schema([{"role": "user", "content": text}], SCHEMA)
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        free = sample(model, tokenizer.eos_token_id, prompt, sessions, lambda: None)
        fits += [fit(tokenizer.decode(tokens, skip_special_tokens=True)) for tokens, _ in free]
        typed = sample(model, tokenizer.eos_token_id, prompt, sessions, lambda: xgrammar.GrammarMatcher(grammar))
        values = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens, _ in typed]
        rewards = [score(value, metres * FACTORS[unit], unit) for value in values]
        batches.append(Sampled(prompt, [tokens for tokens, _ in typed], [mask for _, mask in typed], rewards))
    share = mean(fits)
    print(
        f"{path.name}: {share:.1%} of {len(fits)} free replies fit, and one of 4 in {1 - (1 - share) ** ATTEMPTS:.1%}"
    )
    report_shares(model, batches)
    report_gradients(model, batches)


def sample(
    model: Any, end: int, prompt: list[int], count: int, matcher: Callable[[], Any]
) -> list[tuple[list[int], Tensor]]:
    """Sample `count` replies at temperature 1. Return each reply with the masks of its allowed tokens."""
    return [_sample(model, end, prompt, matcher()) for _ in range(count)]


@torch.no_grad()
def _sample(model: Any, end: int, prompt: list[int], matcher: Any) -> tuple[list[int], Tensor]:
    tokens, masks, cache, given = list[int](), list[Tensor](), None, prompt
    while len(tokens) < LONGEST and end not in tokens:
        output = model(torch.tensor([given]), past_key_values=cache, use_cache=True)
        logits, cache = output.logits[0, -1], output.past_key_values
        mask = torch.ones_like(logits, dtype=torch.bool) if matcher is None else allowed(matcher, len(logits))
        token = int(torch.multinomial(logits.masked_fill(~mask, -torch.inf).softmax(-1), 1))
        if matcher is not None:
            matcher.accept_token(token)
        tokens, masks, given = [*tokens, token], [*masks, mask], [token]
    return tokens, torch.stack(masks)


def allowed(matcher: Any, vocabulary: int) -> Tensor:
    words = torch.full((1, -(-vocabulary // 32)), -1, dtype=torch.int32)
    matcher.fill_next_token_bitmask(words)
    return (words[0, :, None] >> torch.arange(32) & 1).bool().flatten()[:vocabulary]


def fit(text: str) -> bool:
    try:
        jsonschema.validate(json.loads(text), SCHEMA)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def score(text: str, length: int, unit: str) -> float:
    """Return half a point for each right field, and 0 if the text does not fit the schema."""
    if not fit(text):
        return 0.0
    value = json.loads(text)
    return 0.5 * (value["length"] == length) + 0.5 * (value["unit"] == unit)


def log_probs(model: Any, batch: Sampled, i: int) -> tuple[Tensor, Tensor]:
    """Return the log-probs of a reply's tokens, without and with the grammar."""
    reply = batch.replies[i]
    logits = model(torch.tensor([[*batch.prompt, *reply]])).logits[0, len(batch.prompt) - 1 : -1]
    labels = torch.tensor(reply)[:, None]
    free, masked = (each.log_softmax(-1) for each in (logits, logits.masked_fill(~batch.allowed[i], -1e9)))
    return free.gather(1, labels)[:, 0], masked.gather(1, labels)[:, 0]


@torch.no_grad()
def report_shares(model: Any, batches: list[Sampled]) -> None:
    pairs = [log_probs(model, batch, i) for batch in batches for i in range(len(batch.replies))]
    log_shares = [free - masked for free, masked in pairs]
    shares = torch.cat(log_shares).exp()
    forced = torch.cat([mask.sum(-1) == 1 for batch in batches for mask in batch.allowed])
    chosen = shares[~forced]
    replies, spread = [float(each.sum()) for each in log_shares], torch.quantile(chosen, torch.tensor([0.1, 0.5, 0.9]))
    print(
        f"{len(replies)} replies of the grammar, {len(shares)} tokens, {forced.double().mean():.1%} without alternative"
    )
    print(f"Z of the others: 10 %, median, 90 % {', '.join(f'{each:.3f}' for each in spread)}")
    print(f"{(chosen < 0.9).double().mean():.1%} of the others have Z below 0.9")
    print(f"log-probability of the grammar in a reply: median {median(replies):.1f}, least {min(replies):.1f}")


def report_gradients(model: Any, batches: list[Sampled]) -> None:
    exact = gradient(model, batches, None)
    print(f"gradient of {sum(len(batch.replies) for batch in batches)} replies, against that with the mask")
    for way in WAYS:
        other = gradient(model, batches, way)
        cosine = torch.cosine_similarity(other, exact, dim=0)
        print(f"{way:16} cosine {cosine:6.3f}, norm {other.norm() / exact.norm():5.2f} times")


def gradient(model: Any, batches: list[Sampled], way: str | None) -> Tensor:
    """Return the policy gradient of the sampled replies, whose advantage is the reward minus the mean of the question.
    If `way` is None, the log-probs are those with the mask."""
    model.zero_grad()
    for batch in batches:
        average = mean(batch.rewards)
        for i, reward in enumerate(batch.rewards):
            free, masked = log_probs(model, batch, i)
            forced, share = batch.allowed[i].sum(-1) == 1, (free - masked).exp().detach()
            used = masked if way is None else free * WAYS[way](share, forced)
            if reward != average:
                (-(reward - average) * used.sum()).backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


if __name__ == "__main__":
    sys.exit(main())
