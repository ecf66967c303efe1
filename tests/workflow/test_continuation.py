"""Continued candidates: their scores, sessions that they do not change, and states that cannot be restored."""

import asyncio
import random
import threading
from dataclasses import dataclass, field, replace

import pytest

from verl_mas.config.schema import AgentSpec, BranchSpec, FaultSpec, RewardSpec
from verl_mas.errors import FaultKind, WorkflowError
from verl_mas.rollout.counts import SessionCounts
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Outcome, Task, Workflow
from verl_mas.workflow.rewards import Score
from verl_mas.workflow.team import Conversation, restored

UNIFORM = BranchSpec(k=3, commit="uniform")
VALIDATION = replace(Task.of("t"), validate=True)


class Sum(Workflow):
    """Three acts of one digit each, two of them by `first`; the reward is the sum."""

    agents = ("first", "second")
    branches = True
    n: int = 1
    forks_at: int = -1
    scores: bool = True

    async def run(self, task, team):
        return await self.play(team, [])

    async def play(self, team, digits):
        for place in range(len(digits), 3):
            team.draw(str(digits))
            agent = team["first" if place != 1 else "second"]
            k = None if self.forks_at in (-1, place) else 1
            candidates = await agent.branch(f"digits {digits}", k)
            if place == self.forks_at:
                outcomes = await team.fork(candidates, self.after, digits)
                return next(one for one, reply in zip(outcomes, candidates, strict=True) if reply.committed)
            if self.scores:
                await asyncio.gather(*[team.continue_from(one, self.after, digits, self.n) for one in candidates])
            digits = [*digits, int(team.commit(candidates).text)]
        return Outcome(answer=str(digits), reward=float(sum(digits)))

    async def after(self, team, candidate, digits):
        digits.append(int(candidate.text))
        return await self.play(team, digits)


def ending(result):
    """Make a workflow whose continuations end at once, with `result(candidate)`."""

    async def after(self, team, candidate, digits):
        return result(candidate)

    return type("Ending", (Sum,), {"after": after})


def by_branch(request, branch):
    return str(branch)


def played(session):
    return [reply for reply in session.replies if not reply.probe]


def acts(replies, *names):
    return [tuple(getattr(reply, name) for name in names) for reply in replies]


def test_the_mean_of_the_continuations_is_the_value_of_the_candidate(run):
    # Each digit is 0 or 1 at random. Two digits follow the first digit, one follows the second, and none the third.
    rng = random.Random(0)
    coins = ScriptedLLM(lambda request, branch: str(rng.randrange(2)))
    session = run(lambda: Sum(n=300), coins, branch=BranchSpec(k=2, commit="first")).session
    chosen = 0
    for place, coins_left in enumerate((2, 1, 0)):
        candidates = played(session)[2 * place : 2 * place + 2]
        for one in candidates:
            exact = chosen + int(one.text) + 0.5 * coins_left
            assert one.team_reward == pytest.approx(exact, abs=4 * 0.5 * coins_left**0.5 / 300**0.5 + 1e-9)
        chosen += int(candidates[0].text)
    assert session.team_reward == chosen


def test_the_session_is_the_same_with_and_without_probes(run):
    probed = run(lambda: Sum(n=2), ScriptedLLM(by_branch), branch=UNIFORM).session
    plain = run(lambda: Sum(scores=False), ScriptedLLM(by_branch), branch=UNIFORM).session
    names = "agent", "instance", "turn", "branch", "text", "committed", "trainable", "messages"
    assert acts(played(probed), *names) == acts(plain.replies, *names)
    assert [row.key for row in probed.rows() if row.key] == [row.key for row in plain.rows()]
    assert len(probed.replies) > len(plain.replies) and len(probed.boards) == len(plain.boards) == 3


