"""Supervised training of a tiny model on demonstrations, so that reinforcement learning has a place to start."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from verl_mas.config.values import Count, NotNegative, Positive, check_fields, load_dataclass
from verl_mas.errors import ConfigError
from verl_mas.warmup.demonstrations import Lesson
from verl_mas.warmup.tiny_model import TURN_END, tiny_model

# The contents alone: roles are told apart by the prompts, and every token counts on a laptop.
BARE_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '" + TURN_END + "' }}{% endif %}{% endfor %}"
)

PATH = "warm-up"


@dataclass(frozen=True)
class WarmUp:
    """How a tiny model is made and taught."""

    hidden: Count = 64
    """Width of the model."""

    layers: Count = 2
    """Layers of the model."""

    steps: Count = 800
    """Optimiser steps."""

    batch: Count = 128
    """Lessons per step."""

    learning_rate: Positive = 2e-3
    """The highest one; it rises in the first twentieth of the steps and falls to zero afterwards."""

    lessons: Count = 300_000
    """Lessons to draw from, each seen `steps * batch / lessons` times."""

    texts: Count = 10_000
    """The tokenizer is made of the first `texts` lessons."""

    vocabulary: Count = 1024
    """Tokens of the tokenizer."""

    prompts: NotNegative = 0.0
    """Weight of the prompts' own tokens beside the replies'. A model that must copy what it reads learns that far
    sooner by reading, too; one whose prompts say all in one glance would only be slower."""

    seed: int = 0
    """Of the model's first weights and of the order of lessons."""

    start: str = ""
    """A folder with a model to be taught on, instead of a new one."""

    def __post_init__(self) -> None:
        check_fields(self, PATH)
        if self.start and not (Path(self.start) / "config.json").is_file():
            raise ConfigError(f"{PATH}.start={self.start}", rule="it is a folder with a model", fix="leave it out")

    def changed(self, given: Mapping[str, Any]) -> WarmUp:
        """With values from the command line."""
        return load_dataclass(WarmUp, {**asdict(self), **given}, PATH)


Progress = Callable[[int, float], None]
# A prompt with its reply in tokens, and how many tokens the reply has.
Taught = tuple[list[int], int]


def warm_up(folder: Path, lessons: Iterator[Lesson], setting: WarmUp, progress: Progress) -> Path:
    """Save a model that was taught `lessons`, with a tokenizer whose template adds nothing."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    shown = list(islice(lessons, setting.lessons))
    begun = Path(setting.start) if setting.start else _new_model(folder, shown, setting)
    tokenizer = AutoTokenizer.from_pretrained(begun)
    tokenizer.chat_template = BARE_TEMPLATE
    tokenizer.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(begun, dtype=torch.float32)
    _teach(model, _tokens(tokenizer, shown), setting, progress)
    model.save_pretrained(folder)
    return folder


def log_loss(step: int, loss: float) -> None:
    """How a warm-up goes."""
    if step % 100 == 0:
        sys.stderr.write(f"warm-up step {step}: loss {loss:.3f}\n")


def _new_model(folder: Path, shown: list[Lesson], setting: WarmUp) -> Path:
    return tiny_model(
        folder,
        hidden=setting.hidden,
        layers=setting.layers,
        text=(text for lesson in shown[: setting.texts] for text in (lesson.prompt, lesson.reply)),
        vocabulary=setting.vocabulary,
        max_length=512,
        seed=setting.seed,
    )


def _tokens(tokenizer, lessons: list[Lesson]) -> list[Taught]:
    """As the template has them in training: the contents, and no token that spans prompt and reply."""
    prompts = tokenizer([lesson.prompt for lesson in lessons], add_special_tokens=False)["input_ids"]
    replies = tokenizer([lesson.reply + TURN_END for lesson in lessons], add_special_tokens=False)["input_ids"]
    return [(prompt + reply, len(reply)) for prompt, reply in zip(prompts, replies, strict=True)]


def _teach(model, taught: list[Taught], setting: WarmUp, progress: Progress) -> None:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=setting.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, setting.learning_rate, total_steps=setting.steps + 1, pct_start=0.05
    )
    order = torch.Generator().manual_seed(setting.seed)
    model.train()
    for step in range(setting.steps):
        chosen = torch.randint(len(taught), (setting.batch,), generator=order).tolist()
        loss = _loss(model, [taught[place] for place in chosen], setting.prompts)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        progress(step + 1, loss.item())


def _loss(model, rows: list[Taught], prompts: float = 0.0):
    """Cross entropy of the replies, and of the prompts; rows are padded on the right, where nothing attends to it."""
    import torch

    length = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    read, said = (torch.zeros(len(rows), length, dtype=torch.bool) for _ in range(2))
    for place, (tokens, reply) in enumerate(rows):
        ids[place, : len(tokens)] = torch.tensor(tokens)
        read[place, 1 : len(tokens) - reply] = True
        said[place, len(tokens) - reply : len(tokens)] = True
    hidden = model.model(input_ids=ids[:, :-1]).last_hidden_state

    def entropy(of):
        # Logits of these tokens alone: those of all would cost more than the model.
        return torch.nn.functional.cross_entropy(model.lm_head(hidden[of[:, 1:]]), ids[:, 1:][of[:, 1:]])

    return entropy(said) + prompts * entropy(read) if prompts else entropy(said)
