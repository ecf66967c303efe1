"""Secret words: the tasks, the control, and the team."""

import pytest
from played import played, task_of

from verl_mas.config.hydra.recipe.smollm2.words import KINDS, SHUFFLED, SecretWords, graded, items, secrets, shuffled
from verl_mas.errors import SessionFault
from verl_mas.util.splits import TEST, TRAIN
from verl_mas.workflow import Task


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_right_is_known_to_the_scout_alone_and_held_out(kind):
    train, test = secrets(kind, TRAIN, None), secrets(kind, TEST, None)
    assert len({*train, *test}) == len(train) + len(test) and len(test) > 15
    for secret in train + test:
        told = secret.answer.split()[0]
        assert told in secret.known.lower() and told not in secret.own.lower().split()
    asked = [{secret.own + secret.answer for secret in part} for part in (train, test)]
    assert not asked[0] & asked[1]
    assert secrets(kind, TEST, 5, seed=1) == secrets(kind, TEST, 5, seed=1) != secrets(kind, TEST, 5, seed=2)


@pytest.mark.parametrize("kind", KINDS)
def test_in_the_control_the_scout_knows_what_it_would_know_in_another_task(kind):
    held_out = items(kind, None, split=TEST)
    mixed = shuffled(held_out)
    assert sorted(item.extra["known"] for item in mixed) == sorted(item.extra["known"] for item in held_out)
    assert {item.source for item in mixed} == {SHUFFLED}
    pairs = list(zip(held_out, mixed, strict=True))
    assert all((mine.extra["own"], mine.truth) == (other.extra["own"], other.truth) for mine, other in pairs)
    # There are only twelve colours, so another task sometimes has the same colour.
    same = sum(mine.extra["known"] == other.extra["known"] for mine, other in pairs) / len(pairs)
    assert same < 0.15 if kind == "pair" else same == 0


@pytest.mark.parametrize(
    ("reply", "answer", "score", "right"),
    [
        ("Rabbit.", "rabbit", 1, 1),
        ("The secret word is rabbit.", "rabbit", 1 / 3, 0),
        ("rabbit rabbit", "rabbit", 2 / 3, 0),
        ("rabbits", "rabbit", 0, 0),
        ("red hat", "red hat", 1, 1),
        ("hat red", "red hat", 1, 0),
        ("a red", "red hat", 0.5, 0),
        ("a hat", "red hat", 0, 0),
        ("", "red hat", 0, 0),
    ],
)
def test_every_word_too_many_costs_something(reply, answer, score, right):
    assert graded(reply, answer) == (pytest.approx(score), right)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_judge_says_is_rewarded_and_it_reads_what_the_scout_writes(kind):
    given = task_of(items(kind, 1)[0].row(0, TRAIN))
    replies = {
        "scout": "a note",
        "judge": ["which one?", given.ground_truth] if kind == "asked" else given.ground_truth,
    }
    session, prompts = played(SecretWords(), given, replies)
    assert [reply.agent for reply in session.replies] == ["judge"] * (kind == "asked") + ["scout", "judge"]
    assert session.team_reward == 1.0 and session.info == {"acc": 1.0}
    assert "a note" in prompts[-1] and given.extra_info["known"] not in prompts[-1]
    assert given.extra_info["known"] in prompts[-2] and ("which one?" in prompts[-2]) == (kind == "asked")


@pytest.mark.parametrize(("control", "reads"), [("all", True), ("own", False)])
def test_as_a_control_the_judge_acts_alone(control, reads):
    given = task_of(items("pair", 1)[0].row(0, TRAIN))
    session, (prompt,) = played(SecretWords(control=control), given, given.ground_truth)
    assert session.team_reward == 1.0 and (given.extra_info["known"] in prompt) == reads


@pytest.mark.parametrize("extra", [{}, {"kind": "letter", "known": "", "own": "", "answer": "a"}, {"kind": "word"}])
def test_rows_of_other_data_are_refused(extra):
    with pytest.raises(SessionFault, match=r"DataError(.|\n)*secret_words needs rows with kind, known, own and answer"):
        played(SecretWords(), Task([{"role": "user", "content": "Which word?"}], "a", extra_info=extra), "a")
