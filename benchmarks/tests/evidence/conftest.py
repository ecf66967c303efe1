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
    """Import a module of benchmarks/evidence by name. After the test, its estimators and data sets are removed."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setattr(ESTIMATORS, "_entries", {name: ESTIMATORS[name] for name in ESTIMATORS})
    data_sets = vars(DATA_SETS)["_entries"]
    before, known = set(sys.modules), set(data_sets)
    yield lambda name: importlib.import_module(f"benchmarks.evidence.{name}")
    for name in set(sys.modules) - before:
        if name == "benchmarks" or name.startswith("benchmarks."):
            del sys.modules[name]
    # Keep the data sets of other modules, which stay imported and so would not register their data sets again.
    for name in data_sets.keys() - known:
        if data_sets[name].__module__.startswith("benchmarks."):
            del data_sets[name]
