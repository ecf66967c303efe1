"""Support for several adapters on one base, since verl's engines know only one adapter. This module records which
adapter a request uses, and sorts the tensors of a weight update by adapter."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING

from verl_mas.config.adapters import Adapter, read_table
from verl_mas.errors import EngineLost, RequestError
from verl_mas.verl_.types import Passed

if TYPE_CHECKING:
    import torch
    from verl.workers.config import RolloutConfig
    from verl.workers.rollout.replica import TokenOutput

    class Server:
        """Interface that verl's servers share."""

        config: RolloutConfig

        async def generate(self, *args: Passed, **kwargs: Passed) -> TokenOutput: ...

        async def set_global_steps(self, global_steps: int) -> None: ...
else:
    Server = object

# The policy whose adapter the request of the current asyncio task uses. None: the bare base.
current_adapter: ContextVar[str | None] = ContextVar("adapter", default=None)


def require(adapter: str | None, known: Collection[str], ready: bool) -> None:
    """Raise RequestError if the engine lacks the request's adapter or the weights of the adapter. Without this check,
    the bare base would reply, and there would be no error."""
    if adapter is not None and adapter not in known:
        fix = "name one of them, or none for the bare base" if known else "leave adapter out"
        raise RequestError(f"adapter={adapter!r}", rule=f"the engine has {', '.join(known) or 'no adapters'}", fix=fix)
    if adapter is not None and not ready:
        value = f"adapter={adapter!r}"
        raise RequestError(value, rule="the engine has not received its weights", fix="send them with update_weights")


class AdapterServer(Server):
    """Mixin for verl's server classes, placed before them in the bases. It changes nothing for a server without
    adapters."""

    updates = 0  # how often the engine has received weights

    @property
    def adapters(self) -> dict[str, Adapter]:
        return read_table(self.config.custom)

    async def generate(self, *args: Passed, adapter: str | None = None, **kwargs: Passed) -> TokenOutput:
        # Check the adapter first, because vLLM's engine would crash at a request whose adapter is not loaded.
        require(adapter, self.adapters, ready=self.updates > 0)
        token = current_adapter.set(adapter)
        try:
            return await super().generate(*args, **kwargs)
        finally:
            current_adapter.reset(token)

    async def set_global_steps(self, global_steps: int) -> None:
        """Count an update. verl calls this method when new weights have arrived."""
        await super().set_global_steps(global_steps)
        self.updates += 1


def by_policy(
    weights: Iterable[tuple[str, torch.Tensor]], policies: Collection[str]
) -> dict[str, dict[str, torch.Tensor]]:
    """Sort the tensors of a weight update by policy and key. Raises EngineLost if a policy gets no tensors, or if a
    tensor belongs to a policy that is not in `policies`."""
    tensors: dict[str, dict[str, torch.Tensor]] = {policy: {} for policy in policies}
    for name, tensor in weights:
        policy, _, key = name.partition(_BETWEEN)
        if policy not in tensors:
            raise EngineLost(f"the trainer sent weights of {policy}, and the engine has {', '.join(policies)}")
        tensors[policy][key] = tensor
    if missing := [policy for policy in policies if not tensors[policy]]:
        raise EngineLost(f"the trainer sent nothing of {', '.join(missing)}")
    return tensors


# The separator between policy and key. Neither names of policies nor names of weights contain it.
_BETWEEN = "\0"


def stream_name(policy: str, key: str) -> str:
    """Name a tensor of a policy's adapter in a weight update; `key` is the tensor's key in PEFT's state dict."""
    return f"{policy}{_BETWEEN}{key}"
