from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from verl_mas.advantage import ESTIMATORS
from verl_mas.data.dataset import DATA_SETS

ROOT = Path(__file__).parents[3]


@pytest.fixture
def evidence(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import a module of benchmarks/evidence by name. What it registers is removed after the test."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setattr(ESTIMATORS, "_entries", {name: ESTIMATORS[name] for name in ESTIMATORS})
    monkeypatch.setattr(DATA_SETS, "_entries", {name: DATA_SETS[name] for name in DATA_SETS})
    before = set(sys.modules)
    yield lambda name: importlib.import_module(f"benchmarks.evidence.{name}")
    for name in set(sys.modules) - before:
        if name == "benchmarks" or name.startswith("benchmarks."):
            del sys.modules[name]
