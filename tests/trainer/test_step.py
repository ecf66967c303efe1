import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from verl_mas.advantage.record import Moments, Owner
from verl_mas.config.run import Run
from verl_mas.config.schema import MasConfig, RewardSpec
from verl_mas.trainer import step
from verl_mas.trainer.metrics import agent_metrics
from verl_mas.trainer.step import Columns, Credit, PolicyRows, read_columns, write_advantages
from verl_mas.verl_ import data_plane
from verl_mas.verl_.row import RowKey

KEYS = ["1-0_0_0", "1-0_0_1", "1-0_1_0"]


def batch(keys, tags=None):
    return KVBatchMeta(partition_id="train", keys=keys, tags=tags or [{"global_steps": 1} for _ in keys], extra_info={})


def test_rows_are_ordered_by_task_session_and_act_whichever_ended_first():
    keys = ["1-10_0_0", "1-2_1_0", "1-2_0_10", "1-2_0_9"]
    assert step.in_order(batch(keys)).keys == ["1-2_0_9", "1-2_0_10", "1-2_1_0", "1-10_0_0"]


class Queue:
    """A TransferQueue that records the written rows."""

    def __init__(self):
        self.rows = {}

    def kv_batch_put(self, keys, partition_id, fields):
        for key, row in zip(keys, fields.unbind(0), strict=True):
            self.rows.setdefault(key, {}).update({name: row[name] for name in row.keys()})  # noqa: SIM118
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=[{} for _ in keys], fields=list(fields.keys()))

    def kv_batch_get(self, keys, partition_id, select_fields):
        return {name: nested([self.rows[key][name] for key in keys]) for name in select_fields}


@pytest.fixture
def queue(monkeypatch):
    queue = Queue()
    monkeypatch.setattr(data_plane, "tq", queue)
    return queue


def test_every_row_gets_its_advantage_on_its_own_tokens_and_padding_gets_nothing(queue):
    rows = batch(KEYS)
    of_a = PolicyRows(batch(["1-0_1_0", "pad_0_0", "1-0_0_0"], [{"n": 2}, {"is_padding": True}, {"n": 0}]))
    of_a.changed = {"response_mask": nested([[1, 0], [0], [1, 1, 0]])}  # by the rollout correction
    of_a.batch.extra_info["temperature"] = 0.5
    masks = [torch.tensor(mask) for mask in ([1, 1, 0], [1], [1, 1])]
    columns = Columns(keys=[], tags=[], scores=torch.zeros(3), masks=masks)
    write_advantages(rows, columns, torch.tensor([1.0, 2.0, -3.0]), parts := {"a": of_a})
    assert queue.rows["1-0_0_0"]["advantages"].tolist() == [1.0, 1.0, 0.0]
    assert queue.rows["1-0_0_1"]["advantages"].tolist() == [2.0]
    assert queue.rows["1-0_1_0"]["response_mask"].tolist() == [1, 0]
    assert queue.rows["1-0_1_0"]["returns"].tolist() == [-3.0, -3.0]
    assert queue.rows["pad_0_0"]["advantages"].tolist() == [0.0]
    assert parts["a"].advantages.tolist() == [-3.0, 0.0, 1.0]
    assert parts["a"].batch.tags == [{"n": 2}, {"is_padding": True}, {"n": 0}]
    assert parts["a"].batch.extra_info == {"temperature": 0.5}


def written(tags, masks, scores):
    """Make rows with these tags, whose masks and scores are in TransferQueue."""
    rows = batch(KEYS, [tag.as_dict() for tag in tags])
    data_plane.write(rows, {"response_mask": nested(masks), "rm_scores": nested(scores)})
    return rows


def credit(estimator, **reward):
    mas = MasConfig(reward=RewardSpec(**reward))
    return Credit(Run(OmegaConf.create({"algorithm": {"adv_estimator": estimator}}), mas), ["solver", "verifier"])


def test_the_driver_reads_two_fields_and_the_advantages_see_every_rows_place(queue, tags):
    own = [tags("solver", observation=7), tags("verifier", turn=2, branch=1, observation=8), tags("solver")]
    rows = written(own, [[1, 1, 0], [1], [1, 1]], [[0.0, 1.0, 0.0], [1.0], [0.0, 0.0]])
    columns = read_columns(rows)
    assert [str(key) for key in columns.keys] == KEYS and columns.tags == own
    assert columns.scores.tolist() == [1.0, 1.0, 0.0] and columns.tokens.tolist() == [2, 1, 2]
    advantages, _ = credit("agent_rloo").of_step(columns, [0, 1, 2])
    assert advantages.tolist() == [1.0, 0.0, -1.0], "the solver's two sessions are compared, the verifier's one is not"
    assert step.as_nested(advantages, columns.masks)["returns"].unbind()[2].tolist() == [-1.0, -1.0]


