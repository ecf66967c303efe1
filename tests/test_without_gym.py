"""The package without its toy tasks: a copy without `verl_mas/gym` and its entry points. The copy also lacks the entry
points of recipes, because the data sets and teams of recipes may use the toy tasks."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# tests/test_structure.py holds in every run of the tests that nothing imports the toy tasks.
pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[1]
ENTRIES = re.compile(r'^[\w"-]+ = "verl_mas\.(?:gym|config\.hydra\.recipe)\.[\w.:]*"\n', re.MULTILINE)
USES = """
import importlib, pkgutil, sys, verl_mas
NAMES = "__main__ config.hydra.recipe engines.vllm engines.platform.fsdp engines.platform.hand_over"
SKIPPED = tuple(f"verl_mas.{name}" for name in NAMES.split())
from verl_mas.cli import main
for module in pkgutil.walk_packages(verl_mas.__path__, "verl_mas."):
    # vLLM needs its wheel, `platform.fsdp` is imported by a hook while verl imports its engines, and `hand_over` is a
    # script.
    if not module.name.startswith(SKIPPED):
        importlib.import_module(module.name)
assert main(["list", "teams"]) == main(["list"]) == 0
assert main(["demo"]) == 1
assert main(["check", *sys.argv[1:]]) == 0
"""
CHECK = (
    "+mas=solver_verifier +platform=cpu +recipe=first_run/laptop algorithm.adv_estimator=agent_grpo "
    "data.max_prompt_length=512 data.train_files={0}/train.parquet data.val_files={0}/test.parquet "
    "actor_rollout_ref.model.path={0}/model"
)
FAST = "config/test_registry config/test_groups workflows/test_solver_verifier".split()


@pytest.fixture(scope="module")
def without_gym(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("without_gym")
    for name in ("verl_mas", "hydra_plugins", "tests", "scripts"):
        ignored = shutil.ignore_patterns("__pycache__", "gym")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    project, entries = ENTRIES.subn("", (ROOT / "pyproject.toml").read_text())
    assert entries >= 10 and "verl_mas.gym" not in project
    (folder / "pyproject.toml").write_text(project)
    # Metadata of the copy. It comes first on the path, before this environment's metadata with the gym's entry points.
    installed = folder / "verl_mas-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.4\nName: verl-mas\nVersion: 0\n")
    described = tomllib.loads(project)["project"]
    for group, points in (described["entry-points"] | {"console_scripts": described["scripts"]}).items():
        with (installed / "entry_points.txt").open("a") as file:
            file.write("\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in points.items()), ""]))
    return folder


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = (sys.executable, *command)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_every_module_is_imported_and_the_commands_know_what_is_left(without_gym, letters):
    done = run(without_gym, "-c", USES, *CHECK.format(letters).split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "solver_verifier" in done.stdout and "estimators" in done.stdout
    assert "split_clues" not in done.stdout and "puzzles" not in done.stdout
    assert "no demo is installed" in done.stderr


def test_tests_of_the_core_pass(without_gym):
    files = [f"tests/{name}.py" for name in FAST]
    done = run(without_gym, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files)
    assert done.returncode == 0, done.stdout
