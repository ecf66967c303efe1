"""What it saves to compute once what prompts begin with: in training, and in the embedded engine. A pretrained model.

    verl-mas data smollm2 --out runs/smollm2
    python benchmarks/prefixes.py --model runs/smollm2/model

The rows are those of a step of smollm2/laptop: 8 words, 8 sessions each. Training is a forward and a backward pass over
32 rows of an agent, LoRA of rank 16 on the attention; the baseline is padded rows with logits for every token. The
engine gets 64 scouts at once, and each judge when its scout ends; the baseline shares equal prompts alone.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from verl_mas.engines.transformers.batcher import ContinuousBatcher
from verl_mas.engines.transformers.request import RequestSampling
from verl_mas.engines.transformers.server import use_onednn
from verl_mas.gym.secret_words import THINGS, judging, secrets, telling
from verl_mas.platform.prefixes import Tree
from verl_mas.workflow import Message

REPLY, SESSIONS, ROWS = 10, 8, 32
Row = tuple[list[int], int]  # tokens, and how many of them are the prompt
Encode = Callable[[list[Message]], list[int]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    encode: Encode = partial(tokenizer.apply_chat_template, add_generation_prompt=True, return_dict=False)
    base = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32, attn_implementation="sdpa")
    use_onednn(base)
    engines = {"equal prompts": partial(_sampled, _EqualPrompts), "beginnings": partial(_sampled, ContinuousBatcher)}
    _report("engine", engines, (base, tokenizer, encode), options.runs)
    lora = LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
    for agent in ("scout", "judge"):
        rows = _rows(agent, encode)
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32, attn_implementation="sdpa")
        trained = get_peft_model(model, lora).train()
        _report(f"training, {agent}", {"rows": _of_rows, "tree": _of_tree}, (trained, rows), options.runs)
    return 0


def _report(what: str, ways: dict[str, Callable[..., object]], arguments: Sequence[object], runs: int) -> None:
    for way in ways.values():
        way(*arguments)  # warms up
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(runs):
        for name, way in ways.items():
            begin = time.perf_counter()
            way(*arguments)
            seconds[name].append(time.perf_counter() - begin)
    (slow, before), (fast, after) = ((name, median(found)) for name, found in seconds.items())
    sys.stdout.write(f"{what:16} {slow} {before:.1f} s, {fast} {after:.1f} s: {after / before:.2f} of the time\n")
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


def _of_rows(model: torch.nn.Module, rows: list[Row]) -> None:
    length = max(len(tokens) for tokens, _ in rows)
    ids = torch.tensor([tokens + [0] * (length - len(tokens)) for tokens, _ in rows])
    seen = torch.tensor([[1] * len(tokens) + [0] * (length - len(tokens)) for tokens, _ in rows])
    logits = model(input_ids=ids, attention_mask=seen, use_cache=False).logits
    log_probs = torch.log_softmax(logits[:, :-1], dim=-1).gather(-1, ids[:, 1:, None])[..., 0]
    of_replies = [log_probs[row, prompt - 1 : len(tokens) - 1] for row, (tokens, prompt) in enumerate(rows)]
    torch.cat(of_replies).sum().backward()


def _of_tree(model: torch.nn.Module, rows: list[Row]) -> None:
    tree = Tree.of([tokens for tokens, _ in rows], [prompt for _, prompt in rows])
    logits = model(
        input_ids=torch.tensor([tree.tokens]),
        position_ids=torch.tensor([tree.depths]),
        attention_mask=tree.mask[None, None],
        logits_to_keep=torch.tensor(tree.predicting),
        use_cache=False,
    ).logits[0]
    tree.log_probs(logits).sum().backward()


if __name__ == "__main__":
    sys.exit(main())
