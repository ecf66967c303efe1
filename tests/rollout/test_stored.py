"""The rows of a session, field by field."""

import pytest
import torch

from verl_mas.config.schema import AgentSpec, FaultSpec, RewardSpec
from verl_mas.rollout.stored import failed_validation_row, observation, stored_rows
from verl_mas.workflow import Outcome, Task, Workflow

LETTERS = "abcd"


class Rounds(Workflow):
    """Two agents, three turns, four candidates each; candidate `letter` is worth its place in the alphabet."""

    agents = ("planner", "doer")

    async def run(self, task, team):
        state = ""
        for _ in range(3):
            for agent in (team.planner, team.doer):
                replies = await agent.branch(f"{agent.name}:{state}", k=4)
                for reply in replies:
                    reply.reward = LETTERS.index(reply.text) / 10
                    if reply.text == "a":
                        reply.mark_malformed("a is no move")
                state += team.commit(replies).text.upper()
        return Outcome(reward=2.0, info={"length": len(state)})


def dataset(task):
    own = {"uid": task.uid, "session_id": task.session, "global_steps": task.step, "raw_prompt": task.messages}
    return {**own, "data_source": "letters", "reward_model": {"ground_truth": "d"}, "index": 5}


@pytest.fixture
def session_rows(policy, play, tokenizer):
    client, server = policy(lambda prompt, number: LETTERS[number % 4])
    task = Task([{"role": "user", "content": "go"}], uid="u", session=1, step=7)
    agents = {
        "planner": AgentSpec(sampling={"temperature": 0.5}, format_penalty=0.05),
        "doer": AgentSpec(trainable=False),
    }
    done = play(Rounds, client, agents=agents, task=task, reward=RewardSpec(team=1.0, local=2.0))
    assert not done.failed, done.faults
    return stored_rows(done.session, {"main": client.model}, dataset(task)), server


def test_a_branching_session_field_by_field(session_rows, tokenizer):
    rows, server = session_rows
    # All requests of an agent have the same id, so they stay on the server that has their prefix.
    assert set(server.requests) == {"u_1_planner", "u_1_doer"}
    assert [str(row.key) for row in rows] == [f"u_1_{index}" for index in range(24)]
    for index, row in enumerate(rows):
        act, branch = divmod(index, 4)
        agent, turn = ("planner", "doer")[act % 2], act // 2
        # The best candidate is d, so the state grows by one D per act.
        prompt = f"<|im_start|>user\n{agent}:{'D' * act}<|im_end|>\n<|im_start|>assistant\n"
        prompt_ids = tokenizer.encode(prompt)
        response_ids = [*tokenizer.encode(LETTERS[branch]), tokenizer.eos_token_id]
        penalty = 0.05 if agent == "planner" and branch == 0 else 0.0
        temperature = 0.5 if agent == "planner" else 1.0
        assert row.tags.as_dict() == {
            "status": "success",
            "prompt_len": len(prompt_ids),
            "response_len": 2,
            "seq_len": len(prompt_ids) + 2,
            "global_steps": 7,
            "min_global_steps": index,
            "max_global_steps": index,
            "policy": "main",
            "agent": agent,
            "role": agent,
            "source": "",
            "instance": 0,
            "turn": turn,
            "branch": branch,
            "session": 1,
            "trainable": agent == "planner",
            "committed": branch == 3,
            "malformed": branch == 0,
            "team_reward": 2.0,
            "local_reward": branch / 10,
            "penalty": pytest.approx(penalty, abs=1e-6),
            "observation": observation(prompt_ids),
            "temperature": temperature,
        }
        fields = dict(row.fields)
        score = 2.0 + 2 * branch / 10 - penalty
        expected = {
            "prompts": prompt_ids,
            "responses": response_ids,
            "input_ids": prompt_ids + response_ids,
            "position_ids": list(range(len(prompt_ids) + 2)),
            "response_mask": [1, 1],
            "loss_mask": [1, 1],
            "rollout_log_probs": [-0.25, -0.25],
            "rm_scores": [0.0, pytest.approx(score)],
            "temperature": temperature,
        }
        for name, value in expected.items():
            assert isinstance(fields[name], torch.Tensor) and fields.pop(name).tolist() == value, name
        fields.pop("metrics")
        assert fields.pop("extra_fields")["reward_extra_info"] == {"length": 6}
        assert fields == {
            **{name: fields[name] for name in ("uid", "session_id", "global_steps", "raw_prompt", "index")},
            "data_source": "letters",
            "reward_model": {"ground_truth": "d"},
            "num_turns": 2,
            "mm_processor_kwargs": {},
            "mm_processor_output": None,
            "multi_modal_inputs": {},
        }
    assert len({row.tags.observation for row in rows}) == 6


def test_rows_of_a_session_have_the_same_fields_as_a_failed_validation(session_rows, policy, play, tokenizer):
    rows, _ = session_rows

    async def broken(task, team):
        await team.a.act("q")
        raise KeyError("x")

    task = Task([{"role": "user", "content": "go"}], uid="v", step=3, validate=True)
    client, server = policy(lambda p, n: "x")
    done = play(broken, client, task=task, faults=FaultSpec(retries=0))
    row = failed_validation_row(done.session, {"main": client.model}, dataset(task), log_probs=True)
    assert row.fields.keys() == rows[0].fields.keys()
    assert row.fields["prompts"].tolist() == server.calls[0]["prompt_ids"]
    assert row.tags.response_len == len(row.fields["responses"])
    assert row.fields["rm_scores"].tolist() == [0.0] and row.fields["response_mask"].tolist() == [0]
    assert not row.tags.trainable


def test_the_row_of_a_conversation_has_the_oldest_and_the_newest_weights_that_sampled_it(policy, play):
    async def talks(task, team):
        talk = team.a.conversation()
        await talk.act("one")
        await talk.act("two")
        return Outcome(reward=1.0)

    client, _ = policy(lambda prompt, number: "x")
    task = Task([{"role": "user", "content": "go"}], uid="u", session=1, step=7)
    [row] = stored_rows(play(talks, client, task=task).session, {"main": client.model}, dataset(task))
    assert (row.tags.min_global_steps, row.tags.max_global_steps) == (0, 1)
