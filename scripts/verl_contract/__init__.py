"""The parts of verl that verl-mas uses beyond public functions and classes: overrides, private names, texts, keys.

The tables are data, in `overridden.json` and `contract.yaml`. `differences` compares them with the installed verl,
whose source is read but not imported. A test checks that the tables have every override and every private name.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from verl_contract.sources import file_of, find, parameters, tree_of
from verl_mas.util import read_yaml
from verl_mas.verl_ import VERSION

__all__ = ["VERSION"]  # The version that the tables describe.
_HERE = Path(__file__).parent
_TABLES = read_yaml(_HERE / "contract.yaml")
# Class of verl -> method that verl-mas overrides -> the method's parameters. Made by `scripts/lock_overrides.py`.
OVERRIDDEN: dict[str, dict[str, str]] = json.loads((_HERE / "overridden.json").read_text(encoding="utf-8"))
# contract.yaml explains each entry of these tables.
USED: dict[str, dict[str, str | None]] = _TABLES["used"]
MIXED_INTO: dict[str, str] = _TABLES["mixed_into"]
TEXTS: dict[str, dict[str, int]] = _TABLES["texts"]
RESTATED: dict[str, tuple[str, str]] = _TABLES["restated"]
KEYS: list[str] = _TABLES["keys"]


@dataclass(frozen=True)
class Deviation:
    """A difference from the tables. With `breaks`, verl-mas calls or overrides this part, so it may fail.

    Without `breaks`, the change should only be reviewed.
    """

    what: str
    seen: str
    breaks: bool = True

    def __str__(self) -> str:
        return f"{self.what}: {self.seen}"


def differences() -> list[Deviation]:
    if file_of("verl") is None:
        return [Deviation("verl", "is not installed")]
    return [*_names(), *_texts(), *_restated(), *_keys()]


def _names() -> Iterator[Deviation]:
    for table in (OVERRIDDEN, USED):
        for owner, members in table.items():
            for name, known in members.items():
                path = f"{owner}.{name}" if ":" in owner else f"{owner}:{name}"
                if (found := find(path)) is None:
                    yield Deviation(path, "is missing")
                elif (now := parameters(found.node)) != known:
                    yield Deviation(path, f"takes ({now}); verl-mas expects ({known})")


def _texts() -> Iterator[Deviation]:
    for module, texts in TEXTS.items():
        tree = tree_of(module)
        constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)] if tree else []
        for text, times in texts.items():
            if (now := constants.count(text)) != times:
                yield Deviation(f"{module} {text!r}", f"occurs {now} times; verl-mas expects {times}", breaks=now == 0)


def _restated() -> Iterator[Deviation]:
    for path, (digest, ours) in RESTATED.items():
        if (now := digest_of(path)) != digest:
            seen = f"has changed ({now}); verl_mas/{ours} depends on it" if now else "is missing"
            yield Deviation(path, seen, breaks=not now)


def digest_of(path: str) -> str:
    """Return the digest of a function's source; empty if the source is missing."""
    found = find(path)
    file = file_of(found.module) if found else None
    source = ast.get_source_segment(file.read_text(), found.node) if found and file else None
    return hashlib.sha256(source.encode()).hexdigest()[:12] if source else ""


def _keys() -> Iterator[Deviation]:
    config = generated_config()
    for key in KEYS:
        if not is_setting(config, key):
            yield Deviation(key, "is not a setting of verl")


def generated_config() -> DictConfig:
    """Return verl's own configuration, as its release contains it in composed form."""
    verl = file_of("verl")
    assert verl is not None
    config = OmegaConf.load(verl.parent / "trainer/config/_generated_ppo_trainer.yaml")
    assert isinstance(config, DictConfig)
    return config


def is_setting(config: DictConfig, key: str) -> bool:
    parent, _, name = key.rpartition(".")
    section = OmegaConf.select(config, parent)
    return isinstance(section, DictConfig) and name in section.keys()  # noqa: SIM118  # `in` ignores missing values
