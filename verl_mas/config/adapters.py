"""LoRA adapters on a shared base: finds the policies that are adapters, and makes the table of their settings. The
workers and engines of the base read this table."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TypeAlias, cast
from zlib import crc32

from omegaconf import DictConfig, OmegaConf, open_dict

from verl_mas.config.merge import SECTION, set_mode
from verl_mas.config.run import Run
from verl_mas.config.schema import FreeSettings, MasConfig
from verl_mas.errors import ConfigError

# Selection of the modules for a LoRA adapter, by PEFT's rules.


ALL_LINEAR = "all-linear"
# A string is a regular expression that matches whole names of modules. An item of a list is the whole name of a module
# or its last parts.
Targets: TypeAlias = str | list[str] | None


def plain(names: object) -> Targets:
    """Convert an OmegaConf list to a plain list. A string and None are returned unchanged."""
    return names if names is None or isinstance(names, str) else [str(name) for name in cast("Iterable[object]", names)]


def targeted(names: Iterable[str], wanted: Targets, excluded: Targets = None) -> list[str]:
    """Filter the names by `target_modules` and `exclude_modules`.

    `all-linear` and None select all names; the caller leaves out modules that are not linear, and the head.
    """
    kept = [name for name in names if not (excluded and _selects(excluded, name, "exclude_modules"))]
    if wanted is None or wanted == ALL_LINEAR:
        return kept
    return [name for name in kept if _selects(wanted, name, "target_modules")]


def _selects(wanted: str | list[str], name: str, key: str) -> bool:
    if not isinstance(wanted, str):
        return any(name == item or name.endswith(f".{item}") for item in wanted)
    try:
        return re.fullmatch(wanted, name) is not None
    except re.error as error:
        rule = f"a string is a regular expression: {error}"
        raise ConfigError(f"model.{key}={wanted}", rule=rule, fix="correct it, or name modules") from error


# Key in the `extra_info` of a batch. Its value is the policy whose adapter is used. Without this key, the base is used
# without an adapter.
ADAPTER = "adapter"

# Key in `rollout.custom` with the table of a base's adapters.
KEY = "adapters"
# Prefix of adapter names in PEFT. Without it, an adapter with the name of a module, such as `layers`, would make
# PEFT empty the state of every other adapter.
PREFIX = "mas_"


@dataclass(frozen=True)
class Adapter:
    """One adapter of a base, as its workers and engines know it."""

    policy: str
    rank: int
    alpha: float
    seed: int  # Seed of its initial weights, so that these do not depend on the other adapters
    path: str | None = None  # The folder with the weights from which it starts
    target_modules: Targets = ALL_LINEAR
    exclude_modules: Targets = None

    actor: FreeSettings = field(default_factory=dict)  # Its resolved `actor` section: optimiser, schedule, clip, loss

    @property
    def name(self) -> str:
        """The name of the adapter in PEFT and in engines."""
        return f"{PREFIX}{self.policy}"


def adapters(mas: MasConfig, base: str) -> list[str]:
    """List the policies that are adapters of a base."""
    return [name for name, spec in mas.policies.items() if spec.adapter_of == base]


def bases(mas: MasConfig) -> list[str]:
    """List the policies that have adapters."""
    return [name for name in mas.policies if adapters(mas, name)]


def host_policy(mas: MasConfig, name: str) -> str:
    """Return the policy whose processes and engines a policy uses: its base, or the policy itself."""
    return mas.policies[name].adapter_of or name


def adapter_table(run: Run, base: str) -> dict[str, Adapter]:
    """Make the table of a base's adapters, by policy, for `write_table`."""
    table = {}
    for name in adapters(run.mas, base):
        view = run.view(name).copy()
        set_mode(view, run.mas.loss.weighting)
        model, actor = view[SECTION].model, OmegaConf.to_container(view[SECTION].actor, resolve=True)
        assert isinstance(actor, dict)
        table[name] = Adapter(
            policy=name,
            rank=int(model.lora_rank),
            alpha=float(model.lora_alpha),
            seed=crc32(f"{view[SECTION].actor.fsdp_config.seed}/{name}".encode()),
            path=str(Path(path).expanduser()) if (path := model.get("lora_adapter_path")) else None,
            target_modules=plain(model.get("target_modules")),
            exclude_modules=plain(model.get("exclude_modules")),
            actor={str(key): value for key, value in actor.items()},
        )
    return table


def write_table(view: DictConfig, table: Mapping[str, Adapter]) -> None:
    """Write the adapters, by policy, into the view of their base, from which its workers and engines read them.

    verl then sees one model with an adapter of the largest rank on the modules of all adapters, and prepares workers
    and engines for it. Only SGLang reads the `target_modules` of this adapter.
    """
    with open_dict(view):
        rollout, model = view[SECTION].rollout, view[SECTION].model
        rollout.custom = {**(rollout.get("custom") or {}), KEY: {name: asdict(one) for name, one in table.items()}}
        model.lora_rank = max(one.rank for one in table.values())
        each = [one.target_modules for one in table.values()]
        lists = [names for names in each if names is not None and not isinstance(names, str)]
        model.target_modules = sorted({*chain(*lists)}) if len(lists) == len(each) else ALL_LINEAR
        # The table has the path of each adapter, so clear the path in the view of the base.
        model.lora_adapter_path = None


def read_table(custom: Mapping[str, Mapping[str, FreeSettings]] | None) -> dict[str, Adapter]:
    """Read the table of a base's adapters, by policy, from `rollout.custom`. The table of a policy without adapters is
    empty."""
    return {name: Adapter(**one) for name, one in ((custom or {}).get(KEY) or {}).items()}
