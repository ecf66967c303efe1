from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def workflow_file(tmp_path: Path) -> Callable[[str], dict[str, object]]:
    """The settings of a team whose workflow `Mine` is in a file with this text."""

    def write(text: str) -> dict[str, object]:
        file = tmp_path / "mine.py"
        file.write_text(text)
        workflow = {"name": "Mine", "path": str(file), "args": None}
        return {"mas__workflow": workflow, "mas__agents": None, "mas__policies": None}

    return write
