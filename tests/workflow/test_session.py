"""Sessions: their records, limits and failures."""

import asyncio
import random
import time
from contextlib import suppress

import pytest

from verl_mas.config.schema import AgentSpec, BranchSpec, FaultSpec, PolicySpec, RewardSpec
from verl_mas.errors import FaultKind
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.workflow import Outcome, Task, Workflow, nested
from verl_mas.workflow.agents import resolve_agents
from verl_mas.workflow.commit import softmax
from verl_mas.workflow.rewards import Score
from verl_mas.workflow.run import run_session
from verl_mas.workflow.session import Line, SessionConfig
from verl_mas.workflows.ensemble import Ensemble


class Pair(Workflow):
    agents = ("a", "b")

    async def run(self, task, team):
        first = await team.a.act(task.messages)
        second = await team.b.act(str(first))
        third = await team.a.act(str(second), temperature=0.5)
        return Outcome(answer=third, reward=1.0, info={"acts": 3})


async def branching(task, team, agents=("a", "b")):
    replies = await team.a.branch(task.messages, k=4)
    for reply in replies:
        reply.reward = float(reply.text)
    chosen = team.commit(replies)
    return Outcome(answer=await team.b.act(str(chosen)), reward=0.5)


class Abandoning(Workflow):
    """One of three parallel acts fails; gather leaves the others running."""

    agents = ("a", "b", "c")

    async def run(self, task, team):
        await asyncio.gather(team.a.act("x"), team.b.act("x"), team.c.act("x"))
        return Outcome()


QUESTION = [{"role": "user", "content": "q"}]
VALIDATION = Task(QUESTION, validate=True)


def acts(replies, *names):
    return [tuple(getattr(reply, name) for name in names) for reply in replies]


def test_every_act_is_recorded_with_agent_turn_and_order(run):
    done = run(Pair, ScriptedLLM({"a": ["1", "2"], "b": "x"}))
    expected = [("a", 0, 0, "1", True), ("b", 0, 0, "x", True), ("a", 1, 0, "2", True)]
    assert acts(done.session.replies, "agent", "turn", "branch", "text", "committed") == expected
    assert done.session.answer == "2" and done.session.info == {"acts": 3} and not done.failed


def test_a_clock_that_is_set_back_makes_no_time_negative(run, monkeypatch):
    async def set_back(task, team):
        monkeypatch.setattr(time, "time", lambda: 0.0)
        return Outcome(answer=await team.a.act(task.messages), reward=1.0)

    session = run(set_back, ScriptedLLM("x")).session
    (reply,) = session.replies
    assert min(session.seconds, reply.started, reply.seconds) >= 0 and session.record()["started"] > 1e9


def test_sampling_goes_from_agent_to_act_and_validation_keeps_its_own_decoding(run):
    sampling = {"temperature": 1.2, "stop": ["."], "extra": {"min_tokens": 2}}
    agents = {"a": AgentSpec(sampling=sampling, validation_sampling={"top_p": 0.9, "extra": {"best_of": 1}})}
    llm = ScriptedLLM("x")
    for task in (Task(QUESTION), VALIDATION, Task(QUESTION, greedy=True)):
        run(Pair, llm, agents=agents, task=task)
    trained, overridden, validated, greedy = (llm.requests[i].sampling for i in (0, 2, 3, 8))
    always = {"stop": ["."], "min_tokens": 2}
    assert trained == {"temperature": 1.2, **always}
    assert overridden == {"temperature": 0.5, **always}
    assert validated == {"top_p": 0.9, "best_of": 1, **always}
    assert greedy == always


def contents(request):
    return [message["content"] for message in request.messages]


def test_the_system_prompt_of_the_config_replaces_the_workflows(run):
    llm = ScriptedLLM("x")
    task = Task([{"role": "system", "content": "old"}, *QUESTION])
    run(Pair, llm, task=task, agents={"a": AgentSpec(system_prompt="new")})
    assert [contents(request) for request in llm.requests[:2]] == [["new", "q"], ["x"]]

    async def talk(task, team):
        return Outcome(answer=await team.a.conversation("rules", system="S").act("hi"))

    llm = ScriptedLLM("x")
    run(talk, llm)
    run(talk, llm, agents={"a": AgentSpec(system_prompt="new")})
    # The opening messages of a conversation follow the system prompt.
    assert [contents(request) for request in llm.requests] == [["S", "rules", "hi"], ["new", "rules", "hi"]]


