"""Measure the time saved by computing shared prompt prefixes only once, in training and in the embedded engine.

    python benchmarks/prefixes.py                              # training: lengths of replies, sizes of groups, prompts
    verl-mas data smollm2 --out runs/smollm2
    python benchmarks/prefixes.py --model runs/smollm2/model   # a step of smollm2/laptop, and the engine

Training is an update by verl's worker on the CPU (one optimiser step, all weights), with trees of prefixes and with
verl's own padded rows, in the order A B B A. Without --model, an update has groups of random rows, at least one group
and 2,000 tokens, on a model with the width of SmolLM2-135M and a tenth of its layers and vocabulary; the last column
says which of both `+platform=cpu` chooses. With --model, an update has 32 rows of an agent, 8 sessions for each of 4
words. The engine gets 64 scouts at once, and each judge when its scout ends; its baseline shares only equal prompts.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tensordict import TensorDict
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedModel, PreTrainedTokenizerBase

os.environ.update(VERL_PLATFORM="cpu", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1")
os.environ["MASTER_PORT"] = "0"

from verl_mas.config.compose import compose  # after the variables above, which verl reads on import
from verl_mas.config.hydra.recipe.smollm2.words import THINGS, judging, secrets, telling
from verl_mas.engines.platform import fsdp
from verl_mas.engines.transformers.batcher import ContinuousBatcher
from verl_mas.engines.transformers.request import RequestSampling
from verl_mas.engines.transformers.server import use_onednn
from verl_mas.testing.tiny_model import tiny_model
from verl_mas.workflow import Message

REPLY, SESSIONS, ROWS = 10, 8, 32
REPLIES, GROUPS, PROMPTS = (16, 64, 256, 512), (4, 8, 16), (50, 400)
PART = 10  # the model has one in PART of SmolLM2's layers and vocabulary
BUDGET = 4096  # tokens of a micro batch
LEAST = 2000  # minimum of tokens in an update, so that the optimiser's step takes little of its time
Row = tuple[list[int], int]  # tokens, and the length of the prompt at their start
Encode = Callable[[list[Message]], list[int]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--replies", type=int, nargs="*", default=REPLIES)
    parser.add_argument("--groups", type=int, nargs="*", default=GROUPS)
    parser.add_argument("--prompts", type=int, nargs="*", default=PROMPTS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.model is not None:
        _smollm2(options.model, options.runs)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        tiny_model(Path(folder))
        AutoModelForCausalLM.from_config(_part_of_smollm2()).save_pretrained(folder)
        trainer = _Trainer(Path(folder))
        _print("prompt  reply  rows  shared  rows, s  trees, s  ratio  chosen")
        for prompt, reply, rows in product(options.prompts, options.replies, options.groups):
            _measured(trainer, prompt, reply, rows)
    return 0


def _part_of_smollm2() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=49152 // PART,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30 // PART,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )


def _measured(trainer: _Trainer, prompt: int, reply: int, rows: int) -> None:
    rng = random.Random(0)
    made: list[Row] = []
    while sum(len(tokens) for tokens, _ in made) < LEAST:
        first = [rng.randrange(10, 4000) for _ in range(prompt)]
        made += [(first + [rng.randrange(10, 4000) for _ in range(reply)], prompt) for _ in range(rows)]
    chosen = "trees" if trainer.chooses(made) else "rows"
    before, after = _timed({"rows": trainer.by_rows, "trees": trainer.by_trees}, (made,), 2)
    _print(
        f"{prompt:6} {reply:6} {rows:5} {prompt / (prompt + reply):7.0%} {before:8.2f} {after:9.2f} "
        f"{after / before:6.2f}  {chosen}"
    )


def _smollm2(path: Path, runs: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(path)
    encode: Encode = partial(tokenizer.apply_chat_template, add_generation_prompt=True, return_dict=False)
    trainer = _Trainer(path)
    ways = {"rows": trainer.by_rows, "trees": trainer.by_default}
    for agent in ("scout", "judge"):
        _report(f"training, {agent}", ways, (_rows(agent, encode),), runs)
    base = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa")
    use_onednn(base)
    engines = {"equal prompts": partial(_sampled, _EqualPrompts), "beginnings": partial(_sampled, ContinuousBatcher)}
    _report("engine", engines, (base, tokenizer, encode), runs)


class _Trainer:
    """verl's training worker, without Ray."""

    def __init__(self, model: Path):
        from verl.workers.engine_workers import ActorRolloutRefWorker

        section, budget = "actor_rollout_ref", "max_token_len_per_gpu"
        budgets = [f"{section}.actor.ppo_{budget}={BUDGET}", f"{section}.rollout.log_prob_{budget}={BUDGET}"]
        composed = compose(["+platform=cpu", "+recipe=first_run/laptop", f"{section}.model.path={model}", *budgets])
        self.worker = ActorRolloutRefWorker(config=composed.actor_rollout_ref, role="actor")
        self.worker.init_model()
        assert self.worker.actor is not None
        self.engine: Any = self.worker.actor.engine

    def by_rows(self, rows: Sequence[Row]) -> None:
        self.engine.share(False)
        self._update(rows)

    def by_trees(self, rows: Sequence[Row]) -> None:
        with _always_trees():
            self.by_default(rows)

    def by_default(self, rows: Sequence[Row]) -> None:
        self.engine.share(True)
        self._update(rows)

    def chooses(self, rows: Sequence[Row]) -> bool:
        self.by_default(rows)
        return bool(self.engine._trees)  # noqa: SLF001

    def _update(self, rows: Sequence[Row]) -> None:
        from verl.utils import tensordict_utils as tu

        made = [_fields(*row) for row in rows]
        columns = {
            name: torch.nested.as_nested_tensor([row[name] for row in made], layout=torch.jagged) for name in made[0]
        }
        data = TensorDict(columns, batch_size=len(rows))
        tu.assign_non_tensor(data, calculate_entropy=False, global_batch_size=len(rows), num_mini_batch=1, epochs=1)
        tu.assign_non_tensor(data, distillation_use_topk=False, distillation_only=False, seed=1, temperature=1.0)
        self.worker.update_actor(data)


