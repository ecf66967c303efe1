"""Selection of tasks: whole tasks are kept or replaced until a batch is full."""

from statistics import fmean
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta

from verl_mas.config.run import Run
from verl_mas.config.schema import FilterSpec, MasConfig
from verl_mas.errors import DataError
from verl_mas.results.sessions.reader import read_sessions
from verl_mas.trainer.filters import EMPTY_BATCHES, TaskFilter
from verl_mas.trainer.step import Columns, Credit
from verl_mas.verl_ import data_plane
from verl_mas.verl_.row import RowKey

UNIFORM = [0.0, 0.0]
MIXED = [0.0, 1.0]


class Rollout:
    """A rollout of tasks in a fixed order. A task has the team rewards of its sessions, and two rows per session."""

    def __init__(self, tags, *tasks):
        self._tags, self._tasks = tags, list(tasks)
        self.asked, self.refilled, self.rewards = [], [], {}

    def sample(self, count):
        self.asked.append(count)
        keys, rows = [], []
        for _ in range(count):
            uid, rewards = f"1-{len(self.rewards)}", self._tasks.pop(0)
            self.rewards[uid] = rewards
            for session, reward in enumerate(rewards):
                for act in (0, 1):
                    keys.append(str(RowKey(uid, session, act)))
                    rows.append(self._tags("solver", turn=act, session=session, team_reward=reward).as_dict())
        # Rows arrive in another order.
        return KVBatchMeta(partition_id="train", keys=keys[::-1], tags=rows[::-1]), {"training/evicted": 1}

    def teaching(self, rows):
        return {uid for uid in {RowKey.parse(key).uid for key in rows.keys} if len(set(self.rewards[uid])) > 1}

    def step(self, spec, size):
        """The rows of a step, the filter, and the tasks that are trained on."""
        chosen = TaskFilter(spec, self.teaching)
        rows, metrics = chosen.sample(size, self.sample, self.refilled.append)
        trained = [RowKey.parse(rows.keys[i]).uid for i in chosen.trained_indices(rows)]
        return rows, metrics, list(dict.fromkeys(trained))


@pytest.fixture
def rollout(tags):
    return lambda *tasks: Rollout(tags, *tasks)


# Each case: the reward of the second session of each task (that of the first is 0), the filter, the batch size, the
# number of tasks that each round samples, and the tasks that are trained on.
ROUNDS = {
    "without a filter": ("01", {}, 2, [2], [0, 1]),
    "uniform tasks are left out": ("010", {"drop": "uniform"}, 3, [3], [1]),
    "tasks are replaced": ("010011", {"drop": "uniform", "refill": True}, 3, [3, 2, 1], [1, 4, 5]),
    "the last round": ("000010", {"drop": "uniform", "refill": True, "max_rounds": 3}, 2, [2, 2, 2], [4]),
    "the highest spread is kept": ("1402", {"keep_share": 0.5}, 4, [4], [1, 3]),
    "a share of a larger sample": ("01234567", {"keep_share": 0.25, "refill": True}, 2, [2, 6], [6, 7]),
    "the share is of what was sampled": ("001", {"drop": "uniform", "keep_share": 0.9}, 3, [3], [2]),
    "at least one task": ("01", {"keep_share": 0.01}, 2, [2], [1]),
    "0.29 x 100 is not 28.99": ("1" * 100, {"keep_share": 0.29}, 100, [100], range(29)),
}


@pytest.mark.parametrize(("rewards", "spec", "size", "sampled", "kept"), ROUNDS.values(), ids=ROUNDS)
def test_a_step_samples_until_its_batch_is_full_and_trains_on_what_is_kept(rollout, rewards, spec, size, sampled, kept):
    made = rollout(*([0.0, float(reward)] for reward in rewards))
    rows, metrics, trained = made.step(FilterSpec(**spec), size)
    assert made.asked == sampled and made.refilled == sampled[1:], "as many as are missing"
    assert sorted(trained) == sorted(f"1-{number}" for number in kept)
    assert len(rows) == 4 * len(rewards), "the others are still logged and cleared"
    assert metrics.pop("training/evicted") == len(sampled), "of all rounds"
    expected = {
        "kept": len(kept),
        "dropped": len(rewards) - len(kept),
        "rounds": len(sampled),
        "spread": pytest.approx(fmean(int(reward) / 2 for reward in rewards)),
        "spread_kept": fmean(int(rewards[number]) / 2 for number in kept),
    }
    assert metrics == ({f"filter/{name}": value for name, value in expected.items()} if spec else {})