def test_branches_share_a_prompt_and_a_turn_and_the_best_is_committed(run):
    done = run(branching, ScriptedLLM({"a": ["1", "3", "2", "3"], "b": lambda r, _: r.messages[0]["content"]}))
    candidates = done.session.replies[:4]
    # The first of two equal candidates is committed.
    assert acts(candidates, "branch", "turn", "committed") == [(n, 0, n == 1) for n in range(4)]
    assert len({tuple(r.generation.prompt_ids) for r in candidates}) == 1
    assert done.session.answer == "3"
    assert [(row.reward.team, row.reward.local, row.reward.score) for row in done.session.rows()] == [
        (0.5, 1.0, 1.5), (0.5, 3.0, 3.5), (0.5, 2.0, 2.5), (0.5, 3.0, 3.5), (0.5, 0.0, 0.5),
    ]  # fmt: skip


def test_a_validation_branch_has_one_candidate_unless_asked_otherwise(run):
    for spec, replies in ((BranchSpec(), 2), (BranchSpec(validation_k=3), 4)):
        assert len(run(branching, ScriptedLLM("1"), task=VALIDATION, branch=spec).session.replies) == replies


@pytest.mark.parametrize("rule", ["softmax", "uniform"])
def test_random_commits_repeat_for_the_same_task_and_session(run, rule):
    def choices():
        spec = BranchSpec(commit=rule, temperature=1.0)
        llm = ScriptedLLM({"a": ["1", "2", "3", "4"], "b": "x"})
        runs = [run(branching, llm, task=Task(QUESTION, session=session), branch=spec) for session in range(20)]
        return [acts(done.session.replies, "committed") for done in runs]

    assert choices() == choices()


@pytest.mark.parametrize(("temperature", "least", "most"), [(0.01, 200, 200), (100.0, 70, 130)])
def test_a_cold_softmax_takes_the_best_and_a_hot_one_takes_each_equally_often(temperature, least, most):
    rng = random.Random(0)
    assert least <= sum(softmax([0.0, 1.0], temperature, rng) for _ in range(200)) <= most


def test_a_commit_of_unscored_candidates_says_what_to_do(run):
    async def lazy(task, team):
        replies = await team.a.branch("q", k=2)
        team.commit(replies)
        # A candidate may have a team reward of its own.
        replies[0].team_reward, replies[1].team_reward = 0.25, 0.75
        return Outcome(reward=9.0)

    done = run(lazy, ScriptedLLM("x"))
    assert done.failed and "set reply.reward" in done.faults[-1].cause
    rows = run(lazy, ScriptedLLM("x"), branch=BranchSpec(commit="first")).session.rows()
    assert [row.reward.team for row in rows] == [0.25, 0.75]


def test_a_candidate_is_committed_without_the_penalties_of_the_others(run):
    async def malformed(task, team):
        replies = await team.a.branch("q", k=2)
        replies[0].mark_malformed("no box")
        replies[0].reward = replies[1].reward = 0.0
        return Outcome(answer=str(team.commit(replies).branch), reward=0.0)

    settings = {"agents": {"a": AgentSpec(format_penalty=0.5)}, "reward": RewardSpec(penalty_on="session")}
    assert run(malformed, ScriptedLLM("x"), **settings).session.answer == "1"


def test_two_acts_of_one_conversation_at_once_fail_the_session(run):
    async def talks(task, team):
        talk = team.a.conversation()
        await asyncio.gather(talk.act("hi"), talk.act("more"))
        return Outcome(reward=1.0)

    done = run(talks, ScriptedLLM("x", latency=0.01))
    assert done.failed and "two acts of a's conversation at once" in done.faults[-1].cause


def test_a_session_and_a_reply_are_shown_in_one_line_without_token_ids(run):
    session = run(Pair, ScriptedLLM("long " * 100)).session
    assert repr(session).startswith("<Session of task task_0: 3 acts, answer 'long long")
    assert repr(session.replies[0]).startswith("<Reply of a, turn 0: 'long long")
    assert max(len(repr(session)), len(repr(session.replies[0]))) < 120
    assert not any("ids" in repr(value) for value in (session.replies[0].generation, session.rows()[0]))


