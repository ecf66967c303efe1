"""The sessions of an evaluation, and their file."""

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from verl_mas import Outcome, ScriptedLLM, Workflow
from verl_mas.errors import ConfigError, DiskError, FaultKind, SessionFault
from verl_mas.gateway.streaming import Usage
from verl_mas.results.serve.evaluate import Evaluation, Results, read_rows
from verl_mas.results.serve.runtime import EndedSession
from verl_mas.workflow.run import run_session, session_config

IDENTITY = {"team": "t", "step": 3, "data": "d", "engine": {}, "sampling": {}, "weights": {}}


def test_a_session_is_found_again_whatever_its_text_is_and_after_a_line_that_was_cut(tmp_path):
    path = tmp_path / "new" / "sessions.jsonl"
    # Characters that end a line for str.splitlines, and one that UTF-8 cannot encode.
    record = {"task": 0, "session": 0, "failed": False, "answer": "a\x85b\u2028c\n\ud800"}
    Results.open(path, IDENTITY, force=False).add(record)
    assert Results.open(path, IDENTITY, force=False).of(1, 1) == [record]
    path.write_text(path.read_text()[:-5])
    results = Results.open(path, IDENTITY, force=False)
    assert results.missing(1, 1) == [(0, 0)]
    results.add(record)
    assert Results.open(path, IDENTITY, force=False).of(1, 1) == [record]


def test_another_file_is_kept_unless_it_is_to_be_replaced(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("mine\n")
    with pytest.raises(ConfigError, match="is not of an evaluation"):
        Results.open(path, IDENTITY, force=False)
    assert path.read_text() == "mine\n"
    replacing = Results.open(path, IDENTITY, force=True)
    assert replacing.records == {} and path.read_text() == "mine\n"
    replacing.begin()
    replacing.begin()
    assert Results.open(path, IDENTITY, force=False).records == {}
    with pytest.raises(DiskError, match=f"{tmp_path} cannot be written"):
        Results.open(tmp_path, IDENTITY, force=False)


class Accurate(Workflow):
    agents = ("a",)

    async def run(self, task, team):
        return Outcome(answer=await team.a.act("q"), reward=0.25, info={"acc": 1.0})


class FailsFirst:
    """A loaded team whose first session fails."""

    clients, file = {}, SimpleNamespace(step=3)
    fails = True

    async def session(self, task, score):
        result = await run_session(Accurate, task, session_config(Accurate(), ScriptedLLM("4")))
        if self.fails:
            result = replace(result, failed=True, faults=[SessionFault(FaultKind.REFUSED, "no")])
        self.fails = False
        return EndedSession(result, Usage())

    async def aclose(self):
        pass


def test_a_session_counts_by_its_accuracy_and_one_that_failed_runs_again(tmp_path):
    (tmp_path / "test.jsonl").write_text(json.dumps({"prompt": [{"role": "user", "content": "q"}], "data_source": "s"}))
    results = Results.open(tmp_path / "sessions.jsonl", IDENTITY, force=False)
    evaluation, seen = Evaluation(FailsFirst(), read_rows(tmp_path / "test.jsonl", "prompt"), 2, results, 1), []
    for _ in range(2):
        asyncio.run(evaluation.run(lambda record: seen.append((record["session"], record["value"], record["reward"]))))
    assert seen == [(0, 0.0, 0.0), (1, 1.0, 0.25), (0, 1.0, 0.25)]
