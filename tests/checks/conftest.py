from __future__ import annotations

from collections.abc import Callable

import pytest

from verl_mas.checks.team import validate
from verl_mas.errors import ConfigError, ConfigErrors


@pytest.fixture
def refused(two) -> Callable[..., list[ConfigError]]:
    """All errors of a solver and a verifier on a policy each, with these settings."""

    def refused(**settings) -> list[ConfigError]:
        try:
            validate(two(**settings))
        except ConfigErrors as errors:
            return list(errors.errors)
        except ConfigError as error:
            return [error]
        return []

    return refused


@pytest.fixture
def workflow_file(tmp_path) -> Callable[[str], dict]:
    """The settings of a team whose workflow `Mine` is in a file with this text."""

    def write(text: str) -> dict:
        file = tmp_path / "mine.py"
        file.write_text(text)
        workflow = {"name": "Mine", "path": str(file), "args": None}
        return {"mas__workflow": workflow, "mas__agents": None, "mas__policies": None}

    return write
