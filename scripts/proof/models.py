"""Makes models of the width and depth of Qwen3-1.7B and 4B, with random weights: `python models.py FOLDER DEVICE`.

If DEVICE is `cpu`, the models have the same architecture but few and narrow layers. A model with random weights replies
with random words and hardly ever ends before the limit, so the rows of all runs have the same lengths.
"""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from string import ascii_lowercase

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from verl_mas.testing.tiny_model import byte_tokenizer

VOCABULARY = 151_936
MAX_LENGTH = 8192
REAL = {
    "1.7b": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
    "4b": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
}
SMALL = {
    "1.7b": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 2},
    "4b": {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4},
}


def tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer that splits a prompt into bytes. The other tokens are words of four letters; they occur in
    replies only."""
    made = byte_tokenizer(max_length=MAX_LENGTH)
    state = json.loads(made.backend_tokenizer.to_str())
    tokens = state["model"]["vocab"]
    words = map("".join, product(ascii_lowercase, repeat=4))
    tokens |= dict(zip(words, range(len(tokens), vocabulary), strict=False))
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        eos_token=made.eos_token,
        pad_token=made.pad_token,
        chat_template=made.chat_template,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_LENGTH,
    )


def config(sizes: dict[str, int], tokens: PreTrainedTokenizerFast, device: str) -> Qwen3Config:
    return Qwen3Config(
        architectures=[Qwen3ForCausalLM.__name__],
        **sizes,
        num_key_value_heads=sizes["num_attention_heads"] // 2 if device == "cpu" else 8,
        head_dim=64 if device == "cpu" else 128,
        vocab_size=len(tokens),
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokens.eos_token_id,
        pad_token_id=tokens.pad_token_id,
        dtype="bfloat16",
    )


def save(folder: Path, sizes: dict[str, int], tokens: PreTrainedTokenizerFast, device: str) -> None:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        Qwen3ForCausalLM(config(sizes, tokens, device)).save_pretrained(folder)
    tokens.save_pretrained(folder)


if __name__ == "__main__":
    target, device = Path(sys.argv[1]), sys.argv[2]
    tokens = tokenizer(1024 if device == "cpu" else VOCABULARY)
    for name, sizes in (SMALL if device == "cpu" else REAL).items():
        save(target / name, sizes, tokens, device)
