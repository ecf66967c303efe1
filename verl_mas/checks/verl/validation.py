"""verl's own validation of a configuration. What it accepted is remembered, because importing verl takes seconds."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points, version
from pathlib import Path

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_mas.config.merge import SECTION
from verl_mas.util import installed_version
from verl_mas.verl_.contract import VERSION
from verl_mas.verl_.sources import PACKAGES, file_of

REFUSED = (ValueError, AssertionError, TypeError, NotImplementedError, OmegaConfBaseException, HydraException)
# What the validation of verl's VERSION reads; of another version it is asked again whatever changes beside `mas`.
READ = (
    *(SECTION, "algorithm", "critic", "data.train_batch_size", "data.val_batch_size"),
    *("trainer.nnodes", "trainer.n_gpus_per_node"),
)
KEPT = 1000


def refused_by_verl(view: DictConfig, engine: str | None) -> str:
    """Why verl does not accept a policy's configuration; empty if it does. `engine`: the package that verl may ask."""
    try:
        key = _key(view, engine) if _remembers() else ""
        accepted = _accepted() if key else []
        if key not in accepted:
            _validate(view)
            _write([*accepted, key][-KEPT:]) if key else None
    except REFUSED as error:
        return str(error)
    return ""


def _validate(view: DictConfig) -> None:
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    with contextlib.redirect_stdout(io.StringIO()):
        # As verl's need_reference_policy; `use_kl_in_reward` is refused for a team.
        validate_config(view, use_reference_policy=view[SECTION].actor.use_kl_loss, use_critic=False)
        omega_conf_to_dataclass(view[SECTION].rollout)  # verl's servers do so.


@cache
def _remembers() -> bool:
    """A run has verl loaded, and asks it."""
    return "verl" not in sys.modules


def _key(view: DictConfig, engine: str | None) -> str:
    names = READ if version("verl") == VERSION else [str(name) for name in view if name != "mas"]
    values = [OmegaConf.select(view, name) for name in names]
    plain = [OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value for value in values]
    return _digest([plain, engine and installed_version(engine)])


def _file() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home, "verl-mas", "accepted_by_verl.json").expanduser()


def _accepted() -> list[str]:
    """The keys of what was accepted; none if a file of verl or of ours has changed since, or the file is broken."""
    try:
        stored = json.loads(_file().read_bytes())
        return list(stored["accepted"]) if stored["stamp"] == _stamp() else []
    except (OSError, ValueError, LookupError, TypeError):
        return []


def _write(accepted: list[str]) -> None:
    file = _file()
    new = file.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):  # without a cache each check takes longer
        file.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps({"stamp": _stamp(), "accepted": accepted}))
        new.replace(file)


@cache
def _stamp() -> str:
    """Of the installation: Python, the files of verl and verl-mas, other plugins of verl, the platform."""
    plugins = sorted(
        str((point.value, point.dist and point.dist.version)) for point in entry_points(group="verl.plugins")
    )
    chosen = [
        os.environ.get(name) for name in ("VERL_PLATFORM", "VERL_USE_EXTERNAL_PLUGINS", "VERL_USE_EXTERNAL_MODULES")
    ]
    return _digest([sys.version, sorted(map(str, _stats())), plugins, chosen])


def _stats() -> Iterator[tuple[str, int, int]]:
    for package in PACKAGES:
        file = file_of(package)
        for path in file.parent.rglob("*.py") if file else ():
            found = path.stat()
            yield str(path), found.st_size, found.st_mtime_ns


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()
