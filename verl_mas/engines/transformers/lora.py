"""LoRA adapters on one model; each row of a batch uses one of the adapters or the bare model."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import cast

import torch
from torch import nn

from verl_mas.config.adapters import Adapter
from verl_mas.engines.adapters import by_policy, require
from verl_mas.engines.transformers.weights import Packed, unpack
from verl_mas.errors import EngineLost

# PEFT's state dict names a tensor by a prefix, the module, and A or B.
PREFIX = "base_model.model."
A, B = ".lora_A.weight", ".lora_B.weight"


class Adapters:
    """All adapters stacked: a linear layer with adapters has A as [sum of ranks, in] and B as [sum of ranks, out].

    The output of a row is `base(x) + ((x A^T) * scales) B`, where the row's scales are zero except at the ranks of its
    adapter. So a batch with different adapters, of any ranks, costs two more products than the base, and a row without
    an adapter gets exactly the base's output.
    """

    def __init__(self, model: nn.Module, table: Mapping[str, Adapter]):
        self._linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        ends = list(accumulate(adapter.rank for adapter in table.values()))
        self._places = {name: slice(end - table[name].rank, end) for name, end in zip(table, ends, strict=True)}
        self._total = ends[-1] if ends else 0
        self._number: dict[str | None, int] = {name: number for number, name in enumerate([None, *table])}
        self._scales = torch.zeros(len(self._number), self._total)
        for name, adapter in table.items():
            self._scales[self._number[name], self._places[name]] = adapter.alpha / adapter.rank
        self._modules: dict[str, set[str]] = {}
        self._used = slice(0, 0)
        self._row_scales = self._scales

    @property
    def names(self) -> list[str]:
        return list(self._places)

    def require(self, name: str | None) -> None:
        """Refuse a request whose adapter has no weights here."""
        require(name, self._places, ready=name in self._modules)

    def aim(self, rows: Sequence[str | None]) -> None:
        """Set the adapter of each row of the next forward pass."""
        places = [self._places[name] for name in set(rows) if name is not None]
        if places:
            # Compute only this range of the stacks, because no row uses adapters outside of it.
            self._used = slice(min(place.start for place in places), max(place.stop for place in places))
            like = next(iter(self._linears.values())).weight
            scales = self._scales[[self._number[name] for name in rows], None, self._used]
            self._row_scales = scales.to(like.device, like.dtype)
        else:
            self._used = slice(0, 0)

    @torch.no_grad()
    def update(self, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights of an adapter. `tensors`: PEFT's name -> weight. If the tensors do not fit the adapter,
        raise EngineLost before any weight changes."""
        given = {_parsed(key): tensor for key, tensor in tensors.items()}
        modules = {module for module, _ in given}
        self._check(name, given, modules)
        place = self._places[name]
        for module in modules:
            a, b = self._stacks(self._linears[module])
            a[place], b[place] = given[module, A], given[module, B].T
        self._modules[name] = modules

    def _check(self, name: str, given: Mapping[tuple[str, str], torch.Tensor], modules: set[str]) -> None:
        rank = self._places[name].stop - self._places[name].start
        for (module, side), tensor in given.items():
            linear = self._linears.get(module)
            expected = linear and ((rank, linear.in_features) if side == A else (linear.out_features, rank))
            if tensor.shape != expected:
                sent = f"{module}{side} {tuple(tensor.shape)}"
                raise EngineLost(f"adapter {name} of rank {rank}: {sent} does not belong to the model")
        wanted = {(module, side) for module in self._modules.get(name, modules) for side in (A, B)}
        if wanted != given.keys():
            names = ", ".join(sorted(module + side for module, side in wanted ^ given.keys()))
            raise EngineLost(f"adapter {name}: the trainer sent other tensors than it has; see {names}")

    def _stacks(self, linear: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
        if not hasattr(linear, "lora_a"):
            # Register buffers, so that they move between devices with the model.
            for buffer, size in (("lora_a", linear.in_features), ("lora_b", linear.out_features)):
                linear.register_buffer(buffer, linear.weight.new_zeros(self._total, size), persistent=False)
            linear.register_forward_hook(self._add)
        return cast(torch.Tensor, linear.lora_a), cast(torch.Tensor, linear.lora_b)

    def _add(self, linear: nn.Linear, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        rank = self._used.stop - self._used.start
        if not rank:
            return output
        a, b = self._stacks(linear)
        low = (inputs[0] @ a[self._used].T) * self._row_scales
        return torch.addmm(output.view(-1, output.shape[-1]), low.view(-1, rank), b[self._used]).view_as(output)


def _parsed(key: str) -> tuple[str, str]:
    for side in (A, B):
        if key.startswith(PREFIX) and key.endswith(side):
            return key.removeprefix(PREFIX).removesuffix(side), side
    raise EngineLost(f"adapter weight {key}: the engine serves LoRA on linear layers, named as in PEFT")


class AdapterUpdate:
    """Collects the buckets of one update, which contains all adapters, and then applies the update between two
    tokens."""

    in_place = False

    def __init__(self, adapters: Adapters):
        self._adapters = adapters
        self._stream: list[tuple[str, torch.Tensor]] = []

    def load(self, bucket: list[Packed]) -> None:
        self._stream += [(packed.name, unpack(packed)) for packed in bucket]

    def finish(self) -> None:
        for name, tensors in by_policy(self._stream, self._adapters.names).items():
            self._adapters.update(name, tensors)