def test_ten_batches_without_a_task_to_train_on_end_the_run(rollout):
    made = rollout(*[UNIFORM] * 19, [1.0, 1.0])
    chosen = TaskFilter(FilterSpec(drop="uniform"), made.teaching)
    for _ in range(EMPTY_BATCHES - 1):
        chosen.sample(2, made.sample, made.refilled.append)
    with pytest.raises(DataError, match=r"every task of 10 batches in a row: 20 tasks, .* reward of 0 to 1") as raised:
        chosen.sample(2, made.sample, made.refilled.append)
    assert "rollout.n" in raised.value.fix and "advantage" in raised.value.rule


def test_a_batch_with_a_task_to_train_on_starts_the_count_again_and_rounds_of_a_refill_count(rollout):
    made = rollout(*[UNIFORM] * 9, MIXED, *[UNIFORM] * 9)
    chosen = TaskFilter(FilterSpec(drop="uniform"), made.teaching)
    for _ in range(19):
        chosen.sample(1, made.sample, made.refilled.append)
    made = rollout(*[UNIFORM] * 10)
    with pytest.raises(DataError, match=r"10 batches in a row: 10 tasks, of a mean team reward of 0\n"):
        made.step(FilterSpec(drop="uniform", refill=True, max_rounds=20), 1)


def test_the_spread_is_over_sessions_and_not_over_their_rows(tags):
    keys = ["1-0_0_0", "1-0_1_0", "1-0_1_1", "1-0_1_2"]
    rows = [tags("solver", team_reward=reward).as_dict() for reward in (0.0, 3.0, 1.0, 2.0)]
    sampled = KVBatchMeta(partition_id="train", keys=keys, tags=rows)
    _, metrics = TaskFilter(FilterSpec(keep_share=1.0), set).sample(1, lambda count: (sampled, {}), pytest.fail)
    assert metrics["filter/spread"] == 1.0


@pytest.mark.parametrize(("by", "kept"), [("team", {"b", "c"}), ("acc", {"c"}), ("score", set("abcd"))])
def test_a_task_is_uniform_by_what_is_asked(tags, monkeypatch, by, kept):
    # Team reward and accuracy of two sessions per task. Sums of 0.1 differ by rounding.
    tasks = {"a": ((0.3, 1), (0.1 + 0.2, 1)), "b": ((0, 0), (0.5, 0)), "c": ((0, 0), (1, 1)), "d": ((0, 0), (0, 0))}
    rows = [(RowKey(uid, session, 0), *tasks[uid][session]) for uid in tasks for session in (0, 1)]
    keys, own = [str(key) for key, _, _ in rows], [tags(team_reward=float(reward)).as_dict() for _, reward, _ in rows]
    sampled = KVBatchMeta(partition_id="train", keys=keys, tags=own)
    accuracies = {str(key): {"reward_extra_info": {"acc": acc}} for key, _, acc in rows}
    monkeypatch.setattr(
        data_plane, "read", lambda rows, _: {"extra_fields": listed([accuracies[k] for k in rows.keys])}
    )
    chosen = TaskFilter(FilterSpec(drop="uniform", by=by), lambda rows: set("abcd"))
    chosen.sample(4, lambda count: (sampled, {}), lambda count: None)
    assert {RowKey.parse(keys[i]).uid for i in chosen.trained_indices(sampled)} == kept
    accuracies["b_1_0"] = {"reward_extra_info": {}}
    if by == "acc":
        with pytest.raises(DataError, match=r"b_1_0 is of a session without acc[^$]*mas.filter.by=team"):
            chosen.sample(4, lambda count: (sampled, {}), lambda count: None)