def test_a_branch_in_a_conversation_trains_no_token_twice(run):
    async def talks(task, team):
        talk = team.a.conversation()
        await talk.act("q")
        replies = await talk.branch("r", k=2)
        replies[0].reward, replies[1].reward = 0.0, 1.0
        talk.commit(replies)
        await talk.act("s")
        return Outcome(reward=0.0)

    done = run(talks, ScriptedLLM({"a": ["A", "B", "C", "D"]}))
    rows = [(bytes(r.generation.prompt_ids), bytes(r.generation.response_ids)) for r in done.session.rows()]
    start = b"<user>q<assistant>"
    assert rows == [
        (start, b"A"),
        (start + b"A<user>r<assistant>", b"B"),
        (start + b"A<user>r<assistant>", b"C"),
        (start + b"A<user>r<assistant>C<user>s<assistant>", b"D"),
    ]
    assert [r.first.turn for r in done.session.rows()] == [0, 1, 1, 2]


def test_a_sub_team_keeps_its_agents_apart(run):
    class Outer(Workflow):
        agents = (*nested("left", Pair), *nested("right", Pair.agents))

        async def run(self, task, team):
            left, right = [await Pair().run(task, team.sub(name)) for name in ("left", "right")]
            return Outcome(answer=f"{left.text}{right.text}", reward=0.0)

    done = run(Outer, ScriptedLLM(lambda r, _: r.agent[0]))
    assert {r.agent for r in done.session.replies} == {"left_a", "left_b", "right_a", "right_b"}
    assert done.session.answer == "lr"


def test_roles_share_settings_and_have_their_own_names(run):
    llm = ScriptedLLM("x")
    done = run(Ensemble, llm, agents={"reasoner": AgentSpec(sampling={"top_p": 0.5}), "judge": AgentSpec()})
    reasoners = [(f"reasoner_{number}", "reasoner", 0) for number in range(3)]
    assert acts(done.session.replies, "agent", "role", "turn") == [*reasoners, ("judge", "judge", 0)]
    assert [dict(r.sampling) for r in llm.requests] == [{"top_p": 0.5}] * 3 + [{}]


def test_the_reward_function_scores_only_sessions_without_a_reward(run):
    asked = []

    async def score(session):
        asked.append(session.answer)
        return Score(0.75, {"acc": 1.0})

    async def plain(task, team):
        return Outcome(answer=await team.a.act("q"))

    done = run(plain, ScriptedLLM("42"), score=score)
    assert done.session.team_reward == 0.75 and done.session.info == {"acc": 1.0}
    run(Pair, ScriptedLLM("x"), score=score)
    run(branching, ScriptedLLM("1"), score=score)
    assert asked == ["42"]

    async def local(task, team):
        reply = await team.a.act("q")
        reply.reward = 0.1
        return Outcome(answer=reply, score_answer=bool(task.ground_truth))

    assert run(local, ScriptedLLM("7"), score=score).session.team_reward is None and asked == ["42"]
    (row,) = run(local, ScriptedLLM("7"), score=score, task=Task(QUESTION, "score it, too")).session.rows()
    assert (row.reward.team, row.reward.local) == (0.75, 0.1) and asked == ["42", "7"]


def test_a_refused_act_is_retried_and_then_recorded_with_agent_and_turn_and_a_slow_one_times_out(run):
    once = iter([RuntimeError("engine down")])
    llm = ScriptedLLM({"a": "1", "b": "2"}, fault=lambda r: next(once, None) if r.agent == "b" else None)
    done = run(Pair, llm)
    assert not done.failed and len(done.session.replies) == 3, "the first attempt's acts are gone"
    (fault,) = done.faults
    assert (fault.kind, fault.agent, fault.turn) == (FaultKind.REFUSED, "b", 0) and "engine down" in fault.cause

    done = run(Pair, ScriptedLLM("x", fault=lambda r: RuntimeError("down")))
    assert done.failed and len(done.faults) == 2
    done = run(Pair, ScriptedLLM("x", latency=5.0), faults=FaultSpec(act_timeout_s=0.01, retries=0))
    assert done.failed and done.faults[0].kind is FaultKind.TIMEOUT and done.faults[0].agent == "a"


def test_an_error_of_the_workflow_is_data_with_its_cause(run):
    async def broken(task, team):
        await team.a.act("x")
        raise KeyError("oops")

    done = run(broken, ScriptedLLM("x"), faults=FaultSpec(retries=2, backoff_s=0.0))
    assert [f.kind for f in done.faults] == [FaultKind.WORKFLOW] * 3 and "KeyError: 'oops'" in done.faults[0].cause
    assert [r.agent for r in done.session.replies] == ["a"]


