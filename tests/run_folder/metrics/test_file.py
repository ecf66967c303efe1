import json
import math
import time

import numpy as np
import pytest
import torch

from verl_mas.errors import DataError
from verl_mas.run_folder.metrics.file import DROPPED, FILE, MetricsFile, Step, read_steps, series


def values(folder) -> dict[int, dict[str, float]]:
    return {step.number: step.values for step in read_steps(folder / FILE)}


def test_a_step_is_read_as_it_was_logged_and_what_is_not_finite_is_null_in_the_file_and_nan_when_read(tmp_path):
    numbers = {"a": 1, "b": np.float32(0.5), "c": torch.tensor(2.0)}
    MetricsFile(tmp_path).log({**numbers, "text": "no number", "d": math.nan, "e": math.inf}, 3)
    line, logged = json.loads((tmp_path / FILE).read_text()), {"a": 1, "b": 0.5, "c": 2, "d": None, "e": None}
    assert line == {"step": 3, "time": pytest.approx(time.time(), abs=60), "metrics": logged}
    (step,) = read_steps(tmp_path / FILE)
    assert math.isnan(step.values.pop("d")) and math.isnan(step.values.pop("e"))
    assert (step.number, step.values) == (3, {"a": 1.0, "b": 0.5, "c": 2.0})


def test_a_run_that_resumes_drops_the_steps_after_its_checkpoint_and_keeps_them_aside(tmp_path):
    first = MetricsFile(tmp_path)
    for step in range(6):
        first.log({"a": step}, step)
    resumed = MetricsFile(tmp_path, resumed=3)
    resumed.log({"val": 1}, 3)
    resumed.log({"a": 40}, 4)
    assert values(tmp_path) == {0: {"a": 0}, 1: {"a": 1}, 2: {"a": 2}, 3: {"a": 3, "val": 1}, 4: {"a": 40}}
    assert [step.number for step in read_steps(tmp_path / DROPPED)] == [4, 5]
    MetricsFile(tmp_path).log({"a": 2}, 1)  # starts over
    assert values(tmp_path) == {1: {"a": 2}} and len(read_steps(tmp_path / DROPPED)) == 6


def test_a_file_of_verls_logger_is_read_too(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step": 1, "data": {"a": 1}}\n{"step": 2, "data": {"a": null, "t": "x"}}\n')
    first, second = read_steps(tmp_path / "log.jsonl")
    assert first == Step(1, {"a": 1.0}) and math.isnan(second.values["a"]) and list(second.values) == ["a"]
    assert series([first, Step(2, {}), Step(3, {"a": 3})], "a") == ([1, 3], [1, 3]), "the steps that have the metric"


@pytest.mark.parametrize("line", ["[1]", '{"step": 1}', '{"step": "one", "metrics": {}}', "no json"])
def test_a_line_that_is_no_step_is_refused_by_its_number(tmp_path, line):
    (tmp_path / FILE).write_text(f'{{"step": 1, "metrics": {{}}}}\n{line}\n')
    with pytest.raises(DataError, match="line 2"):
        read_steps(tmp_path / FILE)
