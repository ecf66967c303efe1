"""A tiny Qwen2 with random weights and its tokenizer, made without a network."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from verl_mas.errors import ConfigError
from verl_mas.verl_.types import Fields

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen2Config

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_model(
    path: str | os.PathLike[str],
    *,
    parameters: int = 100_000,
    hidden: int | None = None,
    layers: int | None = None,
    tokenizer: PreTrainedTokenizerFast | None = None,
    initial: float = 0.02,
    seed: int = 0,
) -> Path:
    """Save a random Qwen2 with its tokenizer in `path`; the same arguments give the same weights.

    The width is `hidden`, or else the width that gives about `parameters`. `initial` is the standard deviation of the
    weights. Without a `tokenizer`, a token is a byte.
    """
    from transformers import Qwen2ForCausalLM

    tokenizer = tokenizer or byte_tokenizer()
    config = _config(tokenizer, hidden, layers) if hidden else _nearest_config(tokenizer, parameters, layers)
    config.initializer_range = initial
    tokenizer.save_pretrained(path)
    return save_random(path, partial(Qwen2ForCausalLM, config), seed)


def save_random(path: str | os.PathLike[str], model: Callable[[], PreTrainedModel], seed: int) -> Path:
    """Make and save a model. Its random weights depend on the seed alone."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model().save_pretrained(path)
    return Path(path)


def byte_tokenizer(
    text: Iterable[str] | None = None, vocabulary: int = 1024, max_length: int = 4096
) -> PreTrainedTokenizerFast:
    """Make a byte-level tokenizer with ChatML; any string round-trips. With `text`, train a BPE of up to `vocabulary`
    tokens on it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    specials = [END_OF_TEXT, TURN_START, TURN_END]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary if text else len(specials) + len(alphabet),
        special_tokens=specials,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(text or [], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        chat_template=CHATML,
        clean_up_tokenization_spaces=False,
        model_max_length=max_length,
    )


def _config(tokenizer: PreTrainedTokenizerFast, hidden: int, layers: int | None) -> Qwen2Config:
    from transformers import Qwen2Config

    heads = max(2, hidden // 64)
    if hidden % (2 * heads):
        fix = f"use hidden={math.ceil(hidden / (2 * heads)) * 2 * heads}"
        raise ConfigError(f"hidden={hidden}", rule=f"the width must be a multiple of twice the {heads} heads", fix=fix)
    return Qwen2Config(**settings_of(tokenizer, hidden, layers or max(2, hidden // 64), heads))


def settings_of(tokenizer: PreTrainedTokenizerFast, hidden: int, layers: int, heads: int) -> Fields:
    """Return the settings of a language model by transformers' names."""
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2 if heads % 2 == 0 else heads,
        "max_position_embeddings": tokenizer.model_max_length,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "dtype": "float32",
    }


def _nearest_config(tokenizer: PreTrainedTokenizerFast, parameters: int, layers: int | None) -> Qwen2Config:
    def distance(width: int) -> int:
        # Count only the weights of the matrices, because biases and norms have few weights. If the number of heads is
        # odd, there are as many key-value heads as heads; otherwise, there are half as many.
        attention = 3 + max(2, width // 64) % 2
        per_layer = (attention + 3 * 4) * width**2
        return abs(len(tokenizer) * width + (layers or max(2, width // 64)) * per_layer - parameters)

    return _config(tokenizer, min((*range(32, 64, 4), *range(64, 8192, 64)), key=distance), layers)
