from __future__ import annotations

from itertools import islice

import pytest

from verl_mas.gym.lookup import found, lessons


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


def test_the_same_seed_gives_the_same_lessons():
    assert drawn(50, noise=0.3, worker_noise=0.3) == drawn(50, noise=0.3, worker_noise=0.3)
