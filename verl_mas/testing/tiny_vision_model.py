"""A tiny Qwen3-VL with random weights and its processor, made without a network. It needs torchvision."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from verl_mas.testing.tiny_model import byte_tokenizer, save_random, settings_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLProcessor

VISION_START, VISION_END, IMAGE, VIDEO = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"
# Side of a patch in pixels, and patches per side of a token: a token is a square of 16 x 16 pixels.
PATCH, MERGE = 8, 2
TOKEN = PATCH * MERGE

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] in ['image', 'image_url'] %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{{ '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_vision_model(
    path: str | os.PathLike[str],
    *,
    hidden: int = 64,
    layers: int = 2,
    tokenizer: PreTrainedTokenizerFast | None = None,
    largest: int = 128,
    initial: float = 0.02,
    seed: int = 0,
) -> Path:
    """Save a random Qwen3-VL with tokenizer and processor in `path`; the same arguments give the same weights.

    `hidden` is the width of text and vision, a multiple of 32. An image is scaled to at most `largest` x `largest`
    pixels, and every 16 x 16 pixels are a token. Without a `tokenizer`, a token of text is a byte; image tokens are
    added to the given tokenizer.
    """
    from transformers import Qwen3VLForConditionalGeneration

    tokenizer = tokenizer or byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [VISION_START, VISION_END, IMAGE, VIDEO]})
    tokenizer.chat_template = CHATML
    config = _config(tokenizer, hidden, layers, initial)
    _processor(tokenizer, largest).save_pretrained(path)
    return save_random(path, partial(Qwen3VLForConditionalGeneration, config), seed)


def _processor(tokenizer: PreTrainedTokenizerFast, largest: int) -> Qwen3VLProcessor:
    from transformers import Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

    size = {"shortest_edge": TOKEN * TOKEN, "longest_edge": largest * largest}
    grid = {"patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": 2, "size": size}
    colours = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    return Qwen3VLProcessor(
        Qwen2VLImageProcessor(**grid, **colours),
        tokenizer,
        Qwen3VLVideoProcessor(**grid, **colours),
        chat_template=tokenizer.chat_template,
    )


def _config(tokenizer: PreTrainedTokenizerFast, hidden: int, layers: int, initial: float) -> Qwen3VLConfig:
    from transformers import Qwen3VLConfig

    heads = max(2, hidden // 32)
    head = hidden // heads
    turns = head // 2  # frequencies of a head, divided among time, height and width
    text = {
        **settings_of(tokenizer, hidden, layers, heads),
        "head_dim": head,
        "initializer_range": initial,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "mrope_interleaved": True,
            "mrope_section": [turns - 2 * (turns // 3), turns // 3, turns // 3],
        },
    }
    vision = {
        "depth": 1,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_heads": heads,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "out_hidden_size": hidden,
        "num_position_embeddings": 16 * 16,
        "deepstack_visual_indexes": [0],
        "initializer_range": initial,
    }
    ids = tokenizer.get_vocab()
    return Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        vision_start_token_id=ids[VISION_START],
        vision_end_token_id=ids[VISION_END],
        image_token_id=ids[IMAGE],
        video_token_id=ids[VIDEO],
        tie_word_embeddings=True,
        dtype="float32",
    )
