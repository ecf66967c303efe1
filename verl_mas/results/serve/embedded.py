"""Runs the policies of a loaded team in this process. Each base model has one engine, which batches the requests of all
its adapters."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import cast

import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from safetensors.torch import load_file
from transformers.utils import logging as hf_logging
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import RolloutMode, TokenOutput

from verl_mas.config.adapters import KEY, Adapter
from verl_mas.config.merge import SECTION
from verl_mas.engines.transformers import ENGINE
from verl_mas.engines.transformers.server import TransformersServer
from verl_mas.errors import ConfigError, EngineLost
from verl_mas.gateway.streaming import ON_TEXT
from verl_mas.results.serve.endpoints import EngineSettings
from verl_mas.results.serve.model import available, load_processor, load_tokenizer, read_record, reading
from verl_mas.results.serve.places import Place
from verl_mas.rollout.verl_client import Model, VerlPolicy
from verl_mas.trainer.adapters.files import CONFIG, WEIGHTS
from verl_mas.util import cores
from verl_mas.verl_.types import Fields, Passed, Tokenizer
from verl_mas.workflow.client import LLMClient
from verl_mas.workflow.team_file import TeamPolicy

PIECE_S = 0.03  # seconds between two pieces of streamed text
LENGTH = 4096  # limit of prompts and of replies in tokens, if team.yaml has no limit


@dataclass
class Embedded:
    """The policies served by this process. `config`: verl's configuration, so that policies behave as in training."""

    config: DictConfig
    settings: EngineSettings
    trust: bool = False

    def clients(self, placed: Mapping[str, Place], policies: Mapping[str, TeamPolicy]) -> dict[str, LLMClient]:
        """Make a client per policy. Each model is loaded once."""
        shared: dict[tuple[str, str], list[str]] = defaultdict(list)
        for name, place in placed.items():
            shared[place.model, self._dtype(policies[name])].append(name)
        clients: dict[str, LLMClient] = {}
        for names in shared.values():
            clients |= self._of_one_model({name: placed[name] for name in names}, policies)
        return {name: clients[name] for name in placed}

    def _of_one_model(self, placed: Mapping[str, Place], policies: Mapping[str, TeamPolicy]) -> dict[str, LLMClient]:
        views = {name: self._view(name, policies[name], placed[name]) for name in placed}
        adapters = {name: place.adapter for name, place in placed.items() if place.adapter is not None}
        configs = {name: read_record(folder / CONFIG, "r", "lora_alpha") for name, folder in adapters.items()}
        table = {
            name: Adapter(name, rank=int(str(config["r"])), alpha=float(str(config["lora_alpha"])), seed=0)
            for name, config in configs.items()
        }
        server = self._server(list(views.values()), table)
        for name, folder in adapters.items():
            with reading(folder / WEIGHTS):
                tensors = load_file(folder / WEIGHTS)
            try:
                server.batcher.adapters.update(name, tensors)
            except EngineLost as error:
                rule = "an adapter has pairs of lora_A and lora_B on linear layers of the base that it was trained on"
                fix = "make that base available where team.yaml names it"
                raise ConfigError(f"{folder} cannot be served: {error}", rule=rule, fix=fix) from error
        model_type = str(server.batcher.model.config.model_type)
        clients: dict[str, LLMClient] = {}
        for name, place in placed.items():
            tokenizer = cast(Tokenizer, load_tokenizer(place.tokenizer, place.chat_template, trust=self.trust))
            client = LocalClient(server, name if name in table else None, tokenizer)
            processor = load_processor(place.tokenizer, place.chat_template, trust=self.trust)
            model = Model(tokenizer, processor, model_type, {})
            clients[name] = VerlPolicy(views[name], client, model, RLHFDataset)
        return clients

    def _server(self, views: Sequence[DictConfig], table: Mapping[str, Adapter]) -> TransformersServer:
        config = views[0].copy()
        rollout, model = config[SECTION].rollout, config[SECTION].model
        longest = max(view[SECTION].rollout.prompt_length + view[SECTION].rollout.response_length for view in views)
        with available(model.path):
            model_config: HFModelConfig = omega_conf_to_dataclass(model, dataclass_type=HFModelConfig)
        text_config = model_config.hf_config.get_text_config()
        positions = getattr(text_config, "max_position_embeddings", None) or longest
        with open_dict(config):
            rollout.max_model_len = self.settings.max_model_len or min(longest, positions)
            rollout.custom = {KEY: {name: asdict(one) for name, one in table.items()}}
        rollout_config: RolloutConfig = omega_conf_to_dataclass(rollout)
        device = _usable(self.settings.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        with available(model.path), ExitStack() as stack:
            # Hide the progress bar that transformers shows while it reads weights.
            if hf_logging.is_progress_bar_enabled():
                hf_logging.disable_progress_bar()
                stack.callback(hf_logging.enable_progress_bar)
            name, mode = f"of {model.path}", RolloutMode.STANDALONE
            return TransformersServer(name, rollout_config, model_config, mode, 0, device)

    def _view(self, name: str, policy: TeamPolicy, place: Place) -> DictConfig:
        settings, config = self.settings, self.config.copy()
        engine = {"threads": settings.threads or cores(), "cache_gib": settings.cache_gib}
        values = {
            "model.path": place.model,
            "model.trust_remote_code": self.trust,
            "rollout.name": ENGINE,
            "rollout.dtype": self._dtype(policy),
            "rollout.prompt_length": policy.prompt_length or LENGTH,
            "rollout.response_length": policy.response_length or LENGTH,
            "rollout.max_num_seqs": settings.max_sequences,
            "rollout.calculate_log_probs": False,
            # With this setting, the seed of a request comes from its session, so the result of a session does not
            # depend on other sessions.
            "rollout.full_determinism": True,
            "rollout.seed": settings.seed,
            "rollout.engine_kwargs": {ENGINE: engine},
        }
        for key, value in values.items():
            OmegaConf.update(config, f"{SECTION}.{key}", value, force_add=True)
        return config

    def _dtype(self, policy: TeamPolicy) -> str:
        return self.settings.dtype or policy.dtype or "float32"


def _usable(device: str) -> str:
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        value = f"engine device={device}: {str(error).splitlines()[0]}"
        fix = "use device=cpu or device=cuda:0, or leave it out"
        raise ConfigError(value, rule="the engine computes on a device of this machine", fix=fix) from error
    return device


@dataclass
class LocalClient:
    """Client through which `VerlPolicy` sends requests to an engine in this process."""

    server: TransformersServer
    adapter: str | None
    tokenizer: Tokenizer

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: Fields, **media: Passed
    ) -> TokenOutput:
        on_text = ON_TEXT.get()
        listener = Pieces(self.tokenizer, on_text) if on_text else None
        return await self.server.generate(
            prompt_ids, sampling_params, request_id, adapter=self.adapter, listener=listener, **media
        )


class Pieces:
    """Reports the text of a reply in pieces while its tokens are generated. At the end, the caller reports the text
    that remains."""

    def __init__(self, tokenizer: Tokenizer, on_text: Callable[[str], None]):
        self._tokenizer, self._on_text = tokenizer, on_text
        # The text of the tokens before `_read` has been reported. The tokens since `_start` are decoded again, because
        # the text of the next tokens depends on them.
        self._start = self._read = 0
        self._last = 0.0

    def __call__(self, tokens: Sequence[int]) -> None:
        now = time.monotonic()
        if now - self._last < PIECE_S:
            return
        before = self._tokenizer.decode(tokens[self._start : self._read], skip_special_tokens=True)
        text = self._tokenizer.decode(tokens[self._start :], skip_special_tokens=True)
        # A character may consist of several tokens, so wait until its last token is there.
        if len(text) > len(before) and not text.endswith("\N{REPLACEMENT CHARACTER}"):
            self._on_text(text[len(before) :])
            self._start, self._read, self._last = self._read, len(tokens), now
