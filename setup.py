"""The build is described in pyproject.toml. This file restores a lost symbolic link, which pyproject.toml cannot do.

pip unpacks a zip without links: verl_mas/config/hydra/recipe is then a file that holds the target of the link.
"""

import shutil
from pathlib import Path

from setuptools import setup

link = Path(__file__).parent / "verl_mas" / "config" / "hydra" / "recipe"
if link.is_file():
    target = link.parent / link.read_text().strip()
    link.unlink()
    shutil.copytree(target, link)

setup()
