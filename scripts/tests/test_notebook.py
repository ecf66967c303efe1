"""Test of the notebook: all cells are executed in order, as by a reader, but with fewer training steps."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs/start/first_team.ipynb"
nbformat = pytest.importorskip("nbformat", reason='needs Jupyter: pip install ".[notebook]"', exc_type=ImportError)
nbclient = pytest.importorskip("nbclient", reason='needs Jupyter: pip install ".[notebook]"', exc_type=ImportError)


def test_the_notebook_trains_a_team_and_shows_its_run_and_a_session(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPS", "3")
    # Jupyter starts Python outside of the repository, and `!verl-mas` in a shell, so both need these paths.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    (tmp_path / "executed.ipynb").write_text(nbformat.writes(notebook))
    shown = ["".join(map(str, cell.get("outputs", ()))) for cell in notebook.cells if cell.cell_type == "code"]
    tried, scripted, checked, live, reported, trained = (shown[place] for place in (2, 3, 5, 6, 7, 8))
    assert "accepted" in tried and "accepted" in checked and "navigator, turn 0" in scripted
    assert "<svg" in live and "a session of step 3" in reported and "navigator, turn 0" in trained
