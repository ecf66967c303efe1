"""Whether prompts and responses fit, at the last length that does and the first that does not."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf
from verl_mas.checks.lengths import check_lengths

FITS = {
    "model.path": "no such model", "model.override_config.max_position_embeddings": 4096,
    "rollout.name": "transformers", "rollout.prompt_length": 1096, "rollout.response_length": 3000,
    "rollout.max_model_len": 4096, "rollout.log_prob_use_dynamic_bsz": False,
    "actor.use_dynamic_bsz": True, "actor.ppo_max_token_len_per_gpu": 4096,
}  # fmt: skip


def problems(**changes):
    view = OmegaConf.create({})
    for key, value in {**FITS, **{key.replace("__", "."): value for key, value in changes.items()}}.items():
        OmegaConf.update(view, f"actor_rollout_ref.{key}", value, force_add=True)
    return [problem.value.removeprefix("policy main: ") for problem in check_lengths(view, "main", trained=True)]


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"rollout__max_model_len": 4097}, "rollout.max_model_len=4097"),
        ({"rollout__max_model_len": 4095}, "max_prompt_length + max_response_length = 4096"),
        ({"rollout__max_model_len": None, "model__override_config__max_position_embeddings": 4095},
         "max_prompt_length + max_response_length = 4096"),
        ({"actor__ppo_max_token_len_per_gpu": 4095}, "actor.ppo_max_token_len_per_gpu=4095"),
        ({"actor__ppo_max_token_len_per_gpu": 2047, "actor__ulysses_sequence_parallel_size": 2},
         "actor.ppo_max_token_len_per_gpu=2047"),
    ],
)  # fmt: skip
def test_one_token_too_many_is_refused(changes, value):
    assert problems(**changes) == [value]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rollout__max_model_len": None},
        {"actor__ppo_max_token_len_per_gpu": 2048, "actor__ulysses_sequence_parallel_size": 2},
        {"actor__ppo_max_token_len_per_gpu": 1, "actor__use_dynamic_bsz": False},
    ],
)
def test_what_fits_exactly_is_accepted(changes):
    assert problems(**changes) == []
