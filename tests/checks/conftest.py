from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

from verl_mas.checks.team import validate
from verl_mas.errors import ConfigError, ConfigErrors


@pytest.fixture
def refused(two: Callable[..., DictConfig]) -> Callable[..., list[ConfigError]]:
    """All errors of a solver and a verifier on a policy each, with these settings."""

    def refused(**settings: object) -> list[ConfigError]:
        try:
            validate(two(**settings))
        except ConfigErrors as errors:
            return list(errors.errors)
        except ConfigError as error:
            return [error]
        return []

    return refused


@pytest.fixture
def workflow_file(tmp_path: Path) -> Callable[[str], dict[str, object]]:
    """The settings of a team whose workflow `Mine` is in a file with this text."""

    def write(text: str) -> dict[str, object]:
        file = tmp_path / "mine.py"
        file.write_text(text)
        workflow = {"name": "Mine", "path": str(file), "args": None}
        return {"mas__workflow": workflow, "mas__agents": None, "mas__policies": None}

    return write