def test_a_workflow_that_never_stops_is_ended(run):
    async def endless(task, team):
        while True:
            with suppress(Exception):  # the defect that this workflow stands for
                await team.a.act("again")

    faults = FaultSpec(max_acts=5, session_timeout_s=0.2)
    done = run(endless, ScriptedLLM("x"), faults=faults)
    assert done.failed and done.faults[0].kind is FaultKind.SESSION_TIMEOUT and len(done.faults) == 1, "no second try"
    assert len(done.session.replies) == 5


def test_a_session_ends_although_its_workflow_swallows_the_cancellation(run, monkeypatch):
    monkeypatch.setattr("verl_mas.workflow.clock.GRACE_S", 0.01)

    async def stubborn(task, team):
        for _ in range(50):
            with suppress(BaseException):  # the defect that this workflow stands for
                await team.a.act("q")
            await asyncio.sleep(0.01)
        return Outcome()

    llm = ScriptedLLM("x", latency=60.0)
    done = run(stubborn, llm, faults=FaultSpec(session_timeout_s=0.05))
    assert done.failed and done.faults[0].kind is FaultKind.SESSION_TIMEOUT and llm.in_flight == 0


def test_an_abandoned_act_is_cancelled_at_the_engine(run):
    llm = ScriptedLLM("x", latency=5.0)

    class Mixed:
        async def generate(self, request, n=1):
            if request.agent == "a":
                raise RuntimeError("no")
            return await llm.generate(request, n)

    done = run(Abandoning, Mixed(), faults=FaultSpec(retries=0))
    assert done.failed and llm.cancelled == 2 and llm.in_flight == 0


def test_a_cancelled_session_cancels_its_requests():
    llm = ScriptedLLM("x", latency=5.0)
    setting = SessionConfig(resolve_agents(Abandoning.agents, {}, {"main": PolicySpec()}), {"main": llm})

    async def cancel():
        session = asyncio.ensure_future(run_session(Abandoning, Task.of("q"), setting))
        while llm.in_flight < 3:
            await asyncio.sleep(0)
        session.cancel()
        with pytest.raises(asyncio.CancelledError):
            await session
        assert llm.in_flight == 0 and llm.cancelled == 3

    asyncio.run(cancel())


class Crew(Workflow):
    agents = ("leader", "worker")
    workers: int = 3

    async def run(self, task, team):
        async def work(number):
            worker = team.spawn("worker")
            await asyncio.sleep((self.workers - number) / 100)
            return [await worker.act(f"{number}, part {part}") for part in range(2)]

        await asyncio.gather(*[work(number) for number in range(self.workers)])
        await team.worker.act("by itself")
        return Outcome(answer=await team.leader.act("sum up"), reward=1.0)


def test_turns_of_spawned_agents_do_not_depend_on_who_answers_first(run):
    replies = run(Crew, ScriptedLLM("x")).session.replies
    assert {(reply.agent, reply.instance, reply.turn, reply.messages[-1]["content"]) for reply in replies} == {
        *(("worker", number + 1, part, f"{number}, part {part}") for number in range(3) for part in range(2)),
        ("worker", 0, 0, "by itself"),
        ("leader", 0, 0, "sum up"),
    }


def test_more_instances_than_acts_and_agents_that_the_team_does_not_have_are_refused(run):
    async def wrong(task, team, agents=("leader", "worker")):
        team.spawn("wroker")

    few = run(Crew, ScriptedLLM("x"), faults=FaultSpec(max_acts=2, retries=0)).faults[0].cause
    assert "3 instances in a session" in few and "mas.faults.max_acts=2 acts; fix: " in few
    assert "did you mean 'worker'" in run(wrong, ScriptedLLM("x")).faults[0].cause


def test_lines_in_parallel_count_by_themselves():
    line = Line()
    assert [line.next_turn("a", 0), line.next_turn("a", 0), line.next_turn("a", 1)] == [0, 1, 0]
    probe, fork = line.probing(), line.forked(3)
    assert (probe.next_turn("a", 0), fork.next_turn("a", 0), line.next_turn("a", 0)) == (2, 2, 2)
    assert (fork.new_instance("a"), fork.new_instance("a"), line.new_instance("a")) == (1, 2, 1)
    assert (fork.fork, fork.probing().fork, probe.probe, fork.probe) == (3, 3, True, False)
    assert (line.alone, fork.alone, probe.alone) == (False, True, True)
