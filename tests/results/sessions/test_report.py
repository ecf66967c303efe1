import json
from pathlib import Path

import pytest
from commands import output_of
from view_runs import act, session, write_run, write_timeline

from verl_mas.errors import DataError
from verl_mas.results.sessions.report import compare, report
from verl_mas.results.sessions.run import open_run
from verl_mas.run_folder.about import AboutFile
from verl_mas.run_folder.metrics.file import MetricsFile
from verl_mas.run_folder.records import left_out

AGENTS = {"solver": {"policy": "main"}, "judge": {"policy": "still"}}
MAS = {"agents": AGENTS, "policies": {"still": {"trainable": False}}}
START = {"started": "2026-01-01", "resumed_from": None, "command": "python -m verl.trainer.main_ppo +mas=x"}


def metrics(step: int, *, zero: float = 0.0, score: float = 0.5) -> dict[str, float]:
    found = {"policy/main/rows/real": 8, "policy/main/updated": 1, "actor/grad_norm": 0.7, "actor/lr": 1e-6}
    found |= {"policy/main/rows/shared_tokens": 0.6}
    for name, without in (("solver", zero), ("judge", 1.0)):
        own = {"acts": 8, "reward/score": score, "malformed": 0.1, "advantage/zero": without, "length/response": 12.0}
        own |= {"group/groups_of_one": zero, "group/groups_uniform": 0.0}
        found |= {f"agent/{name}/{key}": value for key, value in own.items()}
    return found | {"timing_s/step": 2.0 + step}


def made(folder: Path, steps: list[dict[str, float]]) -> Path:
    folder.mkdir(parents=True)
    AboutFile(folder, START, {"mas": MAS, "data": {"train_batch_size": 4}}).end({"by": "finished", "step": len(steps)})
    log = MetricsFile(folder)
    for number, values in enumerate(steps, 1):
        log.log(values, number)
    return folder


@pytest.fixture
def run(tmp_path):
    """Make a run whose solver has no advantage in steps 3 to 8, and whose judge is not trained."""
    return made(tmp_path / "run", [metrics(step, zero=float(3 <= step <= 8)) for step in range(1, 13)])


def test_a_finding_has_the_steps_at_which_it_held_and_its_cause(run):
    (finding,) = report(open_run(run)).found
    assert (finding.kind, finding.first, finding.last, finding.holds) == ("no_advantage", 3, 8, False)
    assert "steps 3 to 8 (no longer): no row of any agent has had an advantage for 6 steps" in finding.line
    assert "Raise rollout.n" in finding.line and finding.name == "team", "all that learn, not the judge"


def test_of_a_start_without_an_end_only_the_last_may_still_train(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for resumed in (None, 4):
        AboutFile(folder, START | {"resumed_from": resumed}, {"mas": MAS})
        MetricsFile(folder).log(metrics(resumed or 1), resumed or 1)
    text = report(open_run(folder)).text()
    assert "start 1 of 2: 2026-01-01 from the beginning; was killed\n" in text
    assert "start 2 of 2: 2026-01-01 resumed from step 4; trains, or was killed\n" in text


def test_the_text_has_the_start_the_curves_and_the_agents_and_says_what_is_missing(run):
    write_timeline(run, (1, 2), started=True)
    text = report(open_run(run)).text()
    assert "start 1 of 1: 2026-01-01 from the beginning; finished" in text
    assert "  start      checks 2.0 s, launch solver 4.0 s, to step 1 6.0 s\n" in text
    assert "command    python -m verl.trainer.main_ppo +mas=x" in text
    assert "data.train_batch_size=4" in text
    assert "prefixes   60% of the tokens of main's updates are shared" in text
    line = next(line for line in text.splitlines() if line.startswith("timing_s/step"))
    assert line.split()[1:3] == ["3", "14"] and "▁▂" in line and line.endswith("1 to 12")
    table = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.startswith(("solver", "judge"))}
    assert table["solver"] == ["0.5", "0.1", "0.6", "0", "-", "12", "0.7"]
    assert table["judge"][-1] == "-", "its policy has no gradient"
    (run / "run.yaml").unlink()
    text = report(open_run(run)).text()
    assert "its command, settings and versions are not recorded" in text and "no row of agent judge" in text


def test_a_control_is_named_after_its_set(tmp_path):
    validated = {"val-core/clues/acc/mean@4": 0.5, "val-core/clues_shuffled/acc/mean@4": 0.2}
    text = report(open_run(made(tmp_path / "run", [metrics(step) | validated for step in (1, 2)]))).text()
    assert "val-core/clues_shuffled/acc/mean@4 (control of clues)" in text and "val-core/clues/acc/mean@4 (" not in text


