"""Architectures of models on the Hugging Face hub, for machines that have none of their files."""

from __future__ import annotations

from collections.abc import Mapping

Fields = Mapping[str, object]
_NAMES = "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim".split()
_TOWER = "depth hidden_size intermediate_size num_heads patch_size out_hidden_size".split()
# Layers of Qwen3-VL's tower -> those whose features are added to the first layers of the text model.
_EARLIER = {24: [5, 11, 17], 27: [8, 16, 24]}


def _model(kind: str, numbers: str, vocabulary: int, context: int, *, tied: bool) -> Fields:
    return {
        "model_type": kind,
        **dict(zip(_NAMES, map(int, numbers.split()), strict=True)),
        "vocab_size": vocabulary,
        "max_position_embeddings": context,
        "tie_word_embeddings": tied,
    }


def _seeing(kind: str, numbers: str, vocabulary: int, context: int, vision: str, *, tied: bool) -> Fields:
    """A model with a vision tower, of which what is not here is what transformers takes for it."""
    text = _model(f"{kind}_text", numbers, vocabulary, context, tied=tied)
    tower = dict(zip(_TOWER, map(int, vision.split()), strict=True))
    earlier = {"deepstack_visual_indexes": _EARLIER[tower["depth"]]} if kind == "qwen3_vl" else {}
    return {"model_type": kind, "text_config": text, "vision_config": tower | earlier, "tie_word_embeddings": tied}


KNOWN = {
    "Qwen/Qwen3-0.6B": _model("qwen3", "1024 3072 28 16 8 128", 151936, 40960, tied=True),
    "Qwen/Qwen3-1.7B": _model("qwen3", "2048 6144 28 16 8 128", 151936, 40960, tied=True),
    "Qwen/Qwen3-4B": _model("qwen3", "2560 9728 36 32 8 128", 151936, 40960, tied=True),
    "Qwen/Qwen3-8B": _model("qwen3", "4096 12288 36 32 8 128", 151936, 40960, tied=False),
    "Qwen/Qwen3-14B": _model("qwen3", "5120 17408 40 40 8 128", 151936, 40960, tied=False),
    "Qwen/Qwen3-32B": _model("qwen3", "5120 25600 64 64 8 128", 151936, 40960, tied=False),
    "Qwen/Qwen2-7B": _model("qwen2", "3584 18944 28 28 4 128", 152064, 131072, tied=False),
    "Qwen/Qwen2.5-0.5B": _model("qwen2", "896 4864 24 14 2 64", 151936, 32768, tied=True),
    "Qwen/Qwen2.5-1.5B": _model("qwen2", "1536 8960 28 12 2 128", 151936, 131072, tied=True),
    "Qwen/Qwen2.5-3B": _model("qwen2", "2048 11008 36 16 2 128", 151936, 32768, tied=True),
    "Qwen/Qwen2.5-7B": _model("qwen2", "3584 18944 28 28 4 128", 152064, 131072, tied=False),
    "Qwen/Qwen2.5-VL-3B-Instruct": _seeing(
        "qwen2_5_vl", "2048 11008 36 16 2 128", 151936, 128000, "32 1280 3420 16 14 2048", tied=True
    ),
    "Qwen/Qwen2.5-VL-7B-Instruct": _seeing(
        "qwen2_5_vl", "3584 18944 28 28 4 128", 152064, 128000, "32 1280 3420 16 14 3584", tied=False
    ),
    "Qwen/Qwen3-VL-2B-Instruct": _seeing(
        "qwen3_vl", "2048 6144 28 16 8 128", 151936, 262144, "24 1024 4096 16 16 2048", tied=True
    ),
    "Qwen/Qwen3-VL-4B-Instruct": _seeing(
        "qwen3_vl", "2560 9728 36 32 8 128", 151936, 262144, "24 1024 4096 16 16 2560", tied=True
    ),
    "Qwen/Qwen3-VL-8B-Instruct": _seeing(
        "qwen3_vl", "4096 12288 36 32 8 128", 151936, 262144, "27 1152 4304 16 16 4096", tied=False
    ),
    "meta-llama/Llama-3.2-1B": _model("llama", "2048 8192 16 32 8 64", 128256, 131072, tied=True),
    "meta-llama/Llama-3.2-3B": _model("llama", "3072 8192 28 24 8 128", 128256, 131072, tied=True),
    "meta-llama/Llama-3.1-8B": _model("llama", "4096 14336 32 32 8 128", 128256, 131072, tied=False),
}
# The context of a variant, where it is not that of the name without the suffix.
_CONTEXTS = {("Qwen/Qwen3", "-Base"): 32768, ("Qwen/Qwen2.5", "-Instruct"): 32768, ("Qwen/Qwen2", "-Instruct"): 32768}


def known(name: str) -> Fields | None:
    """The fields of config.json that decide a model's size; None for a model that is not in the table."""
    for suffix in ("", "-Base", "-Instruct"):
        base = name.removesuffix(suffix)
        if base in KNOWN and base + suffix == name:
            family = base.partition("-")[0]
            context = _CONTEXTS.get((family, suffix))
            return {**KNOWN[base], **({"max_position_embeddings": context} if context else {})}
    return None
