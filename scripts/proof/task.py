"""Make the data and the models of the proof: `python task.py FOLDER PARAMETERS`."""

from __future__ import annotations

import sys
from pathlib import Path

from verl_mas.testing import letters
from verl_mas.testing.tiny_model import tiny_model

if __name__ == "__main__":
    folder, parameters = Path(sys.argv[1]), int(sys.argv[2])
    letters.write(folder, train=64, test=16)
    # Both models have attention heads of size 64, which all engines support.
    tiny_model(folder / "small", hidden=128, layers=2)
    tiny_model(folder / "large", parameters=parameters) if parameters else tiny_model(folder / "large", hidden=128)
