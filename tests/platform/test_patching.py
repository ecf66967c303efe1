import hashlib
import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import verl

from verl_mas.errors import PatchRefused
from verl_mas.platform import process_group
from verl_mas.platform.process_group import AFTER, BEFORE, DIFF, FUNCTIONS

DIFFS = Path(__file__).parents[2] / "patches"
SITE_PACKAGES = Path(verl.__file__).parents[1]


@pytest.fixture
def module(tmp_path, monkeypatch) -> ModuleType:
    source = "def answer():\n    return 41\n"
    (tmp_path / "patch_target.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "patch_target", raising=False)
    digest = hashlib.sha256(source.encode()).hexdigest()
    for name, value in (("BEFORE", "41"), ("AFTER", "42"), ("FUNCTIONS", {"answer": digest})):
        monkeypatch.setattr(process_group, name, value)
    return importlib.import_module("patch_target")


def test_a_patch_replaces_its_line_once(module):
    process_group.patch(module)
    process_group.patch(module)
    assert module.answer() == 42


def test_a_patch_refuses_a_source_that_it_was_not_written_for(module, monkeypatch):
    monkeypatch.setattr(process_group, "FUNCTIONS", {"answer": "another"})
    with pytest.raises(PatchRefused, match=r"does not fit patch_target\.answer"):
        process_group.patch(module)
    assert module.answer() == 41


def target(diff: Path) -> str:
    return next(line[6:] for line in diff.read_text().splitlines() if line.startswith("+++ b/"))


@pytest.mark.parametrize("diff", sorted(DIFFS.glob("*.diff")), ids=lambda diff: diff.name)
def test_every_diff_is_still_needed_and_applies_to_the_installed_verl(diff, tmp_path):
    copy = tmp_path / target(diff)
    copy.parent.mkdir(parents=True)
    shutil.copy(SITE_PACKAGES / target(diff), copy)
    subprocess.run(["git", "apply", str(diff)], cwd=tmp_path, check=True)
    assert copy.read_text() != (SITE_PACKAGES / target(diff)).read_text()


def test_a_diff_and_its_runtime_twin_change_the_same_lines():
    lines = (DIFFS / DIFF).read_text().splitlines()
    removed = [line[1:] for line in lines if line.startswith("-") and not line.startswith("---")]
    added = [line[1:] for line in lines if line.startswith("+") and not line.startswith("+++")]
    assert [line.replace(BEFORE, AFTER) for line in removed] == added
    assert len(removed) == len(FUNCTIONS)


def test_every_diff_has_a_runtime_twin_and_a_line_in_the_index():
    names = {diff.name for diff in DIFFS.glob("*.diff")}
    assert names == {DIFF}
    assert all(name in (DIFFS / "README.md").read_text() for name in names)
