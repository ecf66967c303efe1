import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import verl

from verl_mas.errors import PatchRefused
from verl_mas.platform.process_group import PATCH, Patch, source_sha256

DIFFS = Path(__file__).parents[2] / "patches"
SITE_PACKAGES = Path(verl.__file__).parents[1]


@pytest.fixture
def module(tmp_path, monkeypatch) -> ModuleType:
    (tmp_path / "patch_target.py").write_text("def answer():\n    return 41\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "patch_target", raising=False)
    return importlib.import_module("patch_target")


def patch(sha256: str) -> Patch:
    return Patch(diff="answer.diff", before="41", after="42", functions={"answer": sha256})


def test_a_patch_replaces_its_line_once(module):
    known = patch(source_sha256("def answer():\n    return 41\n"))
    known.apply(module)
    known.apply(module)
    assert module.answer() == 42


def test_a_patch_refuses_a_source_that_it_was_not_written_for(module):
    with pytest.raises(PatchRefused, match=r"patches/answer\.diff does not fit patch_target\.answer"):
        patch("another").apply(module)
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
    lines = (DIFFS / PATCH.diff).read_text().splitlines()
    removed = [line[1:] for line in lines if line.startswith("-") and not line.startswith("---")]
    added = [line[1:] for line in lines if line.startswith("+") and not line.startswith("+++")]
    assert [line.replace(PATCH.before, PATCH.after) for line in removed] == added
    assert len(removed) == len(PATCH.functions)


def test_every_diff_has_a_runtime_twin_and_a_line_in_the_index():
    names = {diff.name for diff in DIFFS.glob("*.diff")}
    assert names == {PATCH.diff}
    assert all(name in (DIFFS / "README.md").read_text() for name in names)
