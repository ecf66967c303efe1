"""The install commands of the pages name what exists. The nightly job resolves them; these tests need no network."""

import re
import sys
from importlib.metadata import distributions
from pathlib import Path

import freeze
import pytest
import resolve_installs as installs
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import verl_mas
from verl_mas.engines.facts import ENGINES, contracts

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


DOCUMENTED = installs.documented()


def pins(name: str, python: str | None = None) -> dict[str, str]:
    """Return the pinned versions by name, from lines whose markers hold for this Python or for the given one."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    environment = {"python_full_version": python} if python else {}
    pinned = [one for one in map(Requirement, lines) if one.marker is None or one.marker.evaluate(environment)]
    assert len({one.name for one in pinned}) == len(pinned), "two versions of one package"
    return {one.name: str(one.specifier) for one in pinned}


@pytest.mark.parametrize("install", DOCUMENTED, ids=[install.line for install in DOCUMENTED])
def test_an_install_command_names_extras_and_files_that_exist(install):
    assert install.extras <= EXTRAS.keys()
    assert all((ROOT / file).is_file() for file in install.files)
    assert install.requirements


def test_the_pages_of_gpu_runs_have_install_commands():
    pages = {page for places in DOCUMENTED.values() for page in places}
    assert {"README.md", "docs/start/gpu-quickstart.md", "recipes/math/README.md", "recipes/search/README.md"} <= pages


def test_sglang_is_offered_only_with_the_file_that_makes_it_resolvable():
    lines = [install for install in DOCUMENTED if "sglang" in install.extras]
    assert lines and all(install.files == {"versions/overrides-sglang.txt"} for install in lines)
    assert all(install.line.startswith("uv ") for install in lines), "pip cannot override"
    for engine in ("sglang", "vllm"):
        assert installs.read(ENGINES[engine].install).extras == {engine}


def test_the_files_agree_with_each_other_and_with_verls_pins():
    gpu, overrides = pins("versions/constraints-gpu.txt"), pins("versions/overrides-sglang.txt")
    assert overrides["transformers"] == gpu["transformers"] == "==5.9.0"
    assert (gpu["torch"], gpu["vllm"], gpu["verl"]) == ("==2.11.0", "==0.24.0", "==0.9.1")
    assert "\nflash-attn-4" in (ROOT / "versions/overrides-sglang.txt").read_text()
    assert "flash-attn-4" not in {*gpu, *overrides}
    # The newest compared vLLM, with the same verl.
    newer = pins("versions/constraints-gpu-newer.txt")
    assert newer["vllm"] == f"=={contracts()['vllm'].tested[1]}" and newer["verl"] == gpu["verl"]


@pytest.mark.parametrize("python", ["3.10.0", "3.10.20", "3.11.0", "3.11.20", "3.12.0", "3.12.20"])
def test_every_direct_requirement_is_pinned_once_for_each_python(python):
    pinned = pins("versions/constraints.txt", python)
    here = {"python_version": python.rpartition(".")[0], "python_full_version": python}
    needed = [one for one in freeze.direct() if one.marker is None or one.marker.evaluate(here)]
    assert names(one.name for one in needed) - names(pinned) == set()
    for one in needed:
        (version,) = (spec for name, spec in pinned.items() if canonicalize_name(name) == canonicalize_name(one.name))
        assert one.specifier.contains(version.removeprefix("==")), f"{one} and {version} cannot both hold"


def test_make_installs_a_set_that_is_resolved_for_each_python():
    (ours,) = (one for one, places in DOCUMENTED.items() if "Makefile" in places and "dev" in one.extras)
    assert ours.files == {"versions/constraints.txt"} and ours.pythons == ("3.10", "3.11", "3.12")
    for engine in ('".[math,vllm]"', '".[math]" vllm'):
        assert installs.read(f"pip install -c versions/constraints-gpu.txt {engine}").pythons == ("3.12",)


def test_only_what_the_project_requires_is_pinned():
    """In an environment without parts of `dev`, only installed packages are compared."""
    foreign = names(pins("versions/constraints.txt")) - names(one.name for one in freeze.needed())
    if freeze.absent():
        foreign &= names(one.name for one in distributions())
    assert foreign == set()


def names(of) -> set[str]:
    return {canonicalize_name(name) for name in of}


def test_the_quickstart_says_what_each_extra_is_for():
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", (ROOT / "docs/start/quickstart.md").read_text(), re.MULTILINE)
    assert [name for name, _ in rows] == [*EXTRAS]


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["title"], citation["version"]) == (PROJECT["name"], verl_mas.__version__)


def test_commands_are_found_in_blocks_sentences_and_fixes():
    page = """
        pip install path/to/a/clone/of/verl-mas      # beside verl
    ```bash
    uv pip install --override versions/overrides-sglang.txt \\
        ".[math,sglang]"
    ```
    Also `pip install 'verl-mas[math]'`, as said.
    """
    first, second, third = installs.of_page(page)
    assert first.resolver_input() == f"verl-mas @ {ROOT.as_uri()}\n"
    assert (second.extras, second.files) == ({"math", "sglang"}, {"versions/overrides-sglang.txt"})
    assert third.resolver_input() == f"verl-mas[math] @ {ROOT.as_uri()}\n"
    (fix,) = installs.of_module("fix = 'pip install peft, or set x'\nother = f'pip install {name}'")
    assert fix.requirements == ("peft",)
    with pytest.raises(ValueError, match="does not know --pre"):
        installs.read("pip install --pre .")
