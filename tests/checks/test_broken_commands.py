"""A sound command that is broken in one place is legal or refused with a clear message. It never ends in a
traceback, and always ends. hypothesis minimises a counterexample, which is then kept as a test of the check."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from broken import KINDS, MACHINES, MARKS, few, limited_memory, machine, make, many
from hypothesis import assume, event, given, note, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from wrong_configs import MESSAGES, ROW, Case, Verdict, files, look, ours, refused_by, taken_by, verls

from verl_mas.config.values import Hint

# `x` in the path of a setting -> a name that the sound command has.
NAMES = {"mas.agents.x": "mas.agents.solver", "mas.policies.x": "mas.policies.main", "mas.pools.x": "mas.pools.shared"}
SETTINGS: Mapping[str, Hint] = {
    next((f"{there}{path[len(x) :]}" for x, there in NAMES.items() if path.startswith(x)), path): hint
    for path, hint in (*verls(), *ours())
    # Settings of mas.mcp name programs, which the check would start.
    if not path.startswith("mas.mcp")
}
WITH_PATH = """
    trainer.default_local_dir trainer.resume_from_path mas.trajectories.dir mas.workflow.path data.train_files
    data.val_files reward.custom_reward_function.path actor_rollout_ref.model.path
    actor_rollout_ref.model.tokenizer_path hydra.run.dir
    actor_rollout_ref.model.hf_config_path actor_rollout_ref.model.lora_adapter_path
    actor_rollout_ref.rollout.multi_turn.tool_config_path actor_rollout_ref.rollout.multi_turn.function_tool_path
""".split()
FILES = "train.parquet", "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
Prepare = Callable[[Path, Path], None]  # called with the folder of the case and the folder of the task


def nothing(folder: Path, task: Path) -> None:
    pass


def text(value: object) -> str:
    """Write a value as Hydra reads it on a command line."""
    return "null" if value is None else json.dumps(value).replace("NaN", "nan")


def case(*arguments: str, says: str = "") -> Case:
    return Case(arguments, says)


@st.composite
def wrong_values(draw: DrawFn) -> tuple[Case, Prepare, bool]:
    path = draw(st.sampled_from([path for path, hint in SETTINGS.items() if refused_by(hint)]))
    value = draw(st.sampled_from(refused_by(SETTINGS[path])))
    return case(f"++{path}={text(value)}", says=path.rpartition(".")[2]), nothing, True


@st.composite
def misspelt(draw: DrawFn) -> tuple[Case, Prepare, bool]:
    above, _, name = draw(st.sampled_from(sorted(SETTINGS))).rpartition(".")
    place = draw(st.integers(0, len(name) - 1))
    name = name[:place] + draw(st.sampled_from("abcxyz_")) + name[place + draw(st.booleans()) :]
    assume(not any(f"{path}.".startswith(f"{above}.{name}.") for path in SETTINGS) and not name.startswith("_"))
    return case(f"++{above}.{name}=1", says=name), nothing, True


@st.composite
def legal_values(draw: DrawFn) -> tuple[Case, Prepare, bool]:
    """Draw legal values of one or two settings. Two values that are legal alone may be illegal together."""
    paths = draw(st.lists(st.sampled_from(sorted(SETTINGS)), min_size=1, max_size=2, unique=True))
    taken = {path: taken_by(SETTINGS[path]) for path in paths}
    assume(all(taken.values()))
    return case(*(f"++{path}={text(draw(st.sampled_from(taken[path])))}" for path in paths)), nothing, False


@st.composite
def paths(draw: DrawFn) -> tuple[Case, Prepare, bool]:
    """A file or folder of another kind than the setting names."""
    kind = draw(st.sampled_from(list(KINDS)))
    path = draw(st.sampled_from(WITH_PATH))
    suffix = ".parquet" if path.startswith("data.") else draw(st.sampled_from(["", ".py", ".yaml"]))
    content = draw(st.binary(max_size=64))

    note(f"{suffix}: {kind}")

    def prepare(folder: Path, task: Path) -> None:
        make(kind, folder / f"there{suffix}", content)

    name = KINDS[kind].format(f"there{suffix}") + suffix * (kind in ("below", "long"))
    return case(f"++{path}={json.dumps('{folder}/' + name)}"), prepare, False


@st.composite
def rows(draw: DrawFn) -> tuple[Case, Prepare, bool]:
    """A row of another shape, or with hostile text."""
    hostile = [{**MESSAGES[0], "content": draw(st.sampled_from(MARKS))}]
    column = draw(st.sampled_from([*ROW, "extra_info", "agent_name", "prompt"]))
    row = {**ROW, column: draw(JSON | st.just(hostile))}

    def prepare(folder: Path, task: Path) -> None:
        lines = [json.dumps(row)] * 16
        files(folder, {"rows.json": "\n".join(lines)})

    return case("data.train_files={folder}/rows.json"), prepare, False


@st.composite
def cut_files(draw: DrawFn) -> tuple[Case, Prepare, bool]:
    """A file of data or of the model that ends early, is missing or holds other JSON."""
    name = draw(st.sampled_from(FILES))
    of_model = name != "train.parquet"
    share = draw(st.floats(0, 0.99))
    other = draw(st.none() | JSON) if name.endswith(".json") else None
    pipe = draw(st.booleans())

    note(f"{name}: {'a pipe' if pipe else f'{share:.0%} of it' if other is None else other}")

    def prepare(folder: Path, task: Path) -> None:
        shutil.copytree(task, folder / "task")
        file = folder / "task" / ("model" * of_model) / name
        whole = file.read_bytes()
        file.unlink()
        if pipe:
            os.mkfifo(file)
            return
        file.write_bytes(whole[: int(len(whole) * share)] if other is None else json.dumps(other).encode())

    files_given = [f"data.train_files={{folder}}/task/{name}"] if not of_model else []
    model = ["actor_rollout_ref.model.path={folder}/task/model"] if of_model else []
    return case(*files_given, *model), prepare, other is None or pipe


BROKEN: SearchStrategy[tuple[Case, Prepare, bool]] = st.one_of(
    wrong_values(), misspelt(), legal_values(), paths(), rows(), cut_files()
)


def answered(broken: tuple[Case, Prepare, bool], letters: Path, here: tuple[list[float], int | None]) -> None:
    case, prepare, refused = broken
    with tempfile.TemporaryDirectory() as folder, limited_memory():
        prepare(Path(folder), letters)
        with machine(*here):
            seen = look(case, letters, Path(folder))
    event(seen.verdict.value)
    allowed = {Verdict.REFUSED, *(() if refused else (Verdict.WARNED, Verdict.ACCEPTED))}
    assert seen.verdict in allowed, f"{case.arguments}\n{seen.message}"


@settings(few, max_examples=16)
@given(BROKEN, MACHINES)
def test_a_command_that_is_broken_in_one_place_is_answered_clearly(letters, broken, here):
    answered(broken, letters, here)


@pytest.mark.nightly
@many
@given(BROKEN, MACHINES)
def test_many_broken_commands_are_answered_clearly(letters, broken, here):
    answered(broken, letters, here)