def test_probes_are_recorded_as_such_and_are_in_no_row_and_no_count_of_the_agents(run):
    result = run(lambda: Sum(n=2), ScriptedLLM(by_branch), branch=UNIFORM)
    session, record = result.session, result.session.record("finished")
    probes = [act for act in record["acts"] if act["probe"]]
    # Each act has three candidates with two continuations each. A continuation of the first act has two acts, one of
    # the second act has one act, and one of the third act has none.
    assert len(probes) == 3 * 2 * (2 + 1)
    assert {(act["key"], act["trainable"], act["committed"]) for act in probes} == {(None, False, False)}
    # Each probe names its candidate and the number of its continuation.
    assert {act["line"] for act in record["acts"] if not act["probe"]} == {""}
    candidates = {tuple(act["line"].rsplit("/", 2)[1:]) for act in probes}
    assert candidates == {(candidate, number) for candidate in "012" for number in "01"}
    assert len([row for row in session.rows() if row.key]) == 9
    metrics = SessionCounts.of(result).metrics()
    assert metrics["session/acts/mean"] == 9
    # Each reply of the scripted policy is one token.
    assert (metrics["session/probe_acts"], metrics["session/probe_tokens"]) == (18, 18)
    assert metrics["session/generated_tokens"] == 27


def test_a_malformed_probe_costs_no_row_a_penalty(run):
    class Marks(Sum):
        async def after(self, team, candidate, digits):
            reply = await team.second.act("once more")
            reply.mark_malformed("always")
            return 1.0

    agents, reward = dict.fromkeys(Sum.agents, AgentSpec(format_penalty=0.5)), RewardSpec(penalty_on="session")
    session = run(Marks, ScriptedLLM(by_branch), branch=UNIFORM, agents=agents, reward=reward).session
    assert {row.reward.penalty for row in session.rows() if row.key} == {0.0}


@pytest.mark.parametrize("task", [Task.of("t"), VALIDATION])
def test_an_act_without_other_candidates_is_not_played_on(run, task):
    branch = BranchSpec(k=3 if task.validate else 1)
    session = run(lambda: Sum(n=5), ScriptedLLM("1"), branch=branch, task=task).session
    assert len(session.replies) == 3 and all(one.team_reward is None for one in session.replies)


def test_probes_have_a_limit_of_their_own(run):
    few = FaultSpec(max_acts=9, max_probe_acts=9, retries=0)
    assert not run(Sum, ScriptedLLM(by_branch), branch=UNIFORM, faults=few).failed
    result = run(lambda: Sum(n=2), ScriptedLLM(by_branch), branch=UNIFORM, faults=few)
    assert result.faults[0].kind is FaultKind.LIMIT
    assert "mas.faults.max_probe_acts=9 of them; fix: continue fewer candidates" in str(result.faults[0])


def test_an_outcome_without_a_reward_is_scored_by_the_reward_function(run):
    async def score(session):
        return Score(float(session.answer or 0) * 10)

    answers = ending(lambda candidate: Outcome(answer=candidate))
    session = run(answers, ScriptedLLM(by_branch), branch=UNIFORM, score=score).session
    assert acts(session.replies, "team_reward") == [(0,), (10,), (20,)] * 3 and session.outcome.answer
    result = run(answers, ScriptedLLM(by_branch), branch=UNIFORM)
    assert "an outcome without a reward" in str(result.faults[0])


@pytest.mark.parametrize("result", [None, "1", Score(1.0)])
def test_a_result_that_is_not_an_outcome_is_refused(run, result):
    faults = run(ending(lambda candidate: result), ScriptedLLM(by_branch), branch=UNIFORM).faults
    assert "returns an Outcome, or its reward as a number" in str(faults[0])


class Adds(Workflow):
    """Each agent adds a digit. Without the digit of an agent, the sum has 0 instead."""

    agents = ("first", "second")
    n: int = 2

    async def run(self, task, team):
        return await self.after(team, None, [])

    async def after(self, team, reply, digits):
        mine = {}
        for agent in self.agents[len(digits) :]:
            reply = await team[agent].act(f"digits {digits}")
            mine[reply] = [*digits, 0]
            digits = [*digits, int(reply.text)]
        for reply, without in mine.items():
            value = await team.without(reply, self.after, without, self.n)
            reply.team_reward = None if value is None else sum(digits) - value
        return Outcome(reward=float(sum(digits)))


