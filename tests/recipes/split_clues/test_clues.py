"""Split clues: the data set, the team, and demonstrations."""

import random
from itertools import islice

import pytest
from played import played, task_of

from verl_mas.config.hydra.recipe.split_clues import clues as split_clues
from verl_mas.config.hydra.recipe.split_clues.clues import SHUFFLED, Clues, SplitClues, clues
from verl_mas.errors import ConfigError, DataError
from verl_mas.util.splits import TEST, TRAIN
from verl_mas.workflow import Task


@pytest.mark.parametrize(
    ("parts", "tasks", "held_out", "left"), [(2, 1680, 420, 3), (3, 1680, 240, 3), (4, 6720, 1680, 4)]
)
def test_every_part_is_needed(parts, tasks, held_out, left):
    train, test = list(clues(TRAIN, parts)), list(clues(TEST, parts))
    assert (len(train) + len(test), len(test)) == (tasks, held_out) and len({*train, *test}) == tasks
    for task in islice(train, 0, None, 7):
        sets = [set(part) for part in task.parts]
        assert set.intersection(*sets) == {task.answer} and {len(one) for one in sets} == {left}
        for k in range(parts):
            assert len(set.intersection(*sets[:k], *sets[k + 1 :])) > 1


def test_hints_are_drawn_with_their_shares():
    rng = random.Random(0)
    hinted = [split_clues.with_hint(task, 0.7, rng) for task in clues(TRAIN)]
    assert all(task.hint in "".join(task.parts) for task in hinted)
    assert sum(task.hint != task.answer for task in hinted) / len(hinted) == pytest.approx(0.7, abs=0.04)
    assert {task.extra["hint"] for task in split_clues.items(9)} == {""}


def test_the_control_has_every_senders_clues_once_and_never_with_its_own_task():
    held_out = split_clues.items(None, split=TEST)
    mixed = split_clues.shuffled(held_out)
    assert sorted(item.extra["parts"][0] for item in mixed) == sorted(item.extra["parts"][0] for item in held_out)
    assert [item.extra["parts"][1] for item in mixed] == [item.extra["parts"][1] for item in held_out]
    assert {item.source for item in mixed} == {SHUFFLED}
    # A receiver that trusts such messages does not do better than with its own clues.
    left = [set(item.extra["parts"][0]) & set(item.extra["parts"][1]) or set(item.extra["parts"][1]) for item in mixed]
    right = sum((item.truth in letters) / len(letters) for item, letters in zip(mixed, left, strict=True))
    assert right / len(mixed) == pytest.approx(1 / 3, abs=0.05)


def test_a_row_names_its_parts_and_is_read_back():
    [item] = split_clues.items(1, seed=3, parts=3, decoys=0.5)
    extra_info = item.row(0, TRAIN)["extra_info"]
    given = Clues(item.truth, tuple(item.extra["parts"]), item.extra["hint"])
    assert split_clues.clues_of(extra_info, item.truth, 3) == given
    for truth, parts, says in ((item.truth, 2, "--parts 2"), ("", 3, "a right letter")):
        with pytest.raises(DataError, match=says):
            split_clues.clues_of(extra_info, truth, parts)


def test_numbers_that_cannot_be_made_are_refused():
    with pytest.raises(ConfigError, match="only 420 in 'test'"):
        split_clues.items(421, split=TEST)
    with pytest.raises(ConfigError, match="2, 3 or 4 parts"):
        split_clues.items(1, parts=5)


def task(parts: int = 2, session: int = 0, **more) -> Task:
    return task_of(split_clues.items(1, parts=parts, **more)[0].row(0, TRAIN), session=session)


def told(request):
    """Reply with the agent's own letters, or as the last act with the only letter that all clues and messages leave."""
    prompt = request.messages[-1]["content"]
    return "".join(left(prompt)) or "none" if prompt.endswith("?") else prompt[:-1].split("|")[0]


def left(prompt: str) -> set[str]:
    own, *messages = prompt[:-1].split("|")
    return set(own).intersection(*messages)


@pytest.mark.parametrize("arguments", [{}, {"rounds": 2}, {"parts": 3}, {"parts": 4, "rounds": 2}, {"control": "all"}])
def test_a_team_that_passes_on_its_clues_is_right(arguments):
    workflow = SplitClues(text="compact", **arguments)
    session, _ = played(workflow, task(arguments.get("parts", 2)), lambda request, branch: told(request))
    assert session.team_reward == 1.0 and session.info["acc"] == 1.0
    acts = [reply.agent for reply in session.replies]
    team = ["receiver"] if "control" in arguments else list(workflow.agents)
    assert acts == team * arguments.get("rounds", 1)
    assert session.info["named"] == (0.0 if "control" in arguments else 1.0)


