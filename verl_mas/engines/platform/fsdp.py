"""verl's FSDP engines with two changes: shared prefixes are computed once, and nothing is offloaded on the CPU."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.fsdp import _init_utils
from torch.distributed.tensor import DTensor
from transformers import AutoModel, AutoModelForTokenClassification
from verl.utils import model as verls_models
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_name
from verl.utils.fsdp_utils import merged_lora_context, normalize_peft_param_name
from verl.utils.model import convert_weight_keys
from verl.workers.config import FSDPEngineConfig
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead
from verl.workers.engine.utils import prepare_micro_batches

from verl_mas.config.verl_settings import DEFAULT_ATTENTION
from verl_mas.engines.platform.prefixes import Line, Tree, Work, cut, divided, in_order, not_covered, size_of
from verl_mas.errors import ConfigError
from verl_mas.verl_.types import Fields, Passed

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

Processor: TypeAlias = Callable[..., Passed]
MicroBatches: TypeAlias = tuple[list[TensorDict], list[list[int]] | None]
VENDOR = "verl_mas_shared_prefixes"
_VARIABLE = "VERL_ENGINE_VENDOR"
_CUTS = "prepare_micro_batches"  # verl's function, which is replaced while an engine computes
METRIC = "shared_tokens"  # share of an update's tokens that are not computed, because another row has the same prefix
# If a batch has one of these settings, either no logits or the logits of all tokens are computed. Prefixes are then
# not shared.
_OTHERWISE = ("use_fused_kernels", "distillation_use_topk")
_TREE = "tree"
# Trees are used if their estimated work is below this share of the work of verl's own micro batches.
WORTH = 0.95
# Costs on a CPU (benchmarks/prefixes.py). ATTENTION: the cost of a multiplication for a pair of tokens, relative to
# other multiplications. It is above 1 because attention scores are also exponentiated. START: the fixed cost of a micro
# batch, measured in tokens. It arises because the gradient of a micro batch is added to the gradients of the others.
ATTENTION, START = 1.5, 50


@contextmanager
def chosen(vendor: str) -> Iterator[None]:
    """Make verl build the engine that is registered for a vendor."""
    before = os.environ.get(_VARIABLE, "")  # for verl, an empty value is the same as no variable
    os.environ[_VARIABLE] = vendor
    try:
        yield
    finally:
        os.environ[_VARIABLE] = before


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=["cuda", "npu"], vendor=VENDOR)
class SharedPrefixes(FSDPEngineWithLMHead):
    """verl's engine. After a call of `share`, it computes a common prefix of several rows only once.

    A micro batch in which prefixes are shared is a tree. Trees use FlexAttention on CUDA. Elsewhere they use torch's
    attention with a mask of all pairs of tokens, because FlexAttention has no gradient on a CPU. Each forward pass
    first switches the model to the attention for trees or for rows. The backward pass uses the same attention, because
    it comes before the next forward pass.
    """

    shares = False
    _trees = False  # whether the micro batches of this batch are trees
    # Share of this batch's tokens that are not computed; None if prefixes are never shared.
    _share: float | None = None

    def initialize(self) -> None:
        super().initialize()
        self._attention = self.model_config.override_config.get("attn_implementation", DEFAULT_ATTENTION)
        trees = "flex_attention" if get_device_name() == "cuda" else "sdpa"
        self._attentions = {False: self._attention, True: trees}

    def share(self, wanted: Literal["auto"] | bool) -> None:
        """Share prefixes if the model allows it. `wanted`: the setting mas.shared_prefixes."""
        fused, parts = self.model_config.use_fused_kernels, self.ulysses_sequence_parallel_size
        why = not_covered(self.module.config.to_dict(), fused=fused, ulysses=parts)
        if wanted is True and why:
            fix = "set mas.shared_prefixes=auto, which computes the other policies by rows"
            raise ConfigError("mas.shared_prefixes=True", rule=why, fix=fix)
        if wanted and why and self.get_data_parallel_rank() == 0:
            print(f"prefixes are computed for each row: {why}", flush=True)  # noqa: T201  # the log of a worker
        self.shares = bool(wanted) and not why

    def forward_backward_batch(
        self, data: TensorDict, loss_function: Passed, forward_only: bool = False
    ) -> list[TensorDict]:
        setattr(transformer_impl, _CUTS, self._micro_batches)
        try:
            return super().forward_backward_batch(data, loss_function, forward_only)
        finally:
            setattr(transformer_impl, _CUTS, prepare_micro_batches)

    def forward_step(
        self, micro_batch: TensorDict, loss_function: Processor | None, forward_only: bool
    ) -> tuple[Tensor, Fields]:
        loss, output = super().forward_step(micro_batch, loss_function, forward_only)
        if self._share is not None and not forward_only:
            output["metrics"][METRIC] = self._share
        return loss, output

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[Fields, Fields]:
        if self._attention != self._attentions[self._trees]:
            self._attention = self._attentions[self._trees]
            self.module.set_attn_implementation(self._attention)
        if not self._trees:
            verls: tuple[Fields, Fields] = super().prepare_model_inputs(micro_batch)
            return verls
        ids = micro_batch["input_ids"]
        tree, flex = Tree.of(ids.unbind(), _replies(micro_batch)), self._attention == "flex_attention"
        inputs = {
            "input_ids": tree.tokens[None].to(ids.device),
            "position_ids": tree.depths[None].to(ids.device),
            "attention_mask": tree.blocks(ids.device) if flex else tree.mask(ids.device)[None, None],
            "logits_to_keep": tree.predicting.to(ids.device),
        }
        return inputs, {_TREE: tree}

    def prepare_model_outputs(
        self, output: Passed, output_args: Fields, micro_batch: TensorDict, logits_processor_func: Processor
    ) -> dict[str, Tensor]:
        """Return verl's outputs for the tokens of replies, and 0 for all other tokens. verl gets the replies of a tree
        as packed rows without prompts."""
        verls: Callable[..., dict[str, Tensor]] = super().prepare_model_outputs
        tree: Tree | None = output_args.get(_TREE)
        if tree is None:
            return verls(output, output_args, micro_batch, logits_processor_func)
        ids, temperature = micro_batch["input_ids"], micro_batch["temperature"]
        places, counts = tree.predicted.to(ids.device), tree.counts.to(ids.device)
        labels = ids.values()[places]
        each = torch.as_tensor(temperature, dtype=torch.float32, device=ids.device).expand(len(counts))
        arguments = {
            "input_ids_rmpad_rolled": labels,
            "temperature_rmpad": each.repeat_interleave(counts),
            "temperature_is_one": not isinstance(temperature, Tensor) and temperature == 1.0,
            "pad_size": 0,
        }
        replies = micro_batch.clone(recurse=False)
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        replies["input_ids"] = torch.nested.nested_tensor_from_jagged(labels, offsets)
        tu.assign_non_tensor(replies, use_remove_padding=True)
        found, size = verls(output, arguments, replies, logits_processor_func), len(ids.values())
        return {
            name: torch.nested.nested_tensor_from_jagged(
                # verl stores the output for a token at the index of the token before it.
                values.values().new_zeros(size).index_put((places - 1,), values.values()),
                ids.offsets(),
            )
            for name, values in found.items()
        }

    def _micro_batches(self, data: TensorDict, dp_group: ProcessGroup | None = None, **options: Passed) -> MicroBatches:
        """Return verl's micro batches, or micro batches of rows with common prefixes. All workers choose the same kind
        and the same number of micro batches."""
        verls: MicroBatches = prepare_micro_batches(data=data, dp_group=dp_group, **options)
        self._trees, self._share = False, None
        nested = getattr(data.get("response_mask", None), "is_nested", False)
        if not self.shares or not nested or any(tu.get(data, name) for name in _OTHERWISE):
            return verls
        self._share = 0.0
        rows = data["input_ids"].unbind()
        lines = in_order([row.cpu() for row in rows], _replies(data))
        batches = self._cut(data, lines)
        computed = [size_of(batch, lines) for batch in batches]
        predicted = sum(line.predicted for line in lines)
        trees = sum(self._work.of(size, 0, size * size) for size in computed) + predicted * self._work.logits
        totals = torch.tensor([trees, sum(map(self._of_rows, verls[0]))], device=get_device_name())
        most = torch.tensor(len(batches), device=get_device_name())
        torch.distributed.all_reduce(totals, group=dp_group)
        torch.distributed.all_reduce(most, op=torch.distributed.ReduceOp.MAX, group=dp_group)
        if totals[0] > WORTH * totals[1]:
            return verls
        self._trees, self._share = True, 1 - sum(computed) / sum(len(row) for row in rows)
        places = [[lines[number].row for number in batch] for batch in divided(batches, int(most))]
        # This setting makes verl restore the order of the rows in the results.
        tu.assign_non_tensor(data, use_dynamic_bsz=True)
        return [tu.index_select_tensor_dict(data, rows) for rows in places], places

    def _cut(self, data: TensorDict, lines: list[Line]) -> list[list[int]]:
        if tu.get(data, "use_dynamic_bsz", default=True):
            return cut(lines, tu.get(data, "max_token_len_per_gpu"), self._work)
        size = tu.get(data, "micro_batch_size_per_gpu")
        return [list(range(first, first + size)) for first in range(0, len(lines), size)]

    def _of_rows(self, micro_batch: TensorDict) -> float:
        """Estimate the work of verl's own forward pass of a micro batch."""
        lengths = micro_batch["input_ids"].offsets().diff().double()
        packed = tu.get(micro_batch, "use_remove_padding", default=True)
        flash = str(self._attentions[False]).startswith("flash")
        tokens = lengths.sum() if packed else len(lengths) * lengths.max()
        pairs = (lengths**2).sum() if flash else tokens**2 if packed else len(lengths) * lengths.max() ** 2
        return float(self._work.of(tokens, tokens, pairs))

    @cached_property
    def _work(self) -> Work:
        config = self.module.config.get_text_config()
        # Count the parameters of a new model, because with FSDP1 this worker has only a part of the parameters.
        with torch.device("meta"):
            body = AutoModel.from_config(config).num_parameters(exclude_embeddings=True)
        pair = ATTENTION * 2 * config.hidden_size * config.num_hidden_layers
        head = config.hidden_size * config.vocab_size
        return Work(body, head, pair if self._attentions[True] == "sdpa" else 0, START * body)


