"""Architectures of models on the Hugging Face hub, for machines without the files of these models."""

from collections.abc import Mapping

Fields = Mapping[str, object]
_NAMES = "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim".split()
_TOWER = "depth hidden_size intermediate_size num_heads patch_size out_hidden_size".split()
# Number of layers in Qwen3-VL's tower -> the layers whose features are added to the first layers of the text model.
_EARLIER = {24: [5, 11, 17], 27: [8, 16, 24]}

# Model -> model type, values of `_NAMES`, vocabulary size, context length, and whether head and embedding are tied.
KNOWN = {
    "Qwen/Qwen3-0.6B": ("qwen3", "1024 3072 28 16 8 128", 151936, 40960, True),
    "Qwen/Qwen3-1.7B": ("qwen3", "2048 6144 28 16 8 128", 151936, 40960, True),
    "Qwen/Qwen3-4B": ("qwen3", "2560 9728 36 32 8 128", 151936, 40960, True),
    "Qwen/Qwen3-8B": ("qwen3", "4096 12288 36 32 8 128", 151936, 40960, False),
    "Qwen/Qwen3-14B": ("qwen3", "5120 17408 40 40 8 128", 151936, 40960, False),
    "Qwen/Qwen3-32B": ("qwen3", "5120 25600 64 64 8 128", 151936, 40960, False),
    "Qwen/Qwen2-7B": ("qwen2", "3584 18944 28 28 4 128", 152064, 131072, False),
    "Qwen/Qwen2.5-0.5B": ("qwen2", "896 4864 24 14 2 64", 151936, 32768, True),
    "Qwen/Qwen2.5-1.5B": ("qwen2", "1536 8960 28 12 2 128", 151936, 131072, True),
    "Qwen/Qwen2.5-3B": ("qwen2", "2048 11008 36 16 2 128", 151936, 32768, True),
    "Qwen/Qwen2.5-7B": ("qwen2", "3584 18944 28 28 4 128", 152064, 131072, False),
    "Qwen/Qwen2.5-VL-3B-Instruct": ("qwen2_5_vl", "2048 11008 36 16 2 128", 151936, 128000, True),
    "Qwen/Qwen2.5-VL-7B-Instruct": ("qwen2_5_vl", "3584 18944 28 28 4 128", 152064, 128000, False),
    "Qwen/Qwen3-VL-2B-Instruct": ("qwen3_vl", "2048 6144 28 16 8 128", 151936, 262144, True),
    "Qwen/Qwen3-VL-4B-Instruct": ("qwen3_vl", "2560 9728 36 32 8 128", 151936, 262144, True),
    "Qwen/Qwen3-VL-8B-Instruct": ("qwen3_vl", "4096 12288 36 32 8 128", 151936, 262144, False),
    "meta-llama/Llama-3.2-1B": ("llama", "2048 8192 16 32 8 64", 128256, 131072, True),
    "meta-llama/Llama-3.2-3B": ("llama", "3072 8192 28 24 8 128", 128256, 131072, True),
    "meta-llama/Llama-3.1-8B": ("llama", "4096 14336 32 32 8 128", 128256, 131072, False),
}
# Model that reads images -> values of `_TOWER`.
TOWERS = {
    "Qwen/Qwen2.5-VL-3B-Instruct": "32 1280 3420 16 14 2048",
    "Qwen/Qwen2.5-VL-7B-Instruct": "32 1280 3420 16 14 3584",
    "Qwen/Qwen3-VL-2B-Instruct": "24 1024 4096 16 16 2048",
    "Qwen/Qwen3-VL-4B-Instruct": "24 1024 4096 16 16 2560",
    "Qwen/Qwen3-VL-8B-Instruct": "27 1152 4304 16 16 4096",
}
# (Family, suffix) -> context length of models with this suffix, if it differs from that of models without the suffix.
_CONTEXTS = {("Qwen/Qwen3", "-Base"): 32768, ("Qwen/Qwen2.5", "-Instruct"): 32768, ("Qwen/Qwen2", "-Instruct"): 32768}


def known(name: str) -> Fields | None:
    """Return the fields of config.json that decide a model's size; None for a model that is not in the table."""
    for suffix in ("", "-Base", "-Instruct"):
        base = name.removesuffix(suffix)
        if base in KNOWN and base + suffix == name:
            return _fields(base, _CONTEXTS.get((base.partition("-")[0], suffix)))
    return None


def _fields(name: str, own_context: int | None) -> Fields:
    """Build the fields of config.json. `own_context`: the context of the variant, if it differs. transformers has
    defaults for the fields of a vision tower that are missing here."""
    kind, numbers, vocabulary, context, tied = KNOWN[name]
    text = {
        "model_type": f"{kind}_text" if name in TOWERS else kind,
        **dict(zip(_NAMES, map(int, numbers.split()), strict=True)),
        "vocab_size": vocabulary,
        "max_position_embeddings": own_context or context,
        "tie_word_embeddings": tied,
    }
    if name not in TOWERS:
        return text
    vision = dict(zip(_TOWER, map(int, TOWERS[name].split()), strict=True))
    earlier = {"deepstack_visual_indexes": _EARLIER[vision["depth"]]} if kind == "qwen3_vl" else {}
    return {"model_type": kind, "text_config": text, "vision_config": vision | earlier, "tie_word_embeddings": tied}
