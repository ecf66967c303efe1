"""Warm-up of a tiny model on demonstrations (acts of scripted experts), and the data sets that can write such a
model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, TypeVar

from verl_mas.cli._arguments import add_rows, add_seed, add_settings, check_noise, values
from verl_mas.config.schema import FaultSpec
from verl_mas.config.values import Count, NotNegative, Positive, check_fields, load_dataclass
from verl_mas.data.dataset import DataSet, Loader, Prepared
from verl_mas.errors import ConfigError
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.testing.tiny_model import TURN_END, byte_tokenizer, tiny_model
from verl_mas.testing.tiny_vision_model import IMAGE, VISION_END, VISION_START, tiny_vision_model
from verl_mas.workflow import Message, Request, Task, Workflow
from verl_mas.workflow.run import run

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

    Reader = PreTrainedTokenizerBase | ProcessorMixin

Expert = Callable[[Request], str]  # the reply of an expert to a request
W = TypeVar("W", bound=Workflow)


def tiny(kind: type[W], **args: object) -> W:
    """Make the workflow, with prompts for a tiny model."""
    return load_dataclass(kind, {"text": "compact", **args}, "mas.workflow.args")


@dataclass(frozen=True)
class Lesson:
    """One demonstrated act: the prompt, and the reply to learn."""

    agent: str
    prompt: str
    reply: str
    image: Image | None = None  # above the text of the prompt


def demonstrate(workflow: Workflow, task: Task, expert: Expert) -> list[Lesson]:
    """Collect the acts of one session, with the workflow's own prompts and the expert's replies."""
    llm = ScriptedLLM(lambda request, _: expert(request))
    session = run(workflow, task, llm, faults=FaultSpec(retries=0))
    return [Lesson(reply.agent, bare(reply.messages), reply.text) for reply in session.replies]


def bare(messages: Sequence[Message]) -> str:
    """Format the messages as a warmed-up model's chat template does."""
    return "".join(message["content"] + TURN_END * (message["role"] == "assistant") for message in messages)


# A chat template that writes only the contents of messages. The prompts themselves identify the roles, and a model on
# a laptop is faster with fewer tokens.
BARE_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '" + TURN_END + "' }}{% endif %}{% endfor %}"
)
# The same template, for messages whose content may have images.
SEEN_TEMPLATE = BARE_TEMPLATE.replace(
    "{{ message['content'] }}",
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{{ part['text'] if part['type'] == 'text' else '" + VISION_START + IMAGE + VISION_END + "' }}"
    "{% endfor %}{% endif %}",
)

PATH = "warm-up"


@dataclass(frozen=True)
class WarmUp:
    """Settings with which a tiny model is created and trained."""

    hidden: Count = 64
    """Width of the model."""

    layers: Count = 2
    """Layers of the model."""

    initial: Positive = 0.02
    """Standard deviation of the initial weights. A model of width 32 learns with 0.1, but hardly with 0.02."""

    steps: Count = 800
    """Optimiser steps."""

    batch: Count = 128
    """Lessons per step."""

    learning_rate: Positive = 2e-3
    """The maximum of a one-cycle schedule, reached after a twentieth of the steps."""

    lessons: Count = 300_000
    """Distinct lessons, each used `steps * batch / lessons` times on average."""

    texts: Count = 10_000
    """Number of lessons on which the tokenizer is trained."""

    vocabulary: Count = 1024
    """The number of tokens of the tokenizer."""

    prompts: NotNegative = 0.0
    """Weight of the loss on the prompts' tokens. With this loss, a model learns faster to copy from long prompts. For
    short prompts, it is not needed."""

    seed: int = 0
    """Seed of the initial weights and of the order of lessons."""

    start: str = ""
    """A folder with a model to train further, instead of a new one."""

    def __post_init__(self) -> None:
        check_fields(self, PATH)
        if self.start and not (Path(self.start) / "config.json").is_file():
            rule = "the folder has a model with its config.json"
            raise ConfigError(f"{PATH}.start={self.start}", rule=rule, fix="leave it out")

    def changed(self, given: Mapping[str, object]) -> WarmUp:
        """Return the configuration with values from the command line."""
        if "start" in given and (own := {"hidden", "layers", "initial", "vocabulary", "texts"} & given.keys()):
            rule = "a model that is trained further keeps its shape and tokenizer"
            raise ConfigError(f"{PATH}.{min(own)} with {PATH}.start", rule=rule, fix="leave it out")
        return load_dataclass(WarmUp, {**asdict(self), **given}, PATH)


