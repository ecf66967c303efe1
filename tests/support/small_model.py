"""A policy with a model of round numbers, for tests of formulas."""

from dataclasses import replace

from verl_mas.planning.load import Policy
from verl_mas.planning.model import ModelSize, Vision

# One embedding of 1,000 x 64 elements, and four layers of 9,000 elements each.
MODEL = ModelSize(
    tensors=(64_000, 9_000, 9_000, 9_000, 9_000),
    layers=4,
    hidden=64,
    intermediate=128,
    vocabulary=1000,
    heads=4,
    kv_heads=2,
    head_size=16,
    context=512,
    tied=True,
    linear=(("layers.0.q_proj", 600), ("layers.0.o_proj", 400), ("lm_head", 1064)),
)
# The same number of parameters, of which 10,000 are in a vision tower with two layers.
VISION = Vision(layers=2, hidden=32, intermediate=16, merged=4, pixels=100, layer=4_000)
SEEING = replace(MODEL, tower=10_000, vision=VISION)
N = 100_000
POLICY = Policy("p", MODEL, "vllm", 0.5, trains=True, shards=4, update_tokens=256, log_prob_tokens=512)
