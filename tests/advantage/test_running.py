"""Running scores: agent_rae, and groups that are joined with what their role had before."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, fields

import pytest
import torch

from benchmarks.rare_agent import SETTINGS, signal
from verl_mas.advantage import ESTIMATORS, AdvantageInput, AdvantageOptions, RunningScores, compute_advantages
from verl_mas.advantage.record import NOTHING, Moments, Owner
from verl_mas.advantage.verl_hook import stock
from verl_mas.errors import DataError

CASES, STEPS = 60, 4


@dataclass(frozen=True)
class Row:
    source: str
    task: str
    session: int
    agent: str
    role: str
    turn: int
    tokens: int
    score: float
    padding: bool = False

    @property
    def owner(self):
        return Owner(self.source, self.role)

    @property
    def unit(self):
        return (self.task, self.session)


def record(rows):
    columns = {part.name: [getattr(row, part.name) for row in rows] for part in fields(Row)}
    tensors = {name: torch.tensor(columns.pop(name)) for name in ("tokens", "padding")}
    return AdvantageInput(torch.tensor(columns.pop("score")), **columns, **tensors)


def random_step(rng):
    """Roles that act rarely, equal debaters, several sources, and padding copies."""
    score = rng.choice(
        [lambda: float(rng.random() < 0.4), lambda: rng.randint(-8, 8) / 8, lambda: 100 + rng.random(), lambda: 1.0]
    )
    rows = []
    for task, session in itertools.product("abc"[: rng.randint(1, 3)], range(rng.randint(1, 4))):
        for agent, share in (("debater_0", 0.7), ("debater_1", 0.7), ("judge", 0.2)):
            for turn in range(rng.randint(1, 2) if rng.random() < share else 0):
                source = "math" if task == "a" else "code"
                # The trainer's scores are float32.
                value = float(torch.tensor(score()))
                role, tokens = agent.partition("_")[0], rng.randint(1, 9)
                rows.append(Row(source, task, session, agent, role, turn, tokens, value))
    rows += [Row(**{**vars(row), "padding": True, "score": 9.0}) for row in rows if rng.random() < 0.1]
    rng.shuffle(rows)
    return rows


def weights(rows, weighting):
    """How often each row of a group counts."""
    acts = Counter(row.unit for row in rows)
    return {row: {"per_act": 1, "per_session": 1 / acts[row.unit], "per_token": row.tokens}[weighting] for row in rows}


def moments(pairs):
    """Mass, mean and squared deviation of (weight, value)."""
    mass = math.fsum(w for w, _ in pairs)
    mean = math.fsum(w * x for w, x in pairs) / mass if mass else 0.0
    return mass, mean, math.fsum(w * (x - mean) ** 2 for w, x in pairs)


class History:
    """Every score that was ever seen, with its weight: what the running moments summarise."""

    def __init__(self):
        self.seen = defaultdict(list)

    def before(self, owner, decay):
        return [(w * decay, x) for w, x in self.seen[owner]]

    def add(self, rows, weighting, decay):
        by_owner = defaultdict(list)
        for row in rows:
            by_owner[row.owner].append(row)
        for owner, mine in by_owner.items():
            self.seen[owner] = self.before(owner, decay) + [(w, r.score) for r, w in weights(mine, weighting).items()]


def rae(rows, history, options):
    advantages = {}
    for row in rows:
        weight = weights([other for other in rows if other.owner == row.owner], options["weighting"])
        others = [(w, other.score) for other, w in weight.items() if other.unit != row.unit]
        mass, mean, _ = moments(history.before(row.owner, options["decay"]) + others)
        advantages[row] = row.score - mean if mass else 0.0
    return advantages


def shrunk(rows, history, options):
    advantages = {}
    for key in {(row.task, row.agent) for row in rows}:
        mine = [row for row in rows if (row.task, row.agent) == key]
        weight = weights(mine, options["weighting"])
        mass, mean, square = moments(history.before(mine[0].owner, options["decay"]))
        known, deviation = min(mass, options["shrinkage"]), math.sqrt(square / mass) if mass else 0.0
        # Two scores with the running mean and deviation stand for what is known.
        pseudo = [(known / 2, mean + deviation), (known / 2, mean - deviation)]
        whole, centre, spread = moments([*pseudo, *((w, row.score) for row, w in weight.items())])
        freedom = whole - 1 if options["deviation"] == "sample" else whole
        by_units = options["baseline"] == "leave_one_out" or options["weighting"] == "per_session"
        size = len({row.unit for row in mine}) if by_units else len(mine)
        std = math.sqrt(spread / freedom) if freedom > 1e-6 else 0.0
        for row in mine:
            kept = [(w, other.score) for other, w in weight.items() if other.unit != row.unit]
            if options["baseline"] == "leave_one_out":
                _, centre, _ = moments([*pseudo, *kept])
            nothing = (size == 1 and not known) or std <= 1e-6 * abs(centre)
            scale = std + 1e-6 if options["scale"] == "std" else 1.0
            advantages[row] = 0.0 if nothing else (row.score - centre) / scale
    return advantages


def check(name, reference, seed, **options):
    """A run of several steps."""
    rng, history, running = random.Random(seed), History(), RunningScores()
    chosen = vars(AdvantageOptions(**options).resolved(name, ESTIMATORS[name].defaults))
    for _ in range(STEPS):
        rows = random_step(rng)
        if not rows:
            continue
        real = [row for row in rows if not row.padding]
        expected = reference(real, history, chosen)
        found = compute_advantages(name, record(rows), AdvantageOptions(**options), running).advantages
        wanted = [0.0 if row.padding else expected[row] for row in rows]
        assert found.tolist() == pytest.approx(wanted, abs=2e-4, rel=1e-4)
        history.add(real, chosen["weighting"], chosen["decay"])
        for owner, seen in history.seen.items():
            mass, mean, square = moments(seen)
            kept = running.scores[owner]
            assert (kept.mass, kept.mean) == pytest.approx((mass, mean))
            assert kept.variance == pytest.approx(square / mass, abs=1e-9)


@pytest.mark.parametrize("seed", range(CASES))
def test_agent_rae_is_the_score_minus_all_earlier_scores_and_those_of_other_sessions(seed):
    rng = random.Random(seed)
    weighting = rng.choice(["per_session", "per_act", "per_token"])
    check("agent_rae", rae, seed, weighting=weighting, decay=rng.choice([0.0, 0.5, 0.9, 1.0]))


@pytest.mark.parametrize("seed", range(CASES))
def test_shrinkage_adds_scores_of_the_running_mean_and_deviation_to_every_group(seed):
    rng = random.Random(seed)
    check(
        rng.choice(["agent_grpo", "agent_rloo"]),
        shrunk,
        seed,
        shrinkage=rng.choice([0.5, 2.0, 8.0]),
        decay=rng.choice([0.0, 0.5, 0.9, 1.0]),
        weighting=rng.choice(["per_session", "per_act", "per_token"]),
        deviation=rng.choice(["sample", "population"]),
        baseline=rng.choice(["mean", "leave_one_out"]),
        scale=rng.choice(["std", "none"]),
    )


def group(scores, role="solver", task="t"):
    """One act in each session of a task."""
    n = len(scores)
    return AdvantageInput(torch.tensor(scores), [task] * n, range(n), [role] * n)


def known(mass=10.0, mean=0.5, variance=0.25, role="solver"):
    return RunningScores({Owner("", role): Moments(mass, mean, variance)})


@pytest.mark.parametrize("name", ["agent_grpo", "agent_rloo"])
def test_a_first_step_has_the_bits_of_no_shrinkage_and_no_shrinkage_reads_nothing(name):
    batch, running = group([0.1, 0.7, 0.3, 0.9]), known()
    plain = compute_advantages(name, batch).advantages
    assert torch.equal(
        plain, compute_advantages(name, batch, AdvantageOptions(shrinkage=2), RunningScores()).advantages
    )
    assert torch.equal(plain, compute_advantages(name, batch, None, running).advantages)
    assert running.scores == known().scores


def test_a_lone_call_is_compared_with_the_running_mean_as_agent_rae_does():
    lone = group([1.0])
    rae = compute_advantages("agent_rae", lone, None, known()).advantages
    assert rae.tolist() == pytest.approx([0.5])
    assert torch.equal(rae, compute_advantages("agent_rloo", lone, AdvantageOptions(shrinkage=3), known()).advantages)
    assert compute_advantages("agent_grpo", lone, AdvantageOptions(shrinkage=3), known()).advantages[0] > 0.5


def test_the_advantage_of_a_lone_call_is_bounded_although_all_scores_before_were_equal():
    # 3 scores of 0 and one of 1: the same as the one success of a group of four.
    lone = compute_advantages("agent_grpo", group([1.0]), AdvantageOptions(shrinkage=3), known(mean=0.0, variance=0.0))
    four = compute_advantages("agent_grpo", group([1.0, 0.0, 0.0, 0.0]))
    assert lone.advantages[0] == pytest.approx(four.advantages[0])


def test_groups_by_role_change_nothing_for_agent_rae_which_compares_roles_in_any_case():
    rng, by_agent, by_role = random.Random(6), RunningScores(), RunningScores()
    for _ in range(STEPS):
        rows = random_step(rng)
        one = compute_advantages("agent_rae", record(rows), None, by_agent)
        other = compute_advantages("agent_rae", record(rows), AdvantageOptions(by="role"), by_role)
        assert torch.equal(one.advantages, other.advantages) and bool(one.advantages.any())
    assert by_agent.scores == by_role.scores


def test_the_metrics_are_named_by_role_over_all_sources():
    batch = AdvantageInput(
        torch.tensor([1.0, 0.0, 0.0]), ["s", "t", "t"], [0, 0, 1], ["a_0", "a_1", "a_0"], ["a"] * 3, ["x", "y", "y"]
    )
    metrics = compute_advantages("agent_rae", batch, None, RunningScores()).metrics
    found = {name: metrics[f"advantage/a/running_{name}"] for name in ("mean", "std", "count")}
    assert found == pytest.approx({"mean": 1 / 3, "std": math.sqrt(2) / 3, "count": 3})


def test_joining_nothing_changes_no_bit_and_large_scores_do_not_cancel():
    found = Moments(3.0, 1e6 + 1 / 3, 2 / 9)
    assert found.joined(NOTHING) == NOTHING.joined(found) == found
    assert found.joined(Moments(3.0, 1e6 + 1 / 3, 2 / 9)).variance == 2 / 9


@pytest.mark.parametrize(("name", "options"), [("agent_rae", {}), ("agent_grpo", {"shrinkage": 2.0})])
def test_without_running_scores_there_is_an_error_and_no_silent_zero(name, options):
    with pytest.raises(DataError, match=r"pass RunningScores\(\) to compute_advantages"):
        compute_advantages(name, group([1.0, 0.0]), AdvantageOptions(**options))


def test_verls_own_trainer_is_refused_because_it_keeps_no_scores():
    with pytest.raises(DataError, match="verl's own trainers do not keep"):
        stock("agent_rae")(torch.ones(2, 1), torch.ones(2, 1), None, group([1.0, 0.0]).codes("task").ids.numpy())


def signals(setting):
    """Of shrinkage, agent_grpo and team_grpo."""
    arms = (("agent_grpo", 2.0), ("agent_grpo", None), ("team_grpo", None))
    return [signal(setting, name, AdvantageOptions(shrinkage=count), steps=80)[0] for name, count in arms]


@pytest.mark.parametrize("setting", SETTINGS[:2], ids=lambda setting: setting.name)
def test_with_one_or_two_calls_per_task_shrinkage_is_level_with_the_better_estimator(setting):
    shrunk, agent, team = signals(setting)
    assert shrunk > agent + 0.1 and shrunk > team - 0.02


def test_shrinkage_is_far_above_both_for_a_rare_agent_whose_rewards_have_an_offset():
    shrunk, agent, team = signals(SETTINGS[3])
    assert shrunk > 1.3 * agent and shrunk > 1.3 * team
