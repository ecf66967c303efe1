"""Adapters that share a base: which they are, and what the base's workers and engines are told of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from omegaconf import DictConfig, open_dict

from verl_mas.config.merge import SECTION
from verl_mas.config.schema import FreeSettings, MasConfig

# Where `rollout.custom` has the table of a base's adapters.
KEY = "adapters"
# A bare name that is also a module's, such as `layers`, would empty the state of every other adapter in PEFT.
PREFIX = "mas_"


@dataclass(frozen=True)
class Adapter:
    """One adapter of a base, as its workers and engines know it."""

    policy: str
    rank: int
    alpha: float
    seed: int
    """Of its first weights, which do not depend on the other adapters."""

    path: str | None = None
    """The folder with the weights that it starts from."""

    actor: FreeSettings = field(default_factory=dict)
    """Its `actor` section: optimiser, schedule, clip, loss. Resolved."""

    @property
    def name(self) -> str:
        """In PEFT and in engines."""
        return f"{PREFIX}{self.policy}"


def adapters(mas: MasConfig, base: str) -> list[str]:
    """The policies that are adapters of a base."""
    return [name for name, spec in mas.policies.items() if spec.adapter_of == base]


def bases(mas: MasConfig) -> list[str]:
    """The policies that have adapters."""
    return [name for name in mas.policies if adapters(mas, name)]


def resident(mas: MasConfig, name: str) -> str:
    """The policy whose processes and engines a policy uses: its base's, or its own."""
    return mas.policies[name].adapter_of or name


def write_table(view: DictConfig, table: Mapping[str, Adapter]) -> None:
    """Write the adapters, by policy, into the view of their base, where its workers and engines read them."""
    with open_dict(view):
        rollout = view[SECTION].rollout
        rollout.custom = {**(rollout.get("custom") or {}), KEY: {name: asdict(one) for name, one in table.items()}}


def read_table(custom: Mapping[str, Mapping[str, FreeSettings]] | None) -> dict[str, Adapter]:
    """The adapters of a base, by policy, from `rollout.custom`; none for a policy without adapters."""
    return {name: Adapter(**one) for name, one in ((custom or {}).get(KEY) or {}).items()}  # type: ignore[arg-type]