def test_an_estimator_sees_the_parts_of_a_score_and_their_weights(queue, tags):
    # Team reward and local reward, each divided by its deviation, are equal and opposite, so the larger weight decides.
    earned = [{"team_reward": 0.3, "local_reward": 9.0, "penalty": 0.0}, {"team_reward": 0.7, "local_reward": 0.0}]
    own = [tags("solver", **earned[0]), tags("verifier"), tags("solver", **earned[1])]
    rows = written(own, [[1]] * 3, [[2 * 0.3 + 4.5], [0.0], [2 * 0.7]])
    advantages, _ = credit("agent_gdpo", team=2.0, local=0.5).of_step(read_columns(rows), [0, 1, 2])
    assert advantages.tolist() == pytest.approx([-(0.5**0.5), 0.0, 0.5**0.5], abs=1e-5)


def test_a_step_adds_its_scores_by_role_and_source_and_logs_them_per_role(tags, make):
    keys = [RowKey("1-0", session, 0) for session in (0, 1)]
    own = [tags("debater_0", role="debater", source="math"), tags("debater_1", role="debater", source="math")]
    columns = Columns(keys, own, torch.tensor([1.0, 0.0]), [torch.ones(1, dtype=torch.int64)] * 2)
    credit = Credit(Run.of(make(algorithm__adv_estimator="agent_rae")), ["debater_0", "debater_1"])
    per_row, found = credit.of_step(columns, [0, 1])
    assert per_row.tolist() == [1.0, -1.0], "equal debaters have one baseline"
    assert credit.running.scores.scores == {Owner("math", "debater"): Moments(2.0, 0.5, 0.25)}
    assert agent_metrics(columns, per_row, found)["agent/debater/group/running_mean"] == 0.5


def test_rows_that_a_policy_has_read_are_not_read_again(queue, tags):
    own = [tags("solver"), tags("verifier"), tags("solver")]
    rows = written(own, *([[one] * length for length in (3, 1, 2)] for one in (1, 1.0)))
    solver = PolicyRows(batch(["1-0_1_0", "pad_0_0", "1-0_0_0"]))
    # The mask of a row in which the correction has rejected tokens.
    masks, scores = nested([[1, 0], [0], [1, 1, 1]]), nested([[0.0, 5.0], [0.0], [0.0, 0.0, 4.0]])
    solver.data = {"response_mask": masks, "rm_scores": scores}
    queue.rows = {KEYS[1]: queue.rows[KEYS[1]]}
    columns = read_columns(rows, [solver])
    assert columns.scores.tolist() == [4.0, 1.0, 5.0] and columns.tokens.tolist() == [3, 1, 1]
    assert columns.tags == own


def nested(values):
    return torch.nested.as_nested_tensor([torch.as_tensor(row) for row in values], layout=torch.jagged)


def rows_with(kinds):
    """`kinds`: + a row with an advantage, 0 a row without, p padding."""
    tags = [{"is_padding": kind == "p"} for kind in kinds]
    part = PolicyRows(batch([f"1-{i}_0_0" for i in range(len(kinds))], tags))
    part.advantages = torch.tensor([1.0 if kind == "+" else 0.0 for kind in kinds])
    return part


@given(st.data())
def test_rows_without_advantage_are_left_out_as_far_as_the_optimiser_steps_allow(data):
    updates, ranks = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    multiple = updates * ranks
    real = data.draw(st.lists(st.sampled_from("+0"), min_size=updates, max_size=30))
    kinds = real + ["p"] * (-len(real) % multiple)
    kept = step.without_zero_advantage(rows_with(kinds), updates, multiple)
    assert len(kept) % multiple == 0 and len(kept) > 0
    assert {i for i, kind in enumerate(kinds) if kind == "+"} <= set(kept)
    assert sum(kinds[i] != "p" for i in kept) >= updates
    assert len(kept) - kinds.count("+") < multiple + updates
    assert step.without_zero_advantage(rows_with("p0"), 1, 1) == [1], "a step of padding alone has no loss"


def test_the_score_of_a_row_is_the_reward_of_its_last_trained_token():
    part = PolicyRows(batch(KEYS[:2]))
    masks, scores = nested([[1, 1, 0], [1, 0]]), nested([[0.0, 0.0, 3.0], [0.0, 1.0]])
    part.data = TensorDict({"response_mask": masks, "rm_scores": scores}, 2)
    step.gae(part, nested([[0.0, 0.0, 9.0], [0.5, 9.0]]), gamma=1.0, lam=1.0)
    returns = [row[mask.bool()].tolist() for row, mask in zip(part.of_tokens["returns"], masks, strict=True)]
    assert returns == [[3, 3], [1]]


def test_the_advantages_of_critics_are_written_to_their_rows_and_the_others_get_none(queue, make):
    part = PolicyRows(batch([KEYS[2]], [{}]), advantages=torch.tensor([0.5]))
    part.of_tokens = {name: nested([torch.tensor([1.0, 0.0])]) for name in ("advantages", "returns")}
    columns = Columns([RowKey.parse(key) for key in KEYS], [], torch.zeros(3), [torch.ones(2, dtype=torch.long)] * 3)
    credit = Credit(Run.of(make(algorithm__adv_estimator="gae")), ["solver"])
    per_row, _ = credit.of_step(columns, [0, 1, 2], [part])
    assert per_row.tolist() == [0.0, 0.0, 0.5]
    write_advantages(batch(KEYS), columns, per_row, {"main": part})
    assert [queue.rows[key]["advantages"].tolist() for key in KEYS] == [[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]
