"""verl's FSDP engines on the CPU, without offloading."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from tensordict import TensorDict
from torch.distributed.fsdp import _init_utils
from torch.distributed.tensor import DTensor
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_name
from verl.utils.fsdp_utils import merged_lora_context, normalize_peft_param_name
from verl.utils.model import convert_weight_keys
from verl.utils.torch_functional import entropy_from_logits
from verl.workers.config import FSDPEngineConfig
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

from verl_mas.platform.prefixes import Tree, fits

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class _NothingToOffload:
    """Offloaded parameters live in pinned memory on the CPU; here they are on the CPU, and nothing can be pinned."""

    engine_config: FSDPEngineConfig

    def _merged_lora_per_tensor_param(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Send merged weights as they are; verl rounds them to bfloat16."""
        module = cast("PreTrainedModel", vars(self)["module"])
        with merged_lora_context(module, backup_adapters=True):
            merged = normalize_peft_param_name(module.state_dict())
            root = getattr(module, "_fsdp_wrapped_module", module)
            for name, weight in convert_weight_keys(merged, root).items():
                # A copy: the base's own weights are back before the receiver has read them.
                yield name, (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach().clone()

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        original = self.engine_config
        self.engine_config = dataclasses.replace(original, forward_only=False, offload_policy=False)
        try:
            built: torch.nn.Module = super()._build_fsdp_module(module)  # type: ignore[misc]
            return built
        finally:
            self.engine_config = original


Processor: TypeAlias = Callable[..., Any]
# Of a micro batch: what only verl's own code computes.
_OTHERWISE = ("use_remove_padding", "use_fused_kernels", "calculate_sum_pi_squared", "distillation_use_topk")
_TREE = "tree"


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class CpuEngineWithLMHead(_NothingToOffload, FSDPEngineWithLMHead):
    """Computes a prefix that rows share once, and logits for replies alone, where that is less work."""

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        inputs, arguments = super().prepare_model_inputs(micro_batch)
        tree = self._tree(micro_batch, inputs)
        if tree is None:
            return inputs, arguments
        shared = {
            "input_ids": torch.tensor([tree.tokens]),
            "position_ids": torch.tensor([tree.depths]),
            "attention_mask": tree.mask[None, None],
            "logits_to_keep": torch.tensor(tree.predicting),
        }
        return shared, {**arguments, _TREE: tree}

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, logits_processor_func: Processor
    ) -> dict[str, torch.Tensor]:
        """Log-probs, and entropies if requested, of a tree's replies; 0 for the other tokens."""
        tree: Tree | None = output_args.get(_TREE)
        if tree is None:
            done: dict[str, torch.Tensor] = super().prepare_model_outputs(
                output, output_args, micro_batch, logits_processor_func
            )
            return done
        ids = micro_batch["input_ids"]
        logits = output.logits[0].float() / output_args["temperature"][0]
        found = {"log_probs": tree.log_probs(logits)}
        if tu.get(micro_batch, "calculate_entropy"):
            found["entropy"] = tree.of_replies(entropy_from_logits(logits))
        # The types of verl's own code, as other micro batches of a batch may be no trees: log-probs are in float32.
        types = {"log_probs": torch.promote_types(output.logits.dtype, torch.float32), "entropy": output.logits.dtype}
        size, places = len(ids.values()), torch.tensor(tree.places)
        return {
            name: torch.nested.nested_tensor_from_jagged(
                values.new_zeros(size, dtype=types[name]).index_put((places,), values.to(types[name])), ids.offsets()
            )
            for name, values in found.items()
        }

    def _tree(self, micro_batch: TensorDict, inputs: Mapping[str, Any]) -> Tree | None:
        """None where it would be more work, or is none of a causal model's rows of text."""
        prompts, temperatures = micro_batch.get("prompts", None), micro_batch["temperature"]
        if prompts is None or not prompts.is_nested or inputs.keys() != {"input_ids", "attention_mask", "position_ids"}:
            return None
        if not self._reads_masks or any(tu.get(micro_batch, name) for name in _OTHERWISE):
            return None
        if len(torch.as_tensor(temperatures).unique()) > 1:
            return None
        tree = Tree.of([row.tolist() for row in micro_batch["input_ids"].unbind()], prompts.offsets().diff().tolist())
        rows, columns = inputs["input_ids"].shape
        of_token, of_pair = self._work
        n = len(tree.tokens)
        return tree if n * of_token + n * n * of_pair < rows * columns * (of_token + columns * of_pair) else None

    @cached_property
    def _work(self) -> tuple[int, int]:
        """Multiplications for a token, and for a pair of tokens in attention."""
        config = self.module.config.get_text_config()
        parameters = sum(math.prod(parameter.shape) for parameter in self.module.parameters())
        return parameters, 2 * config.hidden_size * config.num_hidden_layers

    @cached_property
    def _reads_masks(self) -> bool:
        return self.model_config.override_config.get("attn_implementation") == "sdpa" and fits(self.module.config)


@EngineRegistry.register(model_type="value_model", backend=["fsdp", "fsdp2"], device="cpu")
class CpuEngineWithValueHead(_NothingToOffload, FSDPEngineWithValueHead): ...


def _nothing(parameters: object) -> None:
    """They are on the device already."""


if get_device_name() == "cpu":
    # FSDP1 wants its parameters on a GPU: torch when it broadcasts them at the start, verl when it reads them.
    _init_utils._check_module_states_for_sync_module_states = _nothing  # type: ignore[assignment]  # noqa: SLF001
    transformer_impl.load_fsdp_model_to_gpu = _nothing  # type: ignore[attr-defined,assignment]
