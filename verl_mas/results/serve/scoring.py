"""Computes rewards as in training, for workflows that leave the reward to verl's reward function."""

from functools import cached_property
from typing import cast

import numpy as np
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
from verl.trainer.ppo.reward import load_reward_manager

from verl_mas.errors import ConfigError
from verl_mas.results.serve.model import load_tokenizer
from verl_mas.results.serve.places import places
from verl_mas.results.serve.runtime import Runtime
from verl_mas.rollout.stored import answer_of
from verl_mas.rollout.verl_client import Model, VerlPolicy
from verl_mas.verl_.row import REWARD_EXTRA_INFO
from verl_mas.verl_.types import Tokenizer
from verl_mas.workflow.rewards import Score
from verl_mas.workflow.session import Session
from verl_mas.workflow.team_file import CUSTOM, REWARD_MODEL


class VerlScorer:
    """verl's reward manager with the reward function of the run. The manager is created when the first session is
    scored."""

    def __init__(self, runtime: Runtime):
        self._runtime = runtime
        clients = runtime.clients
        self._models: dict[str, Model] = {n: one.model for n, one in clients.items() if isinstance(one, VerlPolicy)}

    async def __call__(self, session: Session) -> Score:
        output = answer_of(session, self._models, self._tokenizer)
        # Build the data in the form in which verl's agent loop passes an answer to its reward manager.
        prompt, response = torch.tensor([output.prompt_ids]), torch.tensor([output.response_ids])
        whole = torch.cat([prompt, response], dim=1)
        mask = torch.ones_like(whole)
        tensors = {"prompts": prompt, "responses": response, "input_ids": whole, "attention_mask": mask}
        fields = {
            **session.task.fields,
            "__num_turns__": output.num_turns,
            "tool_extra_fields": output.extra_fields,
            "prompt_len": len(output.prompt_ids),
            "response_len": len(output.response_ids),
        }
        alone = {name: np.empty(1, dtype=object) for name in fields}
        for name, value in fields.items():
            alone[name][0] = value
        result = await self._manager.run_single(DataProto(TensorDict(tensors, batch_size=1), alone))
        return Score(result["reward_score"], result.get(REWARD_EXTRA_INFO, {}))

    @cached_property
    def _manager(self) -> RewardManagerBase:
        config, folder = self._runtime.verl, self._runtime.folder
        if OmegaConf.select(config, REWARD_MODEL):
            rule = "an evaluation scores by the workflow, by verl's scorers, or by a function of yours"
            verl = f"{{{CUSTOM}.path: ..., {REWARD_MODEL}: false}}"
            fix = f"write a function that scores the answer, and name it in team.yaml: verl: {verl}"
            raise ConfigError(f"{folder} was trained with a reward model", rule=rule, fix=fix)
        manager: RewardManagerBase = load_reward_manager(config, self._tokenizer)
        return manager

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        if self._models:
            return next(iter(self._models.values())).tokenizer
        # If endpoints serve all policies, no client has a tokenizer. The tokenizer of any policy is enough, because the
        # text is only encoded and decoded again.
        file = self._runtime.file
        names = [name for name in self._runtime.clients if file.policies[name].remote is None]
        if not names:
            rule = "verl's reward function reads tokens, so a policy has its tokenizer here"
            fix = "score in the workflow: Outcome(reward=...)"
            raise ConfigError(f"{self._runtime.folder} has remote policies only", rule=rule, fix=fix)
        place = places(self._runtime.folder, file, names[:1])[names[0]]
        return cast(Tokenizer, load_tokenizer(place.tokenizer, place.chat_template, trust=self._runtime.trust))
