"""What tests of recipes share."""

from collections.abc import Iterator

import pytest
from hydra.core.global_hydra import GlobalHydra

from verl_mas.checks import machine


@pytest.fixture(autouse=True)
def a_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The checks find enough GPUs, which the machine of the tests does not have."""
    monkeypatch.setattr(machine, "available", lambda config: None)
    yield
    GlobalHydra.instance().clear()