def _replies(rows: TensorDict) -> list[Tensor]:
    """Return a mask for the last tokens of each row, which marks the tokens that are trained. If no row has such a
    token, mark one token, so that there is a gradient."""
    masks: list[Tensor] = [mask != 0 for mask in rows["response_mask"].unbind()]
    masks[0][-1] |= not any(mask.any() for mask in masks)
    return masks


class _NothingToOffload:
    """Mixin that turns off offloading. Offloading needs pinned memory, which does not exist without an accelerator."""

    engine_config: FSDPEngineConfig

    def _merged_lora_per_tensor_param(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield merged weights in their own dtype; verl rounds them to bfloat16."""
        module = cast("PreTrainedModel", vars(self)["module"])
        with merged_lora_context(module, backup_adapters=True):
            merged = normalize_peft_param_name(module.state_dict())
            root = getattr(module, "_fsdp_wrapped_module", module)
            for name, weight in convert_weight_keys(merged, root).items():
                # Copy, because the base's own weights are restored before the receiver reads the merged weights.
                yield name, (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach().clone()

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        original = self.engine_config
        self.engine_config = dataclasses.replace(original, forward_only=False, offload_policy=False)
        try:
            built: torch.nn.Module = super()._build_fsdp_module(module)  # type: ignore[misc]
            return built
        finally:
            self.engine_config = original


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class CpuEngineWithLMHead(_NothingToOffload, SharedPrefixes):
    """An engine that can share prefixes. In a run with a team, `mas.shared_prefixes` decides; in a run without a team,
    `use_remove_padding` turns sharing off."""

    def initialize(self) -> None:
        super().initialize()
        self.share("auto" if not self.use_remove_padding else False)


@EngineRegistry.register(model_type="value_model", backend=["fsdp", "fsdp2"], device="cpu")
class CpuEngineWithValueHead(_NothingToOffload, FSDPEngineWithValueHead): ...


def _value_model(local_path: str, model_config: PretrainedConfig, **options: Passed) -> PreTrainedModel:
    """Load a model with one value per token, with the attention of its configuration; verl always uses flash-attn."""
    made: PreTrainedModel = AutoModelForTokenClassification.from_pretrained(local_path, config=model_config, **options)
    return made


def _nothing(parameters: object) -> None:
    """Do nothing: the parameters are on the device already."""


if get_device_name() == "cpu":
    # Turn off two steps of FSDP1 that need a GPU: torch checks that parameters are on a GPU before it broadcasts them,
    # and verl moves parameters to a GPU before it reads them.
    _init_utils._check_module_states_for_sync_module_states = _nothing  # type: ignore[assignment]  # noqa: SLF001
    transformer_impl.load_fsdp_model_to_gpu = _nothing  # type: ignore[attr-defined,assignment]
    vars(verls_models).update(load_valuehead_model=_value_model)