def test_a_run_that_has_just_begun_has_no_findings_yet_and_no_text_of_it_is_obeyed_by_a_terminal(tmp_path, capsys):
    folder = made(tmp_path / "run", [metrics(1)])
    AboutFile(folder, START, {}).end({"by": "WorkflowError: \x1b[2J", "step": 1})
    text = output_of(capsys, "report", folder)
    assert "\\x1b[2J" in text and "\x1b" not in text and "they need 3 steps" in text
    with pytest.raises(DataError, match=r"has no metrics: nothing in .*metrics\.jsonl"):
        report(open_run(made(tmp_path / "empty", [])))


def test_the_command_prints_json_and_writes_files_that_it_does_not_replace_unasked(run, tmp_path, capsys):
    found = json.loads(output_of(capsys, "report", run, "--json"))
    assert found["agents"]["solver"]["reward"] == 0.5 and found["findings"][0]["first"] == 3
    assert found["watched"]["timing_s/step"]["12"] == 14
    page = tmp_path / "new" / "page.html"
    assert output_of(capsys, "report", run, "--html", page).endswith(f"\n{page}\n")
    assert "--force" in output_of(capsys, "report", run, "--html", page, code=1)
    output_of(capsys, "report", run, "--html", page, "--force")
    assert "use --html page.html" in output_of(capsys, "report", run, "--html", "page.pdf", code=1)
    refusal = json.loads(output_of(capsys, "report", run, "--html", "/proc/none/a.html", "--json", code=1))
    assert "cannot be written" in refusal["errors"][0]["value"]


def record(index: int, acc: float, **more: object) -> dict[str, object]:
    task = {"data_source": "letters", "index": index, "messages": []}
    outcome = {"answer": None, "reward": 0.0, "info": {"acc": acc}}
    return session(6, f"6-{index}", task=task, outcome=outcome, partition="val", **more)


@pytest.fixture
def two(tmp_path):
    """Make two runs. B's score is 0.1 higher at every step, and B solves half of the tasks that A fails."""
    folders = []
    for name, score, solved in (("a", 0.5, 4), ("b", 0.6, 7)):
        steps = [metrics(step, score=score + 0.01 * (step % 2)) for step in range(1, 13)]
        steps[5]["val-core/letters/acc/mean@1"] = solved / 10
        folder = made(tmp_path / name, steps)
        folders.append(write_run(folder, [record(i, float(i < solved)) for i in range(10)]))
    return folders


def over_tasks(folders: list[Path]) -> list[tuple[float, float, str]]:
    found = compare(*(report(open_run(folder)) for folder in folders)).differences
    return [(one.a, one.b, one.over) for one in found if one.what == "success of letters, step 6"]


def test_a_session_that_failed_counts_as_0_in_a_comparison_and_a_sample_of_sessions_is_not_compared(two):
    write_run(two[1], [record(0, 1.0, number=1, status="dropped")], worker="1")
    assert over_tasks(two) == [(0.4, 0.65, "10 tasks")]
    write_run(two[0], [left_out("6-0", 1, 6, "val")], worker="1")
    assert over_tasks(two) == []


def test_two_runs_are_compared_by_step_and_by_task_of_the_validation(two, tmp_path, capsys):
    found = {one.what: one for one in compare(*(report(open_run(folder)) for folder in two)).differences}
    score = found["agent/solver/reward/score"]
    assert score.b - score.a == pytest.approx(0.1) and score.over == "10 steps"
    assert score.low <= 0.1 + 1e-9 and score.high >= 0.1 - 1e-9 and score.high - score.low < 1e-6, "paired"
    success = found["success of letters, step 6"]
    assert (success.a, success.b, success.over) == (0.4, 0.7, "10 tasks")
    assert 0 <= success.low < 0.3 < success.high <= 0.6
    text = output_of(capsys, "report", *two, "--html", tmp_path / "page.html")
    assert "paired by task; bootstrap interval over the tasks" in text and "paired by step" in text
    assert "<title>A a, B b" in (tmp_path / "page.html").read_text()


def test_what_cannot_be_compared_is_refused(two, tmp_path, capsys):
    other = made(tmp_path / "other", [{"step_only": 1.0}])
    assert "no metric in common" in output_of(capsys, "report", two[0], other, code=1)
    assert "give one or two folders" in output_of(capsys, "report", *two, other, code=2)
    assert "is not the folder of a run" in output_of(capsys, "report", tmp_path, code=1)


def test_a_notebook_shows_the_page_in_a_frame_and_no_text_of_a_model_as_markup(run):
    acts = [act(text="<img src=x>\x1b[2J")]
    write_run(run, [session(step, f"{step}-0", acts=acts) for step in (1, 2, 12)])
    found = report(open_run(run))
    assert repr(found) == f"<RunReport of {run}: 12 steps>"
    frame = found._repr_html_()
    assert frame.startswith('<iframe sandbox="allow-scripts"') and frame.count("<") == 2 and "\x1b" not in frame