DIGITS = {"first": "3", "second": "4"}


def test_the_value_of_an_act_is_the_difference_to_a_session_without_it(run):
    session = run(Adds, ScriptedLLM(DIGITS)).session
    assert acts(played(session), "agent", "team_reward") == [("first", 3.0), ("second", 4.0)]
    assert session.team_reward == 7.0
    probes = [(one.agent, one.line) for one in session.replies if one.probe]
    assert probes == [("second", f"/first/0/0/without/{number}") for number in range(2)]


def test_in_validation_nothing_is_played_without_an_act(run):
    session = run(Adds, ScriptedLLM(DIGITS), task=VALIDATION).session
    assert acts(session.replies, "agent", "team_reward") == [("first", None), ("second", None)]


def test_a_session_is_played_on_at_least_once(run):
    assert "is continued with n=0" in str(run(lambda: Adds(n=0), ScriptedLLM(DIGITS)).faults[0])


def test_an_act_aside_is_no_act_of_the_session(run):
    async def asks(task, team):
        first = await team.a.act("one")
        note = await team.aside().a.act("aside")
        second = await team.a.act("two")
        assert team.replies == (first, second) and (note.turn, second.turn) == (1, 1)
        return Outcome(reward=1.0)

    session = run(asks, ScriptedLLM("x")).session
    assert [reply.probe for reply in session.replies] == [False, True, False]
    assert len([row for row in session.rows() if row.key]) == 2


def test_forks_are_trained_on_each_with_the_reward_of_its_own_end(run):
    session = run(lambda: Sum(forks_at=1), ScriptedLLM(lambda r, b: str(b + 1)), branch=UNIFORM).session
    shared, *forks = session.replies
    # The first digit is 1, the second is 1 to 3, and the third is 1.
    assert (shared.branch, shared.committed, shared.team_reward) == (0, True, pytest.approx(4.0))
    assert sorted(acts(forks, "agent", "turn", "branch", "team_reward")) == [
        (agent, turn, branch, 3.0 + branch) for agent, turn in (("first", 1), ("second", 0)) for branch in range(3)
    ]
    [kept] = {one.branch for one in forks if one.committed}
    assert sum(one.committed for one in forks) == 2 and session.team_reward == 3.0 + kept
    assert all(one.trainable and not one.probe for one in forks) and len(session.rows()) == 7


def test_an_act_after_a_fork_is_refused(run):
    class Twice(Sum):
        async def run(self, task, team):
            await self.play(team, [])
            return Outcome(answer=await team.second.act("judge"), reward=1.0)

    session = run(lambda: Twice(forks_at=0), ScriptedLLM(by_branch), branch=UNIFORM)
    assert "after a fork" in str(session.faults[0]) and "in the `play`" in str(session.faults[0])


def test_a_fork_of_one_candidate_is_the_session_itself(run):
    session = run(lambda: Sum(forks_at=0), ScriptedLLM("1"), branch=UNIFORM, task=VALIDATION).session
    assert acts(session.replies, "turn", "branch", "team_reward") == [(turn, 0, None) for turn in (0, 0, 1)]
    assert session.team_reward == 3.0


def test_a_conversation_and_a_spawned_agent_are_continued_on_the_line_of_the_probe(run):
    async def talks(task, team):
        worker = team.spawn("a")
        await worker.act("work")
        talk = team.a.conversation(system="be brief")
        await talk.act("one")
        candidates = await talk.branch("two")

        async def on(team, candidate, state):
            twin = talk.after(candidate, team)
            assert isinstance(twin, Conversation)
            await twin.act("three")
            await team.twin(worker).act("more work")
            return 1.0

        for one in candidates:
            await team.continue_from(one, on, None)
        talk.commit(candidates)
        await talk.act("three")
        return Outcome(reward=1.0)

    session = run(talks, ScriptedLLM(by_branch), branch=BranchSpec(k=2, commit="first")).session
    end = session.replies[-1]
    probes = [one for one in session.replies if one.probe]
    assert (end.instance, end.turn, end.messages[-1]["content"]) == (2, 2, "three")
    assert acts(probes, "instance", "turn") == [(2, 2), (1, 1)] * 2
    assert probes[0].messages == end.messages != probes[2].messages
    assert len([row for row in session.rows() if row.key]) == 5


