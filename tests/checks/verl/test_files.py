from __future__ import annotations

import json
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from wrong_configs.prepare import ROW, files

from verl_mas.checks.prompts import check_prompts
from verl_mas.checks.verl.files import check_data
from verl_mas.checks.verl.functions import check_functions
from verl_mas.config.run import Run
from verl_mas.errors import ConfigError, ConfigWarning


@pytest.fixture
def look(make, letters, monkeypatch):
    def look(file, *, team=True, **settings):
        paths = {"data__train_files": str(file), "data__val_files": str(file), "data__train_batch_size": 1}
        paths["data__max_prompt_length"] = 4096
        # Rows that repeat, in one file or in both, have a test of their own.
        for name in ("_trained_on", "_repeated"):
            monkeypatch.setattr(f"verl_mas.checks.verl.files.{name}", lambda *_: ())
        config = make(actor_rollout_ref__model__path=str(letters / "model"), **{**paths, **settings})
        config.mas = config.mas if team else None
        run = Run.of(config)
        return [*check_data(config, scored=not team), *check_prompts(run)]

    return look


@pytest.mark.parametrize("team", [True, False])
def test_files_that_verl_reads_pass(look, letters, tmp_path, team):
    assert look(letters / "train.parquet", team=team) == []
    (tmp_path / "rows.json").write_text(
        '[\n {"data_source": "a", "prompt": [{"role": "user", "content": "a"}],\n'
        ' "reward_model": {"ground_truth": "a"}}\n]'
    )
    assert look(tmp_path / "rows.json", team=team) == []