Progress = Callable[[int, float], None]  # called with the step and its loss
TokenizedLesson = tuple[list[int], int]  # tokens of a prompt and its reply, and the number of tokens of the reply


def warm_up(folder: Path, lessons: Iterator[Lesson], config: WarmUp, progress: Progress) -> Path:
    """Train a model on `lessons` and save it, with a tokenizer whose chat template adds no text. If a lesson has an
    image, the model is a vision-language model."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor

    used = list(islice(lessons, config.lessons))
    sees = any(lesson.image for lesson in used)
    start = Path(config.start) if config.start else folder
    if not config.start:
        texts = (text for lesson in used[: config.texts] for text in (lesson.prompt, lesson.reply))
        make = tiny_vision_model if sees else tiny_model
        make(
            folder,
            hidden=config.hidden,
            layers=config.layers,
            tokenizer=byte_tokenizer(texts, config.vocabulary, max_length=512),
            initial=config.initial,
            seed=config.seed,
        )
    # For a text model, AutoProcessor returns the tokenizer.
    reader = AutoProcessor.from_pretrained(start)
    for part in {reader, getattr(reader, "tokenizer", reader)}:
        part.chat_template = SEEN_TEMPLATE if sees else BARE_TEMPLATE
    reader.save_pretrained(folder)
    kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    model = kind.from_pretrained(start, dtype=torch.float32)
    _train(model, tokenize(reader, used), config, progress, lambda chosen: _pixels(reader, [used[i] for i in chosen]))
    model.save_pretrained(folder)
    return folder


def log_loss(step: int, loss: float) -> None:
    """Report the loss every 100 steps."""
    if step % 100 == 0:
        sys.stderr.write(f"warm-up step {step}: loss {loss:.3f}\n")


def tokenize(reader: Reader, lessons: list[Lesson]) -> list[TokenizedLesson]:
    """Tokenize prompt and reply separately, as reinforcement learning does."""
    tokenizer = getattr(reader, "tokenizer", reader)
    texts = [_marks(reader, lesson.image) + lesson.prompt for lesson in lessons]
    prompts = tokenizer(texts, add_special_tokens=False)["input_ids"]
    replies = tokenizer([lesson.reply + TURN_END for lesson in lessons], add_special_tokens=False)["input_ids"]
    return [(prompt + reply, len(reply)) for prompt, reply in zip(prompts, replies, strict=True)]


def _marks(reader: Reader, image: Image | None) -> str:
    """Return the text that a processor writes into a prompt for an image: a placeholder per image token."""
    if image is None:
        return ""
    processor = reader.image_processor
    patches: int = processor.get_number_of_image_patches(image.height, image.width, {})
    return VISION_START + IMAGE * (patches // int(processor.merge_size) ** 2) + VISION_END


def _pixels(reader: Reader, lessons: list[Lesson]) -> Mapping[str, Tensor]:
    if not (images := [lesson.image for lesson in lessons if lesson.image]):
        return {}
    return dict(reader.image_processor(images=images, return_tensors="pt"))


def _train(
    model: PreTrainedModel,
    lessons: list[TokenizedLesson],
    config: WarmUp,
    progress: Progress,
    pixels: Callable[[list[int]], Mapping[str, Tensor]],
) -> None:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.learning_rate, total_steps=config.steps + 1, pct_start=0.05
    )
    order = torch.Generator().manual_seed(config.seed)
    model.train()
    for step in range(config.steps):
        chosen = torch.randint(len(lessons), (config.batch,), generator=order).tolist()
        mean_loss = loss(model, [lessons[place] for place in chosen], config.prompts, pixels(chosen))
        if not mean_loss.isfinite():
            value, rule = f"the loss of step {step + 1} is {mean_loss.item()}", "the loss of a warm-up is finite"
            raise ConfigError(value, rule=rule, fix=f"lower {PATH}.learning_rate={config.learning_rate}")
        optimizer.zero_grad()
        mean_loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        progress(step + 1, mean_loss.item())


def loss(
    model: PreTrainedModel,
    rows: list[TokenizedLesson],
    prompts: float = 0.0,
    pixels: Mapping[str, Tensor] = MappingProxyType({}),
) -> Tensor:
    """Cross entropy of the replies, plus `prompts` times the cross entropy of the prompts. No attention mask is needed,
    because attention is causal and the padding is on the right."""
    import torch

    length = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    of_prompts, of_replies = (torch.zeros(len(rows), length, dtype=torch.bool) for _ in range(2))
    for place, (tokens, reply) in enumerate(rows):
        ids[place, : len(tokens)] = torch.tensor(tokens)
        of_prompts[place, 1 : len(tokens) - reply] = True
        of_replies[place, len(tokens) - reply : len(tokens)] = True
    # With images, the model derives the position ids from the types of the tokens: text or image.
    places = {"mm_token_type_ids": (ids[:, :-1] == model.config.image_token_id).int()} if pixels else {}
    hidden = model.base_model(input_ids=ids[:, :-1], **pixels, **places).last_hidden_state
    head = model.get_output_embeddings()

    def entropy(mask: Tensor) -> Tensor:
        # Compute the logits of these tokens only, because the logits of all tokens would cost more than the model.
        return torch.nn.functional.cross_entropy(head(hidden[mask[:, 1:]]), ids[:, 1:][mask[:, 1:]])

    return entropy(of_replies) + prompts * entropy(of_prompts) if prompts else entropy(of_replies)


class Generated(DataSet):
    """A data set of any size and, on request, a tiny model that is warmed up on demonstrations of its tasks."""

    warm_up: ClassVar[WarmUp]
    # Default number of rows to train on (None: all rows), and default number of held-out rows.
    rows: ClassVar[tuple[int | None, int]]
    # Options that affect only the demonstrations, and not the rows.
    of_demonstrations: ClassVar[Sequence[str]] = ()

    def options(self, parser: argparse.ArgumentParser) -> None:
        """Add the data set's own options."""

    def generate(self, options: argparse.Namespace) -> Prepared:
        raise NotImplementedError

    def lessons(self, options: argparse.Namespace) -> Iterator[Lesson]:
        """Return an endless iterator of demonstrations. The call refuses wrong options before anything is written."""
        raise NotImplementedError

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        self.options(parser)
        add_rows(parser, train=self.rows[0], test=self.rows[1])
        add_seed(parser, "seed of what is generated; the held-out rows of a puzzle are the same for every seed")
        parser.add_argument(
            "--noise",
            type=float,
            metavar="SHARE",
            help="also write a tiny model to model/, warmed up on demonstrations with this share of errors",
        )
        add_settings(parser, "--warm-up", "settings of the warm-up: steps, batch, hidden, ...")
        self.unset = {name: parser.get_default(name) for name in ("warm_up", *self.of_demonstrations)}

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        check_noise(options.noise)
        for name, unset in self.unset.items() if options.noise is None else ():
            if getattr(options, name) != unset:
                option = f"--{name.replace('_', '-')}"
                rule = "it belongs to the model, which is written only with --noise"
                raise ConfigError(
                    f"{option} without --noise", rule=rule, fix=f"add --noise 0.25, or leave out {option}"
                )
        config = self.warm_up.changed({"seed": options.seed} | values(options.warm_up, "--warm-up NAME=VALUE"))
        lessons = None if options.noise is None else self.lessons(options)
        prepared = self.generate(options)
        if lessons is not None:
            warm_up(options.out / "model", lessons, config, log_loss)
        return prepared