def test_prompts_show_own_clues_and_messages_alone():
    given = task(decoys=1.0)
    _, prompts = played(SplitClues(text="compact", rounds=2), given, {"sender": "a b c", "receiver": "a"})
    first, second, third, last = prompts
    sender, receiver = given.extra_info["parts"]
    hint = "+" + given.extra_info["hint"]
    assert sorted(first[:3]) == sorted(sender) and first[3:] == f"{hint}A"
    assert sorted(second[:3]) == sorted(receiver) and second[3:] == f"{hint}|abcB"
    assert third[3:] == f"{hint}|abc|aA" and last[3:] == f"{hint}|abc|a|abc?"


def test_words_ask_for_tags_and_say_what_could_not_be_read():
    replies = {"sender": "no tag", "receiver": "<answer>a</answer>"}
    session, (sender, receiver) = played(SplitClues(), task(decoys=1.0), replies)
    assert session.replies[0].malformed and session.answer == "a"
    assert "<message>" in sender and "Messages of the team" not in sender and "may be wrong" in sender
    assert "<answer>" in receiver and "nothing that can be read" in receiver


def test_the_order_of_the_clues_differs_between_sessions():
    sessions = (played(SplitClues(text="compact"), task(session=number), "abc") for number in range(20))
    assert len({prompts[0] for _, prompts in sessions}) == 6


def test_of_several_candidates_only_answers_are_scored():
    right = task().ground_truth
    wrong = next(letter for letter in "abcdefgh" if letter != right)
    replies = {"sender": "abc", "receiver": lambda request, branch: [wrong, right][branch]}
    session, _ = played(SplitClues(text="compact"), task(), replies, k=2)
    assert [reply.team_reward for reply in session.replies] == [0.0, 0.0, 0.0, 1.0]
    assert session.answer == right and session.team_reward == 1.0


@pytest.fixture
def sent():
    """Make a task, a message with its sender's clues, and a message that tells nothing about the answer."""
    given = task()
    own, other = given.extra_info["parts"]
    return given, own, "".join(sorted(set("abcdefgh") - set(own) - set(other))[:3])


def test_a_message_that_is_played_on_is_worth_what_the_receiver_makes_of_it(sent):
    given, *messages = sent

    def say(request, branch):
        return messages[branch] if request.agent == "sender" else told(request)

    session, _ = played(SplitClues(text="compact", continuations=2), given, say, k=2)
    assert [reply.team_reward for reply in session.replies if reply.agent == "sender"] == [1.0, 0.0]
    assert sum(reply.probe for reply in session.replies) == 4
    assert all(reply.team_reward in (0.0, 1.0) for reply in session.replies if not reply.probe)


@pytest.mark.parametrize(("useful", "difference"), [(True, 1.0), (False, 0.0)])
def test_a_message_is_rewarded_with_what_the_team_has_more_than_without_it(sent, useful, difference):
    given, own, useless = sent

    def say(request, branch):
        return told(request) if request.agent == "receiver" else own if useful else useless

    session, prompts = played(SplitClues(text="compact", left_out=2), given, say, k=4)
    assert [reply.team_reward for reply in session.replies if not reply.probe] == [difference, None]
    assert sum(prompt.endswith("|?") for prompt in prompts) == 2 == sum(reply.probe for reply in session.replies)
    assert session.team_reward == float(useful)


def shown(noise: float, count: int = 4_000, **arguments):
    return list(islice(split_clues.lessons(SplitClues(text="compact", **arguments), noise=noise), count))


def test_without_noise_messages_are_the_clues_and_answers_what_all_clues_leave():
    for lesson in shown(0.0, 400, parts=3, rounds=2):
        if lesson.prompt.endswith("?"):
            assert {lesson.reply} == left(lesson.prompt)
        else:
            assert lesson.reply == lesson.prompt[:3]


def test_noise_is_of_whole_messages_and_of_answers_among_the_own_letters():
    found = shown(0.6)
    sent = [lesson for lesson in found if lesson.agent == "sender"]
    assert all(len(set(lesson.reply)) == 3 for lesson in sent)
    right = sum(lesson.reply == lesson.prompt[:3] for lesson in sent) / len(sent)
    assert right == pytest.approx(0.4, abs=0.03)
    answers = [lesson for lesson in found if lesson.agent == "receiver"]
    assert all(lesson.reply in lesson.prompt[:3] for lesson in answers)
    # A random letter equals the replaced letter in one case of eight.
    known = [lesson for lesson in answers if len(left(lesson.prompt)) == 1]
    assert sum({lesson.reply} == left(lesson.prompt) for lesson in known) / len(known) > 0.55


def test_lessons_are_of_training_tasks():
    held_out = {frozenset(task.parts[0]) | frozenset(task.parts[1]) for task in clues(TEST)}
    for sent, received in zip(*[iter(shown(0.0, 400))] * 2, strict=True):
        assert frozenset(sent.prompt[:3]) | frozenset(received.prompt[:3]) not in held_out
