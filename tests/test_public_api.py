"""`from verl_mas import ...`: the list, its page, and what its imports cost."""

import ast
import inspect
import pkgutil
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import verl_mas
import verl_mas.advantage

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/write/api.md"
# A type alias has the docstring of the type, so the page alone says what it is.
ALIASES = {"Message"}
LOADS_TORCH = {f"verl_mas.advantage.{module}" for module in ("estimator", "kernel", "record")}


def typed(package) -> dict[str, list[str]]:
    """Map modules to names by the imports under TYPE_CHECKING, which editors and type checkers see."""
    (block,) = [node for node in ast.parse(inspect.getsource(package)).body if isinstance(node, ast.If)]
    found = defaultdict(list)
    for node in block.body:
        found[node.module] += [alias.name for alias in node.names]
    return found


def test_the_page_has_every_stable_name_once_and_no_other():
    assert sorted(re.findall(r"^### `(\w+)`$", PAGE.read_text(), re.MULTILINE)) == sorted(verl_mas.__all__)


def test_every_stable_name_has_a_docstring_of_its_own_that_starts_with_a_sentence():
    for name in set(verl_mas.__all__) - ALIASES:
        doc = inspect.getdoc(getattr(verl_mas, name)) or ""
        assert doc.partition("\n")[0].endswith(".") and not doc.startswith(f"{name}("), name


@pytest.mark.parametrize("package", [verl_mas, verl_mas.advantage])
def test_editors_see_the_names_where_they_are_defined(package):
    for module, names in typed(package).items():
        assert set(names) <= set(package.__all__) <= set(dir(package))
        for name in names:
            assert getattr(package, name) is getattr(sys.modules[module], name)


def test_every_stable_name_is_imported_lazily_and_under_its_own_name():
    assert sorted(name for names in typed(verl_mas).values() for name in names) == sorted(verl_mas.__all__)
    # `import verl_mas.x` binds x to the module, so a name that is also a module would have two meanings.
    assert not {module.name for module in pkgutil.iter_modules(verl_mas.__path__)} & set(verl_mas.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Workfow'"):
        verl_mas.Workfow  # noqa: B018


def loaded(program: str) -> set[str]:
    """Return what a new Python has loaded after the program: modules of verl-mas, and other packages."""
    program += "\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    return {name if name.startswith("verl_mas") else name.split(".")[0] for name in modules}


def test_importing_the_package_loads_no_other_module_of_it():
    ours = {name for name in loaded("import verl_mas; dir(verl_mas)") if name.startswith("verl_mas")}
    assert ours == {"verl_mas", "verl_mas.util", "verl_mas.util.later"}


def test_names_that_need_no_torch_load_neither_torch_nor_verl_nor_ray():
    light = [name for module, names in typed(verl_mas).items() if module not in LOADS_TORCH for name in names]
    assert "Workflow" in light
    assert not loaded(f"from verl_mas import {', '.join(light)}") & {"torch", "verl", "ray", "transformers"}
    teams = "import verl_mas.workflow.session, verl_mas.workflows.ensemble"
    assert not loaded(teams) & {"torch", "verl", "ray", "httpx"}


PAGES = [*sorted((ROOT / "docs").glob("**/*.md")), ROOT / "README.md", *sorted((ROOT / "recipes").glob("*/README.md"))]
# The tutorial makes a tiny model with these modules, in place of a real model. The page says that they are not stable.
UNSTABLE = {"tutorial.md": {"verl_mas.gym.warmup"}}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_import_nothing_but_stable_names(page):
    for module, names in re.findall(r"^ *(?:from|import) +(verl_mas\b\S*)(?: +import +(.*))?", page.read_text(), re.M):
        if module in UNSTABLE.get(page.name, ()):
            continue
        assert module == "verl_mas"
        assert set(re.findall(r"\w+", names)) <= set(verl_mas.__all__)
