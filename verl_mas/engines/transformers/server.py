"""The Ray actor that serves one replica."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import torch
from omegaconf import DictConfig
from torch import nn
from transformers import GenerationConfig
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_torch_device
from verl.utils.model import get_hf_auto_model_class
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.replica import RolloutMode, TokenOutput

from verl_mas.config.adapters import read_table
from verl_mas.engines.transformers.batcher import Capacity, ContinuousBatcher
from verl_mas.engines.transformers.images import Images
from verl_mas.engines.transformers.lora import Adapters, AdapterUpdate
from verl_mas.engines.transformers.request import Options, RequestSampling, Sample
from verl_mas.engines.transformers.weights import Packed, WeightUpdate
from verl_mas.errors import EngineLost, ForeignError, RequestError, foreign
from verl_mas.verl_.row import GLOBAL_STEPS, MAX_GLOBAL_STEPS, MIN_GLOBAL_STEPS, VERSIONS
from verl_mas.verl_.types import Fields, Passed

# verl's names of the parts that sleep and wake up.
WEIGHTS, CACHE = "weights", "kv_cache"
HOST = "cpu"
# A callback that gets all tokens of a sample so far, after each step.
Listener = Callable[[Sequence[int]], None]


class TransformersServer:
    """Serves `generate` calls with a `ContinuousBatcher`. It has the same methods as the servers of verl's engines."""

    def __init__(
        self,
        name: str,
        config: RolloutConfig,
        model_config: DictConfig | HFModelConfig,
        mode: RolloutMode,
        replica_rank: int,
        device: str,
    ):
        self.name, self.config, self.mode, self.device = name, config, mode, device
        options = Options.of(config.engine_kwargs)
        torch.set_num_threads(options.threads)
        model: HFModelConfig = omega_conf_to_dataclass(cast("DictConfig", model_config), dataclass_type=HFModelConfig)
        self.batcher = _batcher(config, model, options, replica_rank, device)
        self.images = Images(self.batcher.model, model.processor)
        self.global_steps: int | None = None
        self.futures: dict[Sample, asyncio.Future[None]] = {}
        self._listeners: dict[Sample, Listener] = {}
        self._between_steps = asyncio.Lock()
        # Set while all weights of the model have the same version.
        self._whole = asyncio.Event()
        self._whole.set()
        self._work = asyncio.Event()
        self._gate = asyncio.Event()
        self._gate.set()
        self._rejecting = False
        self._asleep: set[str] = set()
        self._lost: EngineLost | None = None
        self._update: WeightUpdate | AdapterUpdate | None = None
        self._loop: asyncio.Task[None] | None = None

    async def ready(self) -> str:
        """Return once the model is loaded."""
        return self.name

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: Fields,
        request_id: str,
        adapter: str | None = None,
        drawn: int = 0,
        listener: Listener | None = None,
        **media: Passed,
    ) -> TokenOutput:
        """Sample one reply; verl's `LLMServerClient` calls this. Without `adapter` the base model replies.

        The last `drawn` tokens of the prompt are the first tokens of the reply (`ContinuousBatcher.submit`).
        Only a caller in the same process can pass a `listener`.
        """
        images, options = media.pop("image_data", None) or (), media.pop("mm_processor_kwargs", None) or {}
        for name, value in media.items():
            if value:
                rule = "rollout.name=transformers serves text and images"
                raise RequestError(f"{name} in a generate call", rule=rule, fix="use rollout.name=vllm or sglang")
        params = dict(sampling_params)
        with_log_probs = params.pop("logprobs", True)
        sampling = self._sampling(params, len(prompt_ids), request_id)
        # Read images in a thread, because a large image takes a second.
        given = prompt_ids, images, options
        sight = await asyncio.to_thread(self.images.read, *given) if images else self.images.read(*given)
        while not self._gate.is_set():
            if self._rejecting:
                return self._output(None, with_log_probs)
            await self._gate.wait()
        if self._lost:
            raise self._lost
        if self._asleep:
            fix = "wake it with wake_up, or set rollout.free_cache_engine=False"
            raise RequestError(f"a generate call to {self.name}", rule="the engine sleeps between rollouts", fix=fix)
        sample = self.batcher.submit(prompt_ids, sampling, adapter, drawn, sight)
        if listener is not None:
            self._listeners[sample] = listener
        await self._done(sample)
        return self._output(sample, with_log_probs)

    async def update_weights(self, bucket: list[Packed], last: bool, global_steps: int | None = None) -> None:
        """Copy weights into the running model between two tokens. If the model has adapters, copy only the adapters.

        No token is sampled with partly updated weights. Running requests keep the keys and values of the old weights.
        """
        async with self._between_steps:
            if self._update is None:
                adapters = self.batcher.adapters
                self._update = AdapterUpdate(adapters) if adapters.names else WeightUpdate(self.batcher.model)
            if self._update.in_place:
                self._whole.clear()
            await asyncio.to_thread(self._update.load, bucket)
            if last:
                await asyncio.to_thread(self._update.finish)
                self._update = None
                self._end_version(self.futures)
                self.global_steps = global_steps if global_steps is not None else self.global_steps
                self._whole.set()

    async def set_global_steps(self, global_steps: int) -> None:
        self.global_steps = global_steps

    async def sleep(self) -> None:
        """Finish running requests, then free the device: the cache is dropped, and the weights move to host memory."""
        if not self.config.free_cache_engine or self.mode is RolloutMode.STANDALONE:
            return
        await self.wait_for_requests_to_drain()
        self._asleep = {WEIGHTS, CACHE}
        self.batcher.release_memory()
        await self._move(HOST)

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Wake up the parts in `tags`: weights, cache or both. The engine serves once both parts are awake."""
        waking = self._asleep.intersection(tags or self._asleep)
        if WEIGHTS in waking:
            await self._move(self.device)
        self._asleep -= waking

    async def wait_for_requests_to_drain(self) -> None:
        while self.futures:
            await asyncio.wait(list(self.futures.values()))

    async def abort_all_requests(self, reject_request: bool = False) -> Fields:
        """End running requests with the tokens that they have. Until `resume_generation`, new requests wait, or are
        rejected if `reject_request` is True."""
        self._rejecting = reject_request
        self._gate.clear()
        return {"aborted_count": await self._abort()}

    async def resume_generation(self) -> None:
        self._rejecting = False
        self._gate.set()

    async def clear_kv_cache(self) -> None:
        """Do nothing: no cache outlives its request."""

    async def release_kv_cache(self) -> None:
        """Do nothing: weights are copied in place and need no extra memory."""

    async def resume_kv_cache(self) -> None: ...

    async def start_profile(self, **kwargs: object) -> None: ...

    async def stop_profile(self) -> None: ...

    async def _move(self, device: str) -> None:
        """Move the weights to a device."""
        async with self._between_steps:
            await asyncio.to_thread(self.batcher.model.to, device)
            get_torch_device().empty_cache()

    def _sampling(self, params: Fields, prompt_length: int, request_id: str) -> RequestSampling:
        config = self.config
        left = self.batcher.max_length - prompt_length
        wanted = params.pop("max_tokens", None) or params.pop("max_new_tokens", None)
        # Limit the reply as in verl's other engines: it must fit the response length and the rest of the context, and
        # may always have one token.
        limit = wanted or min(config.response_length, config.prompt_length + config.response_length - prompt_length)
        params.setdefault("repetition_penalty", config.repetition_penalty)
        params.setdefault("ignore_eos", config.ignore_eos)
        if config.full_determinism:
            params.setdefault("seed", f"{config.seed}/{request_id}")
        return RequestSampling.parse({**params, "max_tokens": max(1, min(limit, left))})

    async def _done(self, sample: Sample) -> None:
        future = self.futures[sample] = asyncio.get_running_loop().create_future()
        self._loop = self._loop or asyncio.create_task(self._serve())
        self._work.set()
        try:
            await future
        except asyncio.CancelledError:
            await self._abort([sample])
            raise

    async def _abort(self, samples: list[Sample] | None = None) -> int:
        async with self._between_steps:
            aborted = [] if self._lost else self.batcher.abort(samples)
        self._resolve(aborted)
        return len(aborted)

    async def _serve(self) -> None:
        """Step while there is work. An error ends the engine and is raised to every caller."""
        try:
            while True:
                await self._work.wait()
                await self._whole.wait()
                with foreign():
                    await self._step()
        except ForeignError as failed:
            self._lost = EngineLost(f"engine {self.name} failed: {failed}")
            self._lost.__cause__ = failed.error
            for future in self.futures.values():
                if not future.done():  # a caller may have been cancelled
                    future.set_exception(self._lost)
            self.futures.clear()

    async def _step(self) -> None:
        async with self._between_steps:
            # Check again, because the first bucket of an update may have arrived in the meantime.
            finished = await asyncio.to_thread(self.batcher.step) if self._whole.is_set() else []
        for sample, listener in self._listeners.items():
            listener(sample.tokens)
        self._resolve(finished)
        if self.batcher.idle:
            self._work.clear()

    def _end_version(self, samples: Iterable[Sample]) -> None:
        """Record the version `global_steps` for the tokens that have no recorded version yet."""
        for sample in samples:
            new = len(sample.tokens) - sum(tokens for tokens, _ in sample.versions)
            if new:
                sample.versions.append((new, self.global_steps))

    def _resolve(self, finished: list[Sample]) -> None:
        self._end_version(finished)
        for sample in finished:
            self._listeners.pop(sample, None)
            future = self.futures.pop(sample)
            if future.done():
                continue
            if sample.finish_reason == "failed":
                rule = "the scores of a token are numbers"
                fix = "set sampling settings closer to their defaults"
                future.set_exception(RequestError(f"a request with {sample.sampling}", rule=rule, fix=fix))
            else:
                future.set_result(None)

    def _output(self, sample: Sample | None, with_log_probs: bool) -> TokenOutput:
        versions = [[tokens, version] for tokens, version in sample.versions] if sample else []
        first, last = (versions[0][1], versions[-1][1]) if versions else (self.global_steps, self.global_steps)
        fields: Fields = {GLOBAL_STEPS: last, MIN_GLOBAL_STEPS: first, MAX_GLOBAL_STEPS: last}
        return TokenOutput(
            token_ids=sample.tokens if sample else [],
            log_probs=(sample.log_probs if sample else []) if with_log_probs else None,
            stop_reason=sample.finish_reason if sample else "aborted",
            num_preempted=0,
            extra_fields={**fields, VERSIONS: versions} if len(versions) > 1 else fields,
        )


def _batcher(
    config: RolloutConfig, model_config: HFModelConfig, options: Options, replica_rank: int, device: str
) -> ContinuousBatcher:
    model = get_hf_auto_model_class(model_config.hf_config).from_pretrained(
        str(model_config.local_path),
        config=model_config.hf_config,
        dtype=PrecisionType.to_dtype(config.dtype),
        attn_implementation="sdpa",
        trust_remote_code=model_config.trust_remote_code,
    )
    model.to(device)
    use_onednn(model)
    tokenizer = model_config.tokenizer
    return ContinuousBatcher(
        model,
        max_length=config.max_model_len or model.config.get_text_config().max_position_embeddings,
        capacity=Capacity(config.max_num_seqs, int(options.cache_gib * 2**30), config.max_num_batched_tokens),
        eos={tokenizer.eos_token_id, *_listed(model.generation_config)},
        decode=tokenizer.decode,
        seed=config.seed + replica_rank,
        adapters=Adapters(model, read_table(config.custom)),
    )


def _listed(generation: GenerationConfig | None) -> list[int]:
    eos = generation.eos_token_id if generation else None
    return [] if eos is None else [eos] if isinstance(eos, int) else list(eos)


WORTH_IT = 1 << 16  # smaller layers are left as they are, because calling oneDNN costs more than it saves


class OneDnnLinear(nn.Linear):
    """`nn.Linear` that computes with oneDNN on the same weights, for inference in float32 on a CPU."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        product = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001  torch's only name for it
        output: torch.Tensor = product(input, self.weight, self.bias, "none", [], "")
        return output


def use_onednn(model: nn.Module) -> None:
    """Make the larger float32 linear layers of a model on the CPU compute with oneDNN. Their weights stay the same
    tensors."""
    if not torch.backends.mkldnn.is_available():
        return
    for module in model.modules():
        if type(module) is not nn.Linear or module.weight.numel() < WORTH_IT:
            continue
        if module.weight.device.type == "cpu" and module.weight.dtype == torch.float32:
            module.__class__ = OneDnnLinear