@contextmanager
def _always_trees() -> Iterator[None]:
    before, fsdp.WORTH = fsdp.WORTH, math.inf
    try:
        yield
    finally:
        fsdp.WORTH = before


def _fields(tokens: list[int], prompt: int) -> dict[str, torch.Tensor]:
    reply = torch.ones(len(tokens) - prompt)
    return {
        "prompts": torch.tensor(tokens[:prompt]),
        "responses": torch.tensor(tokens[prompt:]),
        "input_ids": torch.tensor(tokens),
        "position_ids": torch.arange(len(tokens)),
        "attention_mask": torch.ones(len(tokens), dtype=torch.int64),
        "response_mask": reply.long(),
        "loss_mask": reply.long(),
        "advantages": reply,
        "old_log_probs": reply * -8,
    }


def _timed(ways: Mapping[str, Callable[..., object]], arguments: Sequence[object], runs: int) -> list[float]:
    """Return the median CPU seconds of each of two ways, run in the order A B B A."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for run in range(runs):
        for name in list(ways) if run % 2 == 0 else reversed(ways):
            begin = time.process_time()
            ways[name](*arguments)
            seconds[name].append(time.process_time() - begin)
    return [median(found) for found in seconds.values()]


def _report(what: str, ways: Mapping[str, Callable[..., object]], arguments: Sequence[object], runs: int) -> None:
    for way in ways.values():
        way(*arguments)  # warms up
    (slow, fast), (before, after) = ways, _timed(ways, arguments, runs)
    _print(f"{what:16} {slow} {before:.1f} CPU s, {fast} {after:.1f} CPU s: {after / before:.2f} of the time")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class _EqualPrompts(ContinuousBatcher):
    def _shared(self, adapter: str | None, prompt: tuple[int, ...]) -> tuple[int, int]:
        return 0, 0


def _sampled(
    kind: type[ContinuousBatcher], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, encode: Encode
) -> None:
    batcher = kind(model, max_length=128, eos=[tokenizer.eos_token_id], seed=0)
    sampling = RequestSampling(max_tokens=REPLY, temperature=0.7)
    words = secrets("word", "train", 8) * SESSIONS
    scouts = {id(batcher.submit(encode(telling(word, "")), sampling)): word for word in words}
    while not batcher.idle:
        for sample in batcher.step():
            if word := scouts.pop(id(sample), None):
                note = tokenizer.decode(sample.tokens, skip_special_tokens=True)
                batcher.submit(encode(judging(word, note)), sampling)


def _rows(agent: str, encode: Encode) -> list[Row]:
    rng, rows = random.Random(0), list[Row]()
    for word in secrets("word", "train", ROWS // SESSIONS):
        for _ in range(SESSIONS):
            note = f"The secret word is {rng.choice(THINGS)}."
            prompt = encode(telling(word, "") if agent == "scout" else judging(word, note))
            rows.append((prompt + [rng.randrange(1000, 40000) for _ in range(REPLY)], len(prompt)))
    return rows


if __name__ == "__main__":
    sys.exit(main())
