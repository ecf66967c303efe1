"""Tests that the memory of `verl-mas plan` equals the memory that workers and engines of real runs report.

`benchmarks/ledger` has the platform, the runs and the variants.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ledger.account import Refused, accounted, peaks
from ledger.book import Book
from ledger.events import ADAM, CONTEXT, KV, WEIGHTS, Event, Holder
from ledger.phases import SAVE
from ledger.runs import RUNS, arguments, environment, recorded
from ledger.variants import OVER, PHASES, VARIANTS, sizes_of, team

from verl_mas.planning.events import SYNC, UPDATE
from verl_mas.planning.hardware import GIB

ROOT = Path(__file__).parents[2]
ENGINES = pytest.mark.parametrize("engine", ["vllm", "sglang"])
SEPARATE = VARIANTS["math/separate_8b"]
PLANNED = {**VARIANTS, "over": OVER, "phases": (*SEPARATE, PHASES)}


def on_engines(variants):
    """Run a test for each variant and engine, except adapters on SGLang, because SGLang keeps their base on the GPU.

    The engines of the recorded runs drop their weights.
    """
    pairs = [(name, engine) for name in variants for engine in ("vllm", "sglang")]
    runs = [pair for pair in pairs if not (pair[0].endswith("adapters") and pair[1] == "sglang")]
    return pytest.mark.parametrize(("variant", "engine"), runs)


@pytest.fixture(scope="module")
def recordings(main_ppo, tmp_path_factory):
    """Record the events of a pool of each shape, in two runs that also check themselves at the sizes of real teams."""
    found = {}
    for run in RUNS:
        folder = tmp_path_factory.mktemp(run)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(ROOT / "benchmarks"), prepend=os.pathsep)
            for name, value in environment(folder, sizes_of(run)).items():
                patch.setenv(name, value)
            done = main_ppo(folder, *arguments(run))
        assert done.exit_code == 0, done.output[-6000:]
        found |= recorded(folder, run)
    return found


@pytest.mark.e2e
@on_engines(VARIANTS)
def test_every_recipe_fits_at_every_event(recordings, variant, engine):
    of = team(*VARIANTS[variant]).on(engine)
    for entry in accounted(recordings[of.shape], of.sizes):
        assert not entry.wrong, f"{entry}: {entry.wrong}"


@pytest.mark.e2e
@on_engines(PLANNED)
def test_the_fullest_moment_of_every_phase_is_the_plans(recordings, variant, engine):
    of = team(*PLANNED[variant]).on(engine)
    found = peaks(accounted(recordings[of.shape], of.sizes))
    for moment, size in of.planned().items():
        assert found[moment] == pytest.approx(size, rel=0.03), moment
    assert found[SAVE, None] <= found[UPDATE, None], "a save moves what an update holds"


@pytest.mark.e2e
@ENGINES
def test_two_policies_at_verls_default_fraction_do_not_fit(recordings, engine):
    of = team(*OVER).on(engine)
    first = next(entry for entry in accounted(recordings[of.shape], of.sizes) if entry.wrong)
    assert (first.phase, first.event.what) == (SYNC, "wake up") and first.event.take == (KV,)
    assert first.used > of.sizes.limit and "that is more than 72.9 GiB" in first.wrong
    assert sum(size > 30 * GIB for holder, size in first.by.items() if holder.kind == "engine") == 2


def without(events, unwanted):
    """Return the events without the unwanted events of processes after the first weight sync begins."""
    first = next(i for i, event in enumerate(events) if event.what == SYNC)
    return [event for i, event in enumerate(events) if i < first or event.holder is None or not unwanted(event)]


def the_first_engine_stays_awake(events):
    return without(events, lambda e: e.what == "sleep" and e.holder.policy == "0")


def the_first_optimizer_stays(events):
    return without(events, lambda e: ADAM in e.free and e.holder.policy == "0")


def weights_are_sent_before_the_engine_wakes(events):
    return without(events, lambda e: e.what == "wake up" and WEIGHTS in e.take)


def the_cache_is_not_taken_back(events):
    return without(events, lambda e: e.what == "wake up" and KV in e.take)


# In this team, 14B models on 8 GPUs fit at each moment of the right order, but with little room.
LARGE = (*SEPARATE, "actor_rollout_ref.model.path=Qwen/Qwen3-14B")
SLICED = (*LARGE, PHASES, "actor_rollout_ref.rollout.gpu_memory_utilization=0.7")


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("mistake", "arguments", "what", "words"),
    [
        (the_first_engine_stays_awake, SLICED, "wake up", "more than"),
        (the_first_optimizer_stays, LARGE, "backward", "more than"),
        (weights_are_sent_before_the_engine_wakes, SEPARATE, "receive weights", "does not hold its weights"),
        (the_cache_is_not_taken_back, SEPARATE, "generate", "does not hold its kv cache"),
    ],
    ids=["the first engine stays awake", "the first optimizer stays", "weights before the wake", "no cache"],
)
def test_a_mistake_in_the_order_is_found(recordings, mistake, arguments, what, words):
    of = team(*arguments).on("vllm")
    right = recordings[of.shape]
    assert not any(entry.wrong for entry in accounted(right, of.sizes))
    wrong = next(entry for entry in accounted(mistake(right), of.sizes) if entry.wrong)
    assert wrong.event.what == what and words in wrong.wrong


def test_a_process_that_takes_what_is_not_there_fails_and_names_who_holds_what(tmp_path):
    sizes = team(*OVER).on("vllm").sizes
    first, second = (Book(tmp_path / "events.jsonl", sizes) for _ in range(2))
    for number, book in enumerate((first, second)):
        book.write(Event("join", "0", Holder("trainer", str(number), 0), (CONTEXT,)))
    first.write(Event("start", "0", Holder("engine", "0", 0), (CONTEXT, WEIGHTS, KV)))
    with pytest.raises(Refused) as error:
        second.write(Event("start", "0", Holder("engine", "1", 0), (CONTEXT, WEIGHTS, KV)))
    message = str(error.value)
    assert "start of engine 0 of 1" in message and "engine 0 of 0 39.6" in message and "trainer 0 of 0 1.0" in message
    assert "it takes 0.5 of the card, and less is free" in message
    first.write(Event("sleep", "0", Holder("engine", "0", 0), free=(WEIGHTS, KV)))