Itself = type("Itself", (), {"copy": lambda self: self})
Nothing = type("Nothing", (), {"copy": lambda self: None})


class Locked:
    def __init__(self):
        self.lock = threading.Lock()


@dataclass
class Shares:
    grid: list = field(default_factory=lambda: [[0], [0]])

    def copy(self):
        return Shares(list(self.grid))


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (Itself(), r"the copy of a state of type Itself is the same object\n  rule: .*\n  fix: +give Itself a copy"),
        (Nothing(), "the copy of a state of type Nothing is None"),
        (Locked(), r"a state of type Locked cannot be copied: cannot pickle.*\n.*\n  fix: +give Locked a copy"),
        # A list cannot get a `copy` of its own.
        ([Locked()], r"a state of type list cannot be copied: cannot pickle.*\n.*\n  fix: +keep what cannot be copied"),
    ],
)
def test_a_state_that_cannot_be_restored_is_refused_with_the_fix(state, says):
    with pytest.raises(WorkflowError, match=says):
        restored(state)


def test_a_copy_may_share_only_parts_that_do_not_change(run):
    async def append(team, candidate, state):
        state.grid.append([2])
        return 1.0

    async def change(team, candidate, state):
        state.grid[0][0] = 1
        return 1.0

    async def keeps(task, team):
        for one in await team.a.branch("x"):
            await team.continue_from(one, task.ground_truth, Shares())
        return Outcome(reward=1.0)

    ok, refused = (run(keeps, ScriptedLLM("1"), branch=UNIFORM, task=Task([], after)) for after in (append, change))
    assert not ok.failed
    assert "Shares.grid changed while a candidate continued from a copy of its Shares" in str(refused.faults[0])


@pytest.mark.parametrize("state", [[[1]], {"a": [1]}, {1}, (1, [2]), "text", None, 3])
def test_plain_values_are_copied_with_their_contents(state):
    copied = restored(state)
    assert copied == state
    if isinstance(state, list):
        copied[0].append(2)
        assert state == [[1]]


@dataclass
class Die:
    rng: random.Random

    def reseed(self, rng):
        self.rng = rng


def test_a_copy_has_its_own_random_numbers_and_does_not_know_the_future_of_the_original(run):
    drawn = []

    async def play(team, candidate, die):
        drawn.append(die.rng.random())
        return 0.0

    async def one(task, team):
        die = Die(random.Random(7))
        for candidate in await team.a.branch("q", k=2):
            await team.continue_from(candidate, play, die)
        drawn.append(die.rng.random())
        return Outcome(reward=0.0)

    assert not run(one, ScriptedLLM("x")).failed
    assert len(set(drawn)) == len(drawn) == 3


def test_no_two_generations_of_a_session_have_the_same_place(run):
    """Otherwise an engine that derives its random numbers from the place would sample the same reply twice."""
    for workflow in (lambda: Sum(n=2), lambda: Sum(forks_at=1)):
        llm = ScriptedLLM(by_branch)
        run(workflow, llm, branch=UNIFORM)
        places = acts(llm.requests, "line", "agent", "instance", "turn")
        assert len(set(places)) == len(places) and ("", "first", 0, 0) in places


def test_lines_draw_numbers_of_their_own_the_same_in_every_repetition(run):
    seen = []

    class Draws(Sum):
        async def run(self, task, team):
            seen.append(team.random("x").random())
            await super().run(task, team)
            return Outcome(reward=0.0)

        async def after(self, team, candidate, digits):
            seen.append(team.random("x").random())
            return 1.0

    for _ in range(2):
        run(lambda: Draws(n=2), ScriptedLLM("1"), branch=UNIFORM)
    once, again = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert once == again and len(set(once)) == len(once) == 1 + 3 * 3 * 2
