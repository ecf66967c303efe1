"""The size of a model, from its configuration alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import cast

from verl_mas.config.adapters import ALL_LINEAR, Targets, targeted

# Bytes per parameter, key or value in an engine: engines use bfloat16 for all of them.
SERVED = 2
# Names of kinds of layers without keys and values, in configurations of transformers. Layers of the first four kinds
# keep a state of fixed size.
WITHOUT_CACHE = ("linear_attention", "mamba", "mamba2", "conv", "mlp", "moe")

# Substrings in the names of parameters of a vision tower, and of the layers between the tower and the text model.
TOWER = ("visual", "vision", "projector")


@dataclass(frozen=True)
class Vision:
    """The tower of a model that reads images. Its layers process patches, of which several make one token of the
    prompt."""

    layers: int
    hidden: int
    intermediate: int
    merged: int  # patches per token
    pixels: int  # bytes of a token's pixels, which the processor writes in float32
    layer: int  # elements of one layer


@dataclass(frozen=True)
class ModelSize:
    tensors: tuple[int, ...]  # the number of elements of every parameter; a shared parameter counts once
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_size: int
    context: int  # max_position_embeddings
    tied: bool  # whether head and embedding share their weights
    # For every linear layer its name, and the sum of its inputs and outputs. A LoRA adapter of rank r on the layer has
    # r times this number of parameters.
    linear: tuple[tuple[str, int], ...]
    head: str = "lm_head"  # the name of the output layer, which `all-linear` excludes
    uncached: int = 0  # layers without keys and values
    tower: int = 0  # parameters of a vision tower and of the layers between it and the text model
    # None without a tower, and for a tower whose configuration differs from that of Qwen models. Only the weights of
    # such a tower are counted.
    vision: Vision | None = None
    is_value_model: bool = False  # it outputs one number per token in place of logits, and `tied` has no effect

    @cached_property
    def parameters(self) -> int:
        return sum(self.tensors)

    @property
    def served(self) -> int:
        """Bytes of the weights in an engine."""
        return SERVED * self.parameters

    @property
    def largest(self) -> int:
        """Elements of the largest tensor."""
        return max(self.tensors)

    def adapted(self, wanted: Targets = ALL_LINEAR, excluded: Targets = None) -> int:
        """Sum of inputs and outputs of the layers to which an adapter is added."""
        every = wanted is None or wanted == ALL_LINEAR
        sizes = {name: size for name, size in self.linear if not (every and name == self.head)}
        return sum(sizes[name] for name in targeted(sizes, wanted, excluded))

    @property
    def embedding(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def has_own_head(self) -> bool:
        """Whether an output layer has weights of its own."""
        return not self.tied and not self.is_value_model

    @property
    def layer(self) -> int:
        """Elements of one layer of the text model."""
        return (self.parameters - self.tower - self.embedding * (1 + self.has_own_head)) // self.layers

    @property
    def computed(self) -> int:
        """Number of parameters with which every token is multiplied. An untied embedding table is only looked up."""
        return self.parameters - self.has_own_head * self.embedding

    @property
    def as_value_model(self) -> ModelSize:
        tensors = list(self.tensors)
        if self.has_own_head:
            tensors.remove(self.embedding)
        return replace(self, tensors=tuple(tensors), is_value_model=True)

    @property
    def attending(self) -> int:
        """Number of layers with full attention, which compare a token with all tokens before it."""
        return self.layers - self.uncached

    def kv_bytes(self, tensor_parallel: int = 1) -> int:
        """Bytes of one token's keys and values on one GPU. If there are fewer heads than GPUs, an engine copies
        heads, so that each GPU has at least one head."""
        return 2 * SERVED * self.attending * max(1, self.kv_heads // tensor_parallel) * self.head_size


def size_of(config: Mapping[str, object]) -> ModelSize:
    """Return the size of the model that transformers builds from a config.json. No weights are loaded."""
    return _size_of(json.dumps(config, sort_keys=True, default=str))


@lru_cache(maxsize=64)
def _size_of(fields: str) -> ModelSize:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    settings = json.loads(fields)
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    kind = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(config, attn_implementation="eager")
    text = config.get_text_config()
    heads = text.num_attention_heads
    head = model.get_output_embeddings()
    kinds = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or ()
    linear = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    seeing = {name: one.numel() for name, one in model.named_parameters() if any(part in name for part in TOWER)}
    return ModelSize(
        tensors=tuple(parameter.numel() for parameter in model.parameters()),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        vocabulary=text.vocab_size,
        heads=heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_size=getattr(text, "head_dim", None) or text.hidden_size // heads,
        context=text.max_position_embeddings,
        tied=bool(getattr(config, "tie_word_embeddings", False)),
        linear=tuple((name, layer.in_features + layer.out_features) for name, layer in linear.items()),
        head=next((name for name, layer in linear.items() if layer is head), ""),
        uncached=sum(kind in WITHOUT_CACHE for kind in kinds),
        tower=sum(seeing.values()),
        vision=_vision(config.vision_config.to_dict(), seeing) if seeing else None,
    )


def _vision(config: Mapping[str, object], seeing: Mapping[str, int]) -> Vision | None:
    """Read the vision part of a configuration with the field names of Qwen2.5-VL and Qwen3-VL."""
    names = "depth hidden_size intermediate_size patch_size temporal_patch_size spatial_merge_size".split()
    found = [config.get(name) for name in names]
    if not all(isinstance(number, int) for number in found):
        return None
    depth, hidden, intermediate, patch, frames, merge = cast("list[int]", found)
    channels = cast("int", config.get("in_channels") or config.get("in_chans") or 3)
    in_layers = sum(count for name, count in seeing.items() if ".blocks." in name)
    return Vision(
        layers=depth,
        hidden=hidden,
        intermediate=intermediate,
        merged=merge**2,
        pixels=4 * channels * frames * (merge * patch) ** 2,
        layer=in_layers // depth,
    )
