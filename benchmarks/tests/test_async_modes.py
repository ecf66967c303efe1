"""Tests of the formula for seconds per step, of the simulation, and of the values that are measured in a run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from verl_mas.trainer.timeline import ENGINE, LOG_PROBS, SAMPLE, STEP, UPDATE, WAKE, TimelineEvent


@pytest.fixture
def load(monkeypatch):
    """Import a module of benchmarks/ by name. After the test, it is removed."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    yield lambda name: importlib.import_module(f"benchmarks.{name}")
    for name in [name for name in sys.modules if name.startswith("benchmarks")]:
        del sys.modules[name]


@pytest.fixture
def sim(load):
    return load("dropped_tasks")


@pytest.fixture
def bench(load):
    return load("async_modes")


def test_the_formula_is_that_of_each_mode(sim):
    work = sim.Work(wait=0.5, a=0.001, c=0.0001, update=3.0, around=0.25)
    lengths = sim.Lengths(total=1000.0, longest_of_step=2000.0, longest_of_task=800.0)
    seconds = {str(mode): sim.formula(mode, work, lengths) for mode in sim.modes()}
    assert seconds["sync"] == pytest.approx(2.0 + 1.0 + 0.1 + 3.0)
    assert seconds["colocate W=1 T=2 wait"] == pytest.approx((2.0 + 1.0) / 2 + 0.1 + 3.0 + 0.25)
    assert seconds["colocate W=1 T=4 wait"] == pytest.approx((0.8 + 1.0) / 1.5 + 0.1 + 3.0 + 0.25)
    assert seconds["separate W=1 T=2 wait"] == pytest.approx(3.25), "the update takes longer than the rollout"
    assert sim.formula(sim.Mode("separate", 1, 2), sim.Work(wait=9.0), lengths) > 9.0


@pytest.mark.parametrize(("name", "warm_up", "threshold"), [("sync", 0, 1), ("colocate", 1, 2), ("colocate", 2, 3)])
def test_the_simulation_takes_about_as_long_as_the_formula_says(sim, name, warm_up, threshold):
    work = sim.Work(tasks=4, sessions=4, mean=50.0)
    run = sim.Run(sim.Mode(name, warm_up, threshold), work, seed=0)
    seconds = run.steps(80)
    assert seconds == pytest.approx(sim.formula(run.mode, work, run.lengths()), rel=0.1)


def test_an_engine_decodes_all_acts_together_and_waits_for_tools(sim):
    engine = sim.Engine(sim.Work(wait=1.0, a=1.0, c=0.5))
    short, long = (sim.Session(sim.Task(1, open=1), acts=[tokens]) for tokens in (2, 4))
    for session in (short, long):
        engine.start(session)
    engine.run(lambda: engine.ended)
    assert engine.ended == [short.task] and engine.now == 1.0 + 2 * (1.0 + 2 * 0.5)
    engine.run(lambda: len(engine.ended) == 2)
    assert engine.now == 5.0 + 2 * (1.0 + 0.5)


def test_waiting_trains_every_task_of_its_batch_in_order(sim):
    run = sim.Run(sim.Mode("colocate", 1, 2), sim.Work(tasks=3, sessions=2), seed=1)
    run.steps(12)
    assert run.dropped == []
    assert sorted(run.dispatched) == list(range(13)), "the last one is still out"
    assert [task.dispatched for task in run.trained] == [step for step in range(12) for _ in range(3)]


def test_dropping_loses_the_long_sessions(sim):
    run = sim.Run(sim.Mode("colocate", 1, 2, "drop"), sim.Work(), seed=0)
    run.steps(60)
    assert 0.1 < run.dropped_share < 0.25
    assert run.length_ratio < 0.95
    assert all(run.age(task, step) <= 2 for step, task in trained_with_step(run))