def test_a_large_file_is_not_read_whole(look, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist([{**ROW, "blob": bytes(1000)}])
    with pq.ParquetWriter(tmp_path / "rows.parquet", table.schema, use_dictionary=False, compression="none") as writer:
        writer.write_table(pa.concat_tables([table] * 60_000), row_group_size=1 << 30)
    assert (tmp_path / "rows.parquet").stat().st_size > 60_000_000
    before = pa.total_allocated_bytes()
    started = time.process_time()
    assert look(tmp_path / "rows.parquet") == []
    assert time.process_time() - started < 3  # 0.5 s of them for sessions on other rows of each file
    assert pa.total_allocated_bytes() - before < 10_000_000


def test_a_later_row_without_a_prompt_is_counted_by_the_footer(look, tmp_path):
    files(tmp_path, {"rows.parquet": [ROW] * 99 + [{**ROW, "prompt": None}]})
    error, *_ = look(tmp_path / "rows.parquet")
    assert isinstance(error, ConfigError) and "'prompt': 1 rows or messages without a role" in error.value


def test_a_later_row_without_a_ground_truth_is_counted_by_the_footer(look, tmp_path):
    files(tmp_path, {"rows.parquet": [ROW] * 99 + [{**ROW, "reward_model": {"ground_truth": None}}]})
    warning, *_ = look(tmp_path / "rows.parquet")
    assert "1 rows have no reward_model.ground_truth" in warning.value


def test_rows_that_repeat_are_warned_of(make, tmp_path):
    rows = [{**ROW, "extra_info": {"index": number}} for number in range(20)]
    files(tmp_path, {"train.parquet": rows[:16], "val.parquet": rows[14:], "one.parquet": rows[:1] * 16})
    unnumbered = [{**ROW, "prompt": [{"role": "user", "content": f"{n}?"}], "extra_info": {"index": 0}} for n in (1, 2)]
    files(tmp_path, {"unnumbered.parquet": unnumbered})

    def found(train, val):
        paths = {"data__train_files": f"{tmp_path}/{train}.parquet", "data__val_files": f"{tmp_path}/{val}.parquet"}
        return [one.value for one in check_data(make(**paths, data__train_batch_size=1), scored=False)]

    assert found("train", "unnumbered")[0].startswith("extra_info.index is 0 in each of the first 2 rows")
    (value,) = found("train", "val")
    assert value.startswith("2 of 6 rows of") and value.endswith("are among those of data.train_files")
    assert found("one", "val")[0].startswith("each of the first 16 rows of")


def test_a_later_row_that_the_workflow_does_not_take_is_refused(make, tmp_path):
    workflow = {"name": "split_clues", "args": {}}
    row = {**ROW, "data_source": "split_clues", "reward_model": {"ground_truth": "a"}}
    rows = [{**row, "extra_info": {"index": number, "parts": ["ab", "ac"], "hint": ""}} for number in range(90)]
    files(tmp_path, {"rows.parquet": [*rows[:-1], {**rows[-1], "reward_model": {"ground_truth": "Z"}}]})
    paths = {f"data__{name}_files": f"{tmp_path}/rows.parquet" for name in ("train", "val")}
    run = Run.of(make("split_clues", **paths, mas__workflow=workflow))
    refused = [str(one) for one in check_prompts(run) if isinstance(one, ConfigError)]
    assert refused and "row 90 of" in refused[0]


LATER = {
    "prompt": ({"prompt": []}, "'prompt'"),
    "content": ({"prompt": [{"role": "user", "content": ""}]}, "has no text"),
    "null": ({"prompt": [{"role": "user", "content": None}]}, "'prompt'"),
    "role": ({"prompt": [{"role": "human", "content": "a"}]}, "messages of human"),
    "source": ({"data_source": None}, "no data_source"),
    "truth": ({"reward_model": {"ground_truth": ""}}, "no reward_model.ground_truth"),
}


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize("fault", LATER)
def test_a_fault_of_a_row_after_those_that_are_looked_at_is_found(look, tmp_path, kind, fault):
    changed, says = LATER[fault]
    rows = [*[ROW] * 99, {**ROW, **changed}]
    files(tmp_path, {"rows.parquet": rows, "rows.jsonl": "\n".join(map(json.dumps, rows))})
    (value,) = {problem.value for problem in look(tmp_path / f"rows.{kind}")}
    assert says in value


def test_messages_without_text_are_usual_in_some_data(look, tmp_path):
    silent = {**ROW, "prompt": [{"role": "system", "content": ""}, *ROW["prompt"]]}
    files(tmp_path, {"rows.parquet": [silent] * 99})
    assert look(tmp_path / "rows.parquet") == []


def test_files_of_one_setting_may_differ_in_what_a_row_lacks(make, tmp_path):
    rows = [{**ROW, "extra_info": extra, "images": []} for extra in ({"a": None}, {"a": "x", "b": 1}, {"b": 2.5})]
    files(tmp_path, {f"{place}.parquet": [row] for place, row in enumerate(rows)})
    config = make(data__train_files=[str(tmp_path / "0.parquet"), str(tmp_path / "1.parquet")])
    assert not any(
        isinstance(problem, ConfigError) and "joins" in problem.rule for problem in check_data(config, scored=False)
    )
    config.data.train_files = [str(tmp_path / "1.parquet"), str(tmp_path / "2.parquet")]
    assert any("extra_info.b is INT64" in str(problem) for problem in check_data(config, scored=False))


def test_files_that_datasets_does_not_join_are_refused(make, tmp_path):
    table = pa.Table.from_pylist([{**ROW, "source": "a"}])
    for name, kind in (("one", pa.string()), ("two", pa.large_string())):
        place = table.schema.get_field_index("source")
        pq.write_table(table.set_column(place, "source", pa.array(["a"], kind)), tmp_path / f"{name}.parquet")
    config = make(data__train_files=[str(tmp_path / f"{name}.parquet") for name in ("one", "two")])
    (refused,) = [str(one) for one in check_data(config, scored=False) if "two.parquet: The" in str(one)]
    assert "can't be aligned" in refused and "fix:  write both files with the same columns and fields" in refused


def test_a_column_that_a_reward_manager_reads_is_needed_by_a_run_without_a_team(look, tmp_path):
    files(tmp_path, {"rows.parquet": [{"prompt": ROW["prompt"]}]})
    warning, *_ = look(tmp_path / "rows.parquet")
    assert isinstance(warning, ConfigWarning) and "that the workflow does not reward itself" in warning.reason
    error, *_ = look(tmp_path / "rows.parquet", team=False)
    assert isinstance(error, ConfigError) and "no column 'reward_model' with a 'ground_truth'" in error.value


def test_an_overlong_row_that_verl_filters_out_passes_and_only_such_rows_are_warned_of(look, letters):
    long = {"data__max_prompt_length": 4}
    assert len(look(letters / "train.parquet", **long)) == 2
    found = look(letters / "train.parquet", **long, data__filter_overlong_prompts=True)
    assert {warning.fix for warning in found} == {"raise data.max_prompt_length"}


def test_verl_is_not_asked_to_filter_a_row_that_the_workflow_makes_too_long(look, letters):
    (_, error) = look(letters / "train.parquet", data__max_prompt_length=64)
    assert error.fix == "raise data.max_prompt_length, or set ++mas.agents.solver.truncation=middle"
    (_, error) = look(letters / "train.parquet", data__max_prompt_length=4)
    assert error.fix.endswith("or set data.filter_overlong_prompts=True")


WORKFLOW = """
import time

from verl_mas.workflow import Outcome, Workflow


class Mine(Workflow):
    agents = ("solver",)

    async def run(self, task, team):
        {first}
        reply = await team.solver.act(task.messages)
        return Outcome(answer=reply, reward=float(len(reply.text)))
"""


@pytest.mark.parametrize(
    ("first", "says"),
    [("pass", None), ("task.extra_info['board']", "KeyError: 'board'"), ("await __import__('asyncio').sleep(99)", "")],
)
def test_the_workflow_takes_the_first_row_to_its_first_act(look, letters, workflow_file, monkeypatch, first, says):
    monkeypatch.setattr("verl_mas.checks.tried.TIME_LIMIT", 0.2)
    problems = look(letters / "train.parquet", **workflow_file(WORKFLOW.format(first=first)))
    assert len(problems) == (0 if says is None else 2)
    assert all(says in problem.value and isinstance(problem, ConfigError) == bool(says) for problem in problems)


def test_the_first_row_of_the_validation_file_is_checked_as_in_validation(look, letters, workflow_file):
    only_training = "assert task.validate, 'a training row'"
    (problem,) = look(letters / "train.parquet", **workflow_file(WORKFLOW.format(first=only_training)))
    assert "a training row" in problem.value


@pytest.mark.parametrize(
    "text",
    [
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None): ...",
        "async def compute_score(**kwargs): ...",
        "from elsewhere import compute_score",
        "from elsewhere import *",
        "try:\n    from fast import score as compute_score\nexcept ImportError:\n    compute_score = None",
        "compute_score = print",
    ],
)
def test_a_file_that_defines_the_function_passes(make, tmp_path, text):
    (tmp_path / "reward.py").write_text(text)
    for path in (f"{tmp_path}/reward.py", f"file://{tmp_path}/reward.py"):
        assert list(check_functions(make(reward__custom_reward_function__path=path))) == []
