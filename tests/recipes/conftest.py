"""Fixtures of the tests of recipes."""

from collections.abc import Iterator

import pytest
from hydra.core.global_hydra import GlobalHydra

from verl_mas.checks import machine


@pytest.fixture(autouse=True)
def a_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the checks accept any number of GPUs, because the machine of the tests has too few."""
    monkeypatch.setattr(machine, "available", lambda config: None)
    yield
    GlobalHydra.instance().clear()