def listed(values):
    return SimpleNamespace(tolist=lambda: values)


@pytest.mark.parametrize(
    ("agents", "scores", "teaches"),
    [
        ("ssss", [1, 0, 1, 0], {"x"}),
        # Every agent's group is uniform, although the rows of the task differ.
        ("svsv", [1, 0, 1, 0], set()),
        ("svsv", [1, 0, 1, 1], {"x"}),
        # Only the frozen agent's rows differ.
        ("sfsf", [1, 0, 1, 1], set()),
    ],
)
def test_a_task_is_uniform_by_the_groups_of_the_estimator(monkeypatch, tags, agents, scores, teaches):
    names = {"s": "solver", "v": "verifier", "f": "frozen"}
    own = [tags(names[letter], turn=i % 2, trainable=letter != "f") for i, letter in enumerate(agents)]
    columns = columns_of([RowKey("x", i // 2, i % 2) for i in range(4)], own, scores)
    monkeypatch.setattr("verl_mas.trainer.step.read_columns", lambda rows: columns)
    found = credit("agent_grpo", list(names.values()))
    assert found.tasks_with_advantage(columns.keys, {columns.tags[0].policy}) == teaches
    assert found.tasks_with_advantage(columns.keys, {"another policy"}) == set()


def credit(estimator, agents):
    return Credit(Run(OmegaConf.create({"algorithm": {"adv_estimator": estimator}}), MasConfig()), agents)


def columns_of(keys, tags, scores):
    scores = torch.tensor(scores, dtype=torch.float32)
    return Columns(keys, tags, scores, masks=[torch.ones(1, dtype=torch.int64)] * len(keys))


def test_rows_that_are_left_out_change_no_advantage_of_the_others(tags):
    keys = [RowKey(uid, session, 0) for uid in "xy" for session in (0, 1)]
    columns = columns_of(keys, [tags("solver")] * 4, [0, 1, 5, 9])
    found = {}
    for name, rows in (("all", range(4)), ("some", [0, 1]), ("none", [])):
        found[name], metrics = credit("agent_reinforce_pp", ["solver"]).of_rows(columns, rows)
        assert bool(metrics) == (name != "none")
    assert found["none"].tolist() == [0.0] * 4 and found["some"][2:].tolist() == [0.0, 0.0]
    assert found["some"][0] == -found["some"][1] < 0 and found["all"][1] < 0


@pytest.mark.e2e
@pytest.mark.nightly  # the steps above, in a run
def test_a_run_replaces_tasks_and_weighs_sessions(train_team, tmp_path):
    done = train_team(
        tmp_path / "run",
        "Trio",
        "mas.agents={third:{trainable:false}} mas.filter.drop=uniform mas.filter.refill=true mas.filter.max_rounds=8",
        "mas.loss.weighting=session mas.updates_per_step=2 actor_rollout_ref.actor.use_kl_loss=true",
        "actor_rollout_ref.actor.entropy_coeff=0.001",
        # Two letters score 0 so often that some tasks have no advantage.
        "data.max_response_length=2 trainer.total_training_steps=2",
    )
    records = list(read_sessions(done.folder / "checkpoints" / "trajectories"))
    for step in (1, 2):
        metrics = done.steps[step]
        assert metrics["filter/kept"] == 4 and metrics["policy/main/updated"] == 1
        mine = [record for record in records if record["step"] == step]
        assert len(mine) == metrics["session/count"] == 4 * (4 + metrics["filter/dropped"])
        acts = [(record["uid"], act) for record in mine for act in record["acts"] if act["advantage"] is not None]
        assert metrics["policy/main/rows/real"] == sum(act["trainable"] for _, act in acts)
        assert len({uid for uid, act in acts}) == len({uid for uid, act in acts if act["advantage"]}) == 4
        assert metrics["actor/grad_norm"] > 0 and metrics["actor/kl_loss"] >= 0
        assert "policy/main/actor/grad_norm" not in metrics, "the agents of one policy share its update"
    assert sum(done.steps[step]["filter/dropped"] for step in (1, 2)) > 0
