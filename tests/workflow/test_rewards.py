import numpy as np
import pytest
import torch

from verl_mas.config.schema import AgentSpec, FaultSpec, RewardSpec
from verl_mas.errors import FaultKind, WorkflowError
from verl_mas.testing.scripted_llm import ScriptedLLM
from verl_mas.verl_.row import Act
from verl_mas.workflow import Generation, Outcome, Reply, Task
from verl_mas.workflow.agents import ResolvedAgent
from verl_mas.workflow.rewards import Score, row_rewards, rows_of


def reply(agent="solver", **values):
    values.setdefault("generation", Generation("x", response_ids=(1,)))
    return Reply(Act(agent, agent, "main"), [], **values)


# A session that the team won, although the solver's second act was malformed.
SESSION = [[reply(reward=0.5)], [reply("verifier", reward=0.2)], [reply(malformed="no box")]]
AGENTS = {
    name: ResolvedAgent(name, name, AgentSpec(format_penalty=penalty), trainable=True)
    for name, penalty in (("solver", 0.1), ("verifier", 0.2))
}


def scores(rows, spec):
    return [reward.score for reward in row_rewards(rows, 1.0, AGENTS, spec)]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (RewardSpec(), [1.5, 1.2, 0.9]),
        (RewardSpec(preset="dr_mas"), [1.0, 1.0, 0.9]),
        (RewardSpec(preset="at_grpo"), [1.5, 1.2, 1.0]),
        (RewardSpec(preset="sparse"), [1.0, 1.0, 1.0]),
        (RewardSpec(preset="dr_mas", penalty_on="agent"), [0.9, 1.0, 0.9]),
        (RewardSpec(preset="dr_mas", penalty_on="session"), [0.9, 0.9, 0.9]),
        (RewardSpec(team=0.0, local=2.0, penalty_on="none"), [1.0, 0.4, 0.0]),
        # A given zero overrides the preset.
        (RewardSpec(preset="at_grpo", local=0.0), [1.0, 1.0, 1.0]),
    ],
)
def test_the_preset_weighs_the_parts_of_a_rows_score(spec, expected):
    assert scores(SESSION, spec) == pytest.approx(expected)
    assert scores([], spec) == []
    twice = [[reply(malformed="no box")], [reply(), reply(malformed="no box")]]
    assert scores(twice, RewardSpec(penalty_on="agent")) == pytest.approx([0.8, 0.8]), "penalties add up"


def test_verdicts_in_info_are_refused():
    assert Outcome(verdicts={"verifier": [(True, False)]}).info == {}
    with pytest.raises(WorkflowError, match=r"Outcome\(verdicts="):
        Outcome(info={"verdicts": {"verifier": [(True, False)]}})


def test_rows_with_tokens_are_numbered_in_the_order_of_their_first_acts():
    remote = Generation("x")
    replies = [
        reply(row=0),
        reply(row=1, generation=remote),
        reply(row=2, generation=remote),
        reply(row=3),
        reply(row=2),
    ]
    rows = rows_of(Task.of("q"), replies, 1.0, AGENTS, RewardSpec())
    assert [row.key and str(row.key) for row in rows] == ["task_0_0", None, "task_0_1", "task_0_2"]


UNREADABLE = [float("nan"), float("inf"), -float("inf"), "0.5", b"1", [1.0], 1j, 10**400]


@pytest.mark.parametrize("value", UNREADABLE, ids=lambda value: f"{value!r:.12}")
@pytest.mark.parametrize("where", ["reward", "team_reward", "outcome", "acc", "score"])
def test_a_reward_that_is_not_a_finite_number_fails_the_session_where_it_is_set(run, where, value):
    async def rewards(task, team):
        await team.a.act("q")
        reply = await team.a.act("q")
        if where in ("reward", "team_reward"):
            setattr(reply, where, value)
        if where == "score":
            return Outcome(answer=reply)
        return Outcome(reward=value if where == "outcome" else 1.0, info={"acc": value} if where == "acc" else {})

    async def score(session):
        return Score(value)

    done = run(rewards, ScriptedLLM("x"), faults=FaultSpec(retries=0), score=score)
    (fault,) = done.faults
    assert done.failed and fault.kind is FaultKind.WORKFLOW and "finite number" in fault.cause
    assert where in ("outcome", "acc", "score") or "agent a in turn 1" in fault.cause
    assert done.session.team_reward is None and all(row.reward.score == 0 for row in done.session.rows())


@pytest.mark.parametrize("value", [True, 1, np.float32(1), np.bool_(True), torch.tensor(1.0)])
def test_whatever_counts_as_a_number_is_a_reward(value):
    assert Outcome(reward=value).reward is value
