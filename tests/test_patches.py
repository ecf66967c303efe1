"""The pull requests of patches/upstream: the versions to which they apply, and the code that they make unnecessary.
`scripts/upstream.py` runs their own tests in a checkout of verl."""

import ast
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import upstream
import verl
from verl_contract import VERSION

from verl_mas.engines.platform.process_group import AFTER, BEFORE
from verl_mas.trainer.recorded import KeptFile

ROOT = Path(__file__).parents[1]
SITE_PACKAGES = Path(verl.__file__).parents[1]
NAMES = sorted(path.stem for path in upstream.PATCHES.glob("*.patch"))
INDEX = (upstream.PATCHES.parent / "README.md").read_text()
CELLS = {
    cells[0]: cells[1:] for cells in re.findall(r"^\| \[`([\w-]+)`\].*?\| .*? \| (.*?) \| (.*?) \| .* \|$", INDEX, re.M)
}


def text_of(name: str) -> str:
    return (upstream.PATCHES / f"{name}.patch").read_text()


def changed(name: str) -> list[str]:
    return re.findall(r"^--- a/(verl/\S+)", text_of(name), re.M)


def apply(name: str, folder: Path, *files: str) -> None:
    """Copy the files of the installed verl that a patch changes into a folder, and apply the patch."""
    for file in files or changed(name):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SITE_PACKAGES / file, folder / file)
    only = [f"--include={file}" for file in files or ["verl/*"]]
    subprocess.run(["git", "apply", *only, upstream.PATCHES / f"{name}.patch"], cwd=folder, check=True)


def module_of(name: str, folder: Path, file: str) -> ModuleType:
    apply(name, folder, file)
    spec = importlib.util.spec_from_file_location(f"patched_{Path(file).stem}", folder / file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_patch_has_a_line_in_the_index_and_no_line_is_without_one():
    assert sorted(CELLS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_patch_applies_to_the_installed_verl_where_the_index_says_so(name, tmp_path):
    if VERSION in CELLS[name][1]:
        apply(name, tmp_path)
        assert all((tmp_path / file).read_text() != (SITE_PACKAGES / file).read_text() for file in changed(name))
    else:
        with pytest.raises(subprocess.CalledProcessError):
            apply(name, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_patch_is_a_request_with_its_test_and_its_cause(name):
    text = text_of(name)
    assert re.search(r"^Subject: \[PATCH\] \[[a-z_, ]+\] fix: ", text, re.M)
    assert "### What does this PR do?" in text and "### Test" in text
    tests = upstream.tests_of(upstream.PATCHES / f"{name}.patch")
    assert tests and all(test.endswith("_on_cpu.py") for test in tests)
    assert all(test in text.partition("### Test")[2].partition("diff --git")[0] for test in tests)


@pytest.mark.parametrize("name", NAMES)
def test_the_place_that_a_patch_makes_unnecessary_names_it(name):
    (place,) = re.findall(r"\]\(\.\./(\S+?)\)", CELLS[name][0])
    assert name in (ROOT / place).read_text()


def test_with_the_patch_the_process_group_is_the_one_of_the_runtime_form(tmp_path):
    name, file = "initialize_global_process_group_ray", "verl/utils/distributed.py"
    apply("cpu-process-group", tmp_path)

    def source(path):
        text = path.read_text()
        return next(
            ast.get_source_segment(text, node)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef) and node.name == name
        )

    before = source(SITE_PACKAGES / file)
    assert source(tmp_path / file) == before.replace(BEFORE, AFTER) != before


def test_with_the_patch_verls_logger_keeps_the_lines_that_ours_keeps(tmp_path, monkeypatch):
    theirs = module_of("file-logger-resume", tmp_path, "verl/utils/tracking.py").FileLogger
    path = tmp_path / "metrics.jsonl"
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(path))
    written = "".join(f'{{"step":{step},"data":{{"reward":1.0}}}}\n' for step in range(5)) + '{"step": 5, "da'

    def resumed(logger):
        path.write_text(written)
        made = logger("project", "experiment", 2)
        made.log({"reward": 2.0}, step=3)
        made.finish()
        return path.read_text()

    assert resumed(theirs) == resumed(KeptFile)
    assert [line[8] for line in path.read_text().splitlines()] == ["0", "1", "2", "3"]