def trained_with_step(run):
    size = run.work.tasks
    return [(1 + i // size, task) for i, task in enumerate(run.trained)]


def test_costs_of_tokens_are_found_in_the_steps_of_a_run(bench):
    a, c, wait = 0.7e-3, 0.01e-3, 0.3
    sizes = [(1000, 20000), (1500, 26000), (700, 24000), (2200, 31000)]
    steps = [
        (a * longest + c * total + wait * 4, [bench.Played(longest, 4), *[bench.Played(100, 9)] * (others // 100)])
        for longest, total in sizes
        for others in [total - longest]
    ]
    assert bench.fit(steps, wait) == pytest.approx((a, c))


def test_lengths_are_means_over_steps_and_tasks(bench):
    tasks = [
        [[bench.Played(tokens, 1) for tokens in task] for task in step] for step in [[[1, 5], [3, 3]], [[2, 2], [2, 8]]]
    ]
    found = bench.lengths_of(tasks, wait=0.0)
    assert (found.total, found.longest_of_step, found.longest_of_task) == (13.0, 6.5, 4.5)
    found = bench.lengths_of(tasks, wait=10.0)
    assert (found.total, found.longest_of_step, found.longest_of_task) == (13.0, 16.5, 14.5)


def test_the_simulation_plays_the_sessions_of_a_run_in_their_order(bench):
    tokens = [500, 100, 300, 700, 200]
    tasks = [[[bench.Played(length, 1)]] for length in tokens]
    work = bench.Work(wait=0.0, a=0.001, c=0.001, update=2.0, around=0.0)
    seconds = bench.simulated(bench.Mode("sync"), work, tasks, act=64, skip=1)
    assert seconds == pytest.approx(2.0 + 0.002 * sum(tokens[1:]) / 4)


def events(steps):
    """Return the events of steps that take 10 s each.

    Sampling takes 4 s, in which the engine is busy for 3 s. Log-probs take 2 s, the update takes 3 s, and the engine
    takes 1 s to wake.
    """
    found = []
    for step in range(1, steps + 1):
        at = 100.0 + 10 * step
        for kind, begin, end in (
            (STEP, 0, 0),
            (SAMPLE, 0, 4),
            (ENGINE, 1, 4),
            (LOG_PROBS, 4, 6),
            (UPDATE, 6, 9),
            (WAKE, 9, 10),
        ):
            found.append(TimelineEvent(kind, step, at + begin, at + end))
    return found


def test_a_run_is_measured_after_its_warm_up(bench):
    slow_start = [TimelineEvent(STEP, 0, 0.0, 0.0), TimelineEvent(SAMPLE, 0, 0.0, 100.0)]
    found = bench.measured([*slow_start, *events(5)], skip=1)
    assert (found.step, found.sample, found.rest) == (10.0, 4.0, 6.0)
    assert (found.training, found.engine) == (0.5, pytest.approx(0.3))
    assert found.samples == tuple((step, 4.0) for step in (1, 2, 3, 4))
    with pytest.raises(SystemExit, match="run more than 6"):
        bench.measured(events(4), skip=4)


def test_modes_are_read_from_their_words(bench):
    assert bench.parse_mode("sync") == bench.Mode("sync")
    assert bench.parse_mode("colocate:2:6") == bench.Mode("colocate", 2, 6)
    for wrong in ("colocate", "sync:1:2", "other:1:2", "separate:1"):
        with pytest.raises(SystemExit, match="use sync, colocate:W:T"):
            bench.parse_mode(wrong)


@pytest.mark.parametrize(("mode", "batches"), [("sync", 1), ("colocate_async", 2), ("separate_async", 6)])
def test_a_soak_has_as_many_sessions_in_flight_as_asked(load, mode, batches):
    arguments = dict(argument.split("=", 1) for argument in load("soak").load(mode, batches - 1, 1200))
    tasks, sessions = (int(arguments[key]) for key in ("data.train_batch_size", "actor_rollout_ref.rollout.n"))
    assert batches * tasks * sessions == int(arguments["mas.max_sessions"]) == 1200
    assert arguments.get("+mas/mode", "sync") == mode


def test_the_lengths_of_a_team_are_the_same_in_every_run_and_log_normal(load):
    team = load("async_team")
    names = [f"0/{index}/{session}" for index in range(500) for session in range(8)]
    drawn, again = ([team.session_tokens(name, 200, 1.0, 4000) for name in names] for _ in range(2))
    assert drawn == again and max(drawn) > 2000
    assert sum(drawn) / len(drawn) == pytest.approx(200, rel=0.1)
    assert team.acts_of(130, 64) == [64, 64, 2] and team.acts_of(128, 64) == [64, 64]
