"""Tables in shards: the data set, the team and its control, and demonstrations."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter, defaultdict
from dataclasses import replace
from fractions import Fraction
from itertools import islice

import pyarrow.parquet as pq
import pytest

from verl_mas.cli import data
from verl_mas.errors import ConfigError, DataError, SessionFault
from verl_mas.gym.lookup import (
    CUT,
    SHARDS,
    SYMBOLS,
    LookupMoves,
    ShardedLookup,
    SingleReader,
    Symbols,
    Table,
    check_size,
    draw,
    floor,
    found,
    lessons,
    shards_of,
    shuffled,
    successors,
    tasks,
)
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Malformed, Task
from verl_mas.workflow.run import run
from verl_mas.workflows.leader_workers import Delegation, FinalAnswer


def test_a_shard_has_the_successors_of_its_symbols_in_order():
    table = Table(("1 d a", "2 b c"))
    assert successors(" ".join(table.shards)) == {"a": "d", "b": "a", "c": "b", "d": "c"}
    assert successors(table.shards[1]) == {"c": "b", "d": "c"} and table.path("d") == "cb"


def test_a_table_is_one_cycle_and_the_steps_of_a_question_are_in_different_shards():
    rng = random.Random(0)
    for _ in range(50):
        table, asked = draw(4, 4, rng)
        assert sorted(asked + table.path(asked, 15)) == sorted(SYMBOLS[:16])
        first, answer = table.path(asked)
        assert SYMBOLS.index(asked) // 4 != SYMBOLS.index(first) // 4
        assert answer not in (asked, first)


def test_shuffled_shards_are_those_of_another_question_and_keep_the_reports():
    items = tasks(200, 4, 4, split="test")
    moved = shuffled(items)
    assert {item.source for item in moved} == {"lookup_shuffled"}
    assert [item.question for item in moved] == [item.question for item in items]
    assert sorted(item.shards for item in moved) == sorted(item.shards for item in items)
    assert not any(new.shards == old.shards for new, old in zip(moved, items, strict=True))
    # An answer read from them is right by chance only.
    right = sum(Table(item.shards).path(item.question)[-1] == item.truth for item in moved)
    assert right / len(moved) < 0.15


@pytest.mark.parametrize(("shards", "keys"), [(3, 2), (2, 3)])
def test_the_floor_is_the_success_of_the_best_guess_from_one_shard(shards, keys):
    """Over all cycles and questions, by the answers that occur with the same shard and question."""
    symbols = range(shards * keys)
    answers: dict[object, Counter[int]] = defaultdict(Counter)
    for order in itertools.permutations(symbols[1:]):
        cycle = (0, *order)
        following = dict(zip(cycle, (*order, 0), strict=True))
        for asked in symbols:
            first = following[asked]
            if asked // keys != first // keys:
                shard = tuple(following[symbol] for symbol in symbols[:keys])
                answers[asked, shard][following[first]] += 1
    best, every = (sum(map(of, answers.values())) for of in (lambda seen: max(seen.values()), Counter.total))
    assert floor(shards, keys) == Fraction(best, every)


@pytest.mark.parametrize(("shards", "keys"), [(1, 8), (4, 1), (4, 14)])
def test_a_table_without_two_shards_or_with_too_many_symbols_is_refused(shards, keys):
    with pytest.raises(ConfigError, match="--shards 4"):
        check_size(shards, keys)


def test_the_validation_file_has_the_control_as_a_source_of_its_own(tmp_path):
    made = tmp_path / "lookup"
    assert data.main(["lookup", "--out", str(made), "--train-rows", "6", "--test-rows", "3"]) == 0
    rows = pq.read_table(made / "validation.parquet").to_pylist()
    assert [row["data_source"] for row in rows] == ["lookup"] * 3 + ["lookup_shuffled"] * 3
    assert all(len(shards_of(row["extra_info"])) == 4 for row in rows)
    test = pq.read_table(made / "test.parquet").to_pylist()
    assert [row["extra_info"]["shards"] for row in test] == [row["extra_info"]["shards"] for row in rows[:3]]
    manifest = json.loads((made / "manifest.json").read_text())
    assert manifest["sources"]["lookup"]["floor"] == float(floor(4, 4)) and not (made / "model").exists()


# b -> c -> a, in the first shard and then in the second.
TASK = Task([{"role": "user", "content": "b"}], ground_truth="a", extra_info={SHARDS: CUT.join(["1 d c", "2 a b"])})


def prompts(llm) -> list[str]:
    return [request.messages[-1]["content"] for request in llm.requests]


def test_every_symbol_is_looked_up_by_a_worker_per_shard():
    llm = ScriptedLLM({"leader": [" b", " c", " = a"], "worker": [" c", " -", " -", " a"]})
    session = run(ShardedLookup(), TASK, llm)
    assert prompts(llm) == [" $ b", " 1 d c ! b", " 2 a b ! b", " c -", " 1 d c ! c", " 2 a b ! c", " - a"]
    assert session.team_reward == 1.0 and session.answer == "a"
    assert session.info == {"acc": 1.0, "rounds": 2, "workers": 4, "critical_path": 5}


def test_the_leader_may_look_up_several_symbols_at_once():
    llm = ScriptedLLM({"leader": [" b d", " = a"], "worker": " -"})
    assert run(ShardedLookup(max_workers=4), TASK, llm).info["workers"] == 4
    assert run(ShardedLookup(max_workers=2), TASK, ScriptedLLM({"leader": " b d", "worker": " -"})).info["workers"] == 0


def test_a_report_that_cannot_be_read_is_not_read_as_nothing_found():
    llm = ScriptedLLM({"leader": [" b", " = c"], "worker": [" c c", " -"]})
    session = run(ShardedLookup(), TASK, llm)
    assert prompts(llm)[-1] == " # -" and session.replies[1].malformed and session.team_reward == 0.0


def test_an_answer_differs_from_one_in_another_case():
    llm = ScriptedLLM({"leader": [" b", " = A"], "worker": " -"})
    assert run(ShardedLookup(), TASK, llm).team_reward == 0.0


def test_fewer_workers_than_shards_are_refused():
    with pytest.raises(SessionFault, match=r"max_workers=2 or more"):
        run(ShardedLookup(max_workers=1), TASK, ScriptedLLM(" b"))


def test_rows_without_shards_are_refused():
    with pytest.raises(SessionFault, match="verl-mas data lookup"):
        run(ShardedLookup(), replace(TASK, extra_info={}), ScriptedLLM(" b"))


def test_a_single_reader_of_shards_reads_on_with_what_it_found():
    llm = ScriptedLLM([" c", " a"])
    session = run(SingleReader(), TASK, llm)
    assert prompts(llm) == [" 1 d c ? b", " 2 a b ? b c"]
    assert session.team_reward == 1.0 and session.info == {"acc": 1.0, "critical_path": 2}


def test_a_single_reader_ends_after_two_passes():
    session = run(SingleReader(), TASK, ScriptedLLM([" -", " -", " c", " -"]))
    assert session.info == {"acc": 0.0, "critical_path": 4} and session.answer == ""


def test_a_single_reader_of_the_whole_table_writes_both_steps_at_once():
    llm = ScriptedLLM(" c a")
    session = run(SingleReader(window="all"), TASK, llm)
    assert prompts(llm) == [" 1 d c 2 a b ? b"] and session.team_reward == 1.0


def test_one_step_is_no_answer():
    assert run(SingleReader(window="all"), TASK, ScriptedLLM(" a")).team_reward == 0.0


@pytest.mark.parametrize("move", [Delegation(("a",)), Delegation(("a", "b")), FinalAnswer("z")])
def test_a_move_round_trips(move):
    assert LookupMoves(2).parse(LookupMoves(2).render(move)) == move


@pytest.mark.parametrize("text", ["", "-", "ab", "a b c", "= ", "= a b", "a = b", "= -", "1"])
def test_what_is_neither_symbols_nor_an_answer_is_malformed(text):
    assert isinstance(LookupMoves(2).parse(text), Malformed)


@pytest.mark.parametrize("found", [[], ["a"], ["a", "b"]])
def test_symbols_round_trip(found):
    assert Symbols(2).parse(Symbols(2).render(found)) == found
    with pytest.raises(DataError):
        Symbols(1).render(["a", "b"])


def drawn(count: int = 600, **noise: float) -> list:
    noise = {"noise": 0.0, "worker_noise": 0.0, **noise}
    return list(islice(lessons(4, 4, **noise), count))


@pytest.mark.parametrize(
    ("prompt", "right"),
    [
        (" 1 d c ! a", ["d"]),
        (" 1 d c ! d", []),
        (" 1 b c ! a", ["b"]),
        (" 1 d c 2 a b ? b", ["c", "a"]),
        (" 2 a b ? b c", ["a"]),
    ],
)
def test_what_there_is_to_find_is_read_from_the_prompt_alone(prompt, right):
    assert found(prompt) == right


def test_without_noise_every_reply_is_right():
    taught = drawn()
    looked_up = [lesson for lesson in taught if lesson.agent != "leader"]
    assert {lesson.agent for lesson in taught} == {"leader", "worker", "reader"}
    assert all(lesson.reply.split() == (found(lesson.prompt) or ["-"]) for lesson in looked_up)
    for lesson in taught:
        if lesson.agent == "leader":
            reports = lesson.prompt.rpartition("<|im_end|>")[2].split()
            (symbol,) = [word for word in reports if word not in "$-"]
            assert lesson.reply in (f" {symbol}", f" = {symbol}")


def test_each_side_has_a_noise_of_its_own():
    def wrong(taught) -> float:
        replies = [lesson.reply.split() != (found(lesson.prompt) or ["-"]) for lesson in taught]
        return sum(replies) / len(replies)

    of_workers = [lesson for lesson in drawn(1500, worker_noise=0.4) if lesson.agent == "worker"]
    of_leader = [lesson for lesson in drawn(1500, noise=0.4) if lesson.agent == "worker"]
    # A random value of the shard is the right one in one case of four.
    assert 0.25 < wrong(of_workers) < 0.45 and wrong(of_leader) == 0
