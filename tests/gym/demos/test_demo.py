import subprocess
import sys

import pytest

from verl_mas.cli import demo
from verl_mas.errors import ConfigError
from verl_mas.gym import demos


@pytest.fixture
def asked(monkeypatch, tmp_path) -> list:
    """The calls of demos, in an empty folder."""
    from verl_mas.gym.demos import letters, plan_path, split_clues

    calls: list = []
    monkeypatch.chdir(tmp_path)
    for demo_ in (letters, plan_path, split_clues):
        name = demo_.__name__.rpartition(".")[2]
        monkeypatch.setattr(demo_, "run", lambda overrides, _, fresh, name=name: calls.append((name, overrides, fresh)))
    return calls


@pytest.mark.parametrize(
    ("argv", "name"), [([], "split_clues"), (["plan_path"], "plan_path"), (["letters"], "letters")]
)
def test_the_team_is_the_default(asked, argv, name):
    assert demo.main(argv) == 0
    assert asked == [(name, [], False)]


def test_overrides_are_passed_on(asked):
    demo.main(["trainer.total_training_steps=2", "+x=1"])
    assert asked.pop() == ("split_clues", ["trainer.total_training_steps=2", "+x=1"], False)


@pytest.mark.parametrize("argv", [["--fresh", "+x=1"], ["+x=1", "--fresh"], ["split_clues", "--fresh", "+x=1"]])
def test_fresh_may_be_any_argument(asked, argv):
    demo.main(argv)
    assert asked.pop() == ("split_clues", ["+x=1"], True)


def test_an_unknown_demo_names_the_known_ones(asked):
    with pytest.raises(ConfigError, match="did you mean 'letters'"):
        demo.main(["leters"])
    with pytest.raises(ConfigError, match="one of the demos"):
        demo.main([""])


def test_the_first_line_comes_before_anything_slow_is_imported():
    """In a pipe, as a pipe is what shows nothing where a line is not flushed."""
    blocked = "import sys\nfor name in ('torch', 'transformers', 'rich'): sys.modules[name] = None\n"
    program = f"{blocked}from verl_mas.cli import demo\ntry: demo.main([])\nexcept ImportError: sys.exit(3)"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "demo split_clues: loading\n")


@pytest.mark.parametrize("name", ["live", "team"])
def test_shared_modules_of_the_demos_are_not_demos(asked, name):
    with pytest.raises(ConfigError, match="one of the demos"):
        demo.main([name])


def test_ctrl_c_ends_without_a_traceback(asked, monkeypatch, capsys):
    def interrupt(overrides, console, *, fresh):
        raise KeyboardInterrupt

    monkeypatch.setattr(demos.letters, "run", interrupt)
    assert demo.main(["letters"]) == 130
    assert "ended" in capsys.readouterr().err
