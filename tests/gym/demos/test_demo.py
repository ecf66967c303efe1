import subprocess
import sys

import pytest

from verl_mas.cli import demo
from verl_mas.errors import ConfigError


@pytest.fixture
def asked(monkeypatch, tmp_path) -> list:
    """Record the calls of demos, in an empty folder."""
    calls: list = []
    monkeypatch.chdir(tmp_path)
    for name, point in demo.demos().items():
        run = lambda overrides, _, fresh, name=name: calls.append((name, overrides, fresh))  # noqa: E731
        monkeypatch.setattr(point.value.replace(":", "."), run)
    return calls


@pytest.mark.parametrize(
    ("argv", "call"),
    [
        ("", ("split_clues", [], False)),
        ("smollm2", ("smollm2", [], False)),
        ("letters +x=1", ("letters", ["+x=1"], False)),
        ("+x=1 --fresh", ("split_clues", ["+x=1"], True)),
        ("split_clues --fresh +x=1", ("split_clues", ["+x=1"], True)),
    ],
)
def test_the_team_is_the_default_overrides_are_passed_on_and_fresh_may_be_any_argument(asked, argv, call):
    assert demo.main(argv.split()) == 0 and asked == [call]


def test_an_unknown_demo_names_the_known_ones():
    with pytest.raises(ConfigError, match=r"one of the demos\n.*did you mean 'letters'"):
        demo.main(["leters"])


def test_the_first_line_comes_before_anything_slow_is_imported():
    """The output is a pipe, because only a pipe shows that a line was not flushed."""
    blocked = "import sys\nfor name in ('torch', 'transformers', 'rich'): sys.modules[name] = None\n"
    program = f"{blocked}from verl_mas.cli import demo\ntry: demo.main([])\nexcept ImportError: sys.exit(3)"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "demo split_clues: loading\n")


def test_ctrl_c_ends_without_a_traceback(asked, monkeypatch, capsys):
    def interrupt(overrides, console, *, fresh):
        raise KeyboardInterrupt

    monkeypatch.setattr("verl_mas.config.hydra.recipe.first_run.demo.run", interrupt)
    assert demo.main(["letters"]) == 130
    assert "ended" in capsys.readouterr().err
