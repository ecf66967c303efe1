"""The wheel as a stranger installs it: in a venv of its own, away from the source tree."""

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return out


def test_the_wheel_and_the_sdist_hold_what_an_install_needs(built):
    wheel = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        sdist = [name.split("/", 1)[-1] for name in archive.getnames()]
    for needed in (
        "verl_mas/plugin.py",
        "verl_mas/config/hydra/platform/cpu.yaml",
        "hydra_plugins/verl_mas_search_path.py",
    ):
        assert needed in wheel
        assert needed in sdist
    assert any(name.endswith("entry_points.txt") for name in wheel)
    assert not any(name.startswith(("tests/", "hydra_plugins/__init__")) for name in wheel)


@pytest.fixture(scope="module")
def stranger(built, tmp_path_factory) -> Path:
    """A Python with our wheel; what it depends on is borrowed from this one."""
    folder = tmp_path_factory.mktemp("stranger")
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
    done = subprocess.run([python, "-c", program], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_verl_finds_the_installed_plugin(stranger, tmp_path):
    program = "import verl, verl_mas.plugin as plugin; print(plugin.active(), plugin.__file__)"
    active, file = ask(stranger, program, tmp_path).split()
    assert active == "True"
    assert file.startswith(str(stranger.parents[1]))


def test_hydra_finds_the_installed_config_groups(stranger, tmp_path):
    program = (
        "from verl_mas.config.compose import compose\nprint(compose(['+platform=cpu']).actor_rollout_ref.rollout.name)"
    )
    assert ask(stranger, program, tmp_path).split() == ["transformers"]
