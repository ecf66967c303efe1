"""The build is described in pyproject.toml. Here is what it cannot say: what to do where a symbolic link was lost.

pip unpacks a zip without links: in place of verl_mas/config/hydra/recipe is then a file with the link's text.
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
