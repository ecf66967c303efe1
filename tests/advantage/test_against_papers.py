"""Every estimator against plain Python written from the papers' formulas, on random teams."""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter, defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_mas.advantage import AdvantageInput, AdvantageOptions, compute_advantages

COMMON = {
    "by": "agent",
    "deviation": "sample",
    "eps": 1e-6,
    "group_of_one": "zero",
    "baseline": "mean",
    "scale": "std",
    "weighting": "per_act",
}
PUBLISHED = {
    "agent_grpo": {**COMMON, "weighting": "per_act"},
    "at_grpo": COMMON,
    "team_grpo": {**COMMON, "weighting": "per_session"},
    "mhgpo": COMMON,
    "hierarchical_grpo": {**COMMON, "weighting": "per_session", "main": "solver"},
    "agent_rloo": {**COMMON, "baseline": "leave_one_out", "scale": "none"},
    "agent_gigpo": {**COMMON, "step_weight": 1.0, "gamma": 0.95},
    "agent_reinforce_pp": {**COMMON, "weighting": "per_token"},
    "agent_gdpo": {**COMMON, "penalty_weight": 1.0},
}
PARTS = ("team_reward", "local_reward", "penalty")


# Rows are keys, each of which is one: comparing all fields would take most of the time.
@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    task: str
    session: int
    agent: str
    turn: int
    branch: int
    team_reward: float
    local_reward: float
    penalty: float
    observation: str
    tokens: int
    instance: int = 0
    committed: bool = True
    padding: bool = False

    @property
    def score(self):
        return self.team_reward + self.local_reward - self.penalty

    @property
    def prompt(self):
        return (self.task, self.session, self.agent, self.instance, self.turn)

    @property
    def role(self):
        return "maker" if self.agent == "solver" else "checker"


def called(chosen):
    """What stands for an agent, by mas.advantage.by."""
    return lambda r: getattr(r, chosen["by"])


def session_of(name):
    """A session, or a candidate of it that is an episode of its own."""
    return lambda r: (r.task, r.session, r.branch if name in ("at_grpo", "mhgpo") else None)


def invocation(name, chosen):
    """An instance of an agent in a session; all acts of M-GRPO's main agent are one."""
    session, who = session_of(name), called(chosen)
    one = chosen.get("main")
    return lambda r: (session(r), who(r)) if who(r) == one else (session(r), r.agent, r.instance)


def unit(name, chosen):
    """What a group is counted by: rows, or the invocations or sessions that options make count."""
    if chosen["weighting"] == "per_session" or chosen["baseline"] != "mean":
        return session_of(name)
    return invocation(name, chosen) if chosen["weighting"] == "per_invocation" else lambda r: r


def weights(name, members, chosen):
    weighting, session = chosen["weighting"], session_of(name)
    if weighting == "per_token":
        return {r: r.tokens for r in members}
    if weighting == "per_act":
        return dict.fromkeys(members, 1.0)
    part = session if weighting == "per_session" and "main" not in chosen else invocation(name, chosen)
    acts = Counter(map(part, members))
    if weighting == "per_invocation":
        return {r: 1 / acts[part(r)] for r in members}
    parts = Counter(session(r) for r in {part(r): r for r in members}.values())
    return {r: 1 / acts[part(r)] / parts[session(r)] for r in members}


def mean_of(weight, scores):
    return math.fsum(w * scores[r] for r, w in weight.items()) / math.fsum(weight.values())


def normalised(weight, unit, chosen, scores, pool):
    """One group's advantages, from its rows' weights and those of the rows whose deviation batch_std takes."""
    if len({unit(r) for r in weight}) == 1:
        return {r: scores[r] if chosen["group_of_one"] == "raw" else 0.0 for r in weight}
    if len({scores[r] for r in weight}) == 1:
        return dict.fromkeys(weight, 0.0)
    scale = 1.0
    if chosen["scale"] != "none":
        compared = weight if chosen["scale"] == "std" else pool
        scale = deviation(compared, scores, chosen["deviation"]) + chosen["eps"]
    advantages = {}
    for r in weight:
        others = {o: w for o, w in weight.items() if unit(o) != unit(r)}
        if chosen["baseline"] == "best_other":
            advantages[r] = max(0.0, scores[r] - max(scores[o] for o in others)) / scale
            continue
        baseline = mean_of(others if chosen["baseline"] == "leave_one_out" else weight, scores)
        advantages[r] = (scores[r] - baseline) / scale
    return advantages


def deviation(weight, scores, kind):
    mass = math.fsum(weight.values())
    mean = math.fsum(w * scores[r] for r, w in weight.items()) / mass
    square = math.fsum(w * (scores[r] - mean) ** 2 for r, w in weight.items())
    return math.sqrt(square / (mass - 1 if kind == "sample" else mass))


def later(r, rows, gamma):
    """The discounted own rewards of the acts that follow in the session, by the same instance of the agent."""
    if gamma is None:
        return 0.0
    acts = [o for o in rows if o.prompt[:-1] == r.prompt[:-1] and o.turn > r.turn and o.committed]
    return math.fsum(gamma ** (o.turn - r.turn) * o.local_reward for o in acts)


def step_return(r, rows, gamma):
    """GiGPO's R_t, where the last step is paid by the team, too."""
    last = max(o.turn for o in rows if o.prompt[:-1] == r.prompt[:-1])
    return r.local_reward + later(r, rows, gamma) + gamma ** (last - r.turn) * r.team_reward - r.penalty


def compared(name, rows, chosen):
    """The scores that are compared."""
    scores = {r: r.score for r in rows}
    if chosen.get("session_mean"):
        sessions = defaultdict(list)
        for r in rows:
            sessions[r.task, r.session].append(r.score)
        return {r: math.fsum(of := sessions[r.task, r.session]) / len(of) for r in rows}
    gamma = chosen.get("gamma") if name in ("agent_grpo", "agent_rloo") else None
    return {r: score + later(r, rows, gamma) for r, score in scores.items()}


def gdpo(rows, key, chosen):
    """2601.05242: every reward is normalised in its group, and their sum over the batch, here over the agent's acts."""
    own = {r: r.local_reward + later(r, rows, chosen.get("gamma")) for r in rows}
    parts = [
        (1.0, {r: r.team_reward for r in rows}),
        (1.0, own),
        (-chosen["penalty_weight"], {r: r.penalty for r in rows}),
    ]
    each = [(weight, by_group("agent_gdpo", rows, key, scores, chosen)) for weight, scores in parts if weight]
    total = {r: math.fsum(weight * part[r] for weight, part in each) for r in rows}
    acts = defaultdict(list)
    for r in rows:
        acts[called(chosen)(r)].append(r)
    advantages = {}
    for mine in acts.values():
        weight = weights("agent_gdpo", mine, chosen)
        alone = chosen["deviation"] == "sample" and math.fsum(weight.values()) < 1.001
        over = 0.0 if alone else deviation(weight, total, chosen["deviation"])
        advantages |= {r: total[r] / (over + chosen["eps"]) if over > 0 else total[r] for r in mine}
    return advantages


def reference(name, rows, chosen):
    real = [r for r in rows if not r.padding]
    scores = compared(name, real, chosen)
    who = called(chosen)
    branching = {who(r) for r in real if r.branch > 0}
    key = {
        "team_grpo": lambda r: r.task,
        "agent_reinforce_pp": who,
        "at_grpo": lambda r: r.prompt if who(r) in branching else (r.task, who(r), r.turn),
    }.get(name, lambda r: (r.task, who(r)))
    advantages = gdpo(real, key, chosen) if name == "agent_gdpo" else by_group(name, real, key, scores, chosen)
    if name == "agent_gigpo":
        step = {r: step_return(r, real, chosen["gamma"]) for r in real}
        extra = by_group(name, real, lambda r: (r.task, who(r), r.observation), step, chosen)
        advantages = {r: advantages[r] + chosen["step_weight"] * extra[r] for r in real}
    return [0.0 if r.padding else advantages[r] for r in rows]


def by_group(name, rows, key, scores, chosen):
    groups = defaultdict(list)
    for r in rows:
        groups[key(r)].append(r)
    counted_by, who = unit(name, chosen), called(chosen)
    weighted = [weights(name, members, chosen) for members in groups.values()]
    pools = defaultdict(dict)
    for weight in weighted:
        for r, w in weight.items():
            pools["team" if name == "team_grpo" else who(r)][r] = w
    advantages = {}
    for weight in weighted:
        pool = pools["team" if name == "team_grpo" else who(next(iter(weight)))]
        advantages |= normalised(weight, counted_by, chosen, scores, pool)
    return advantages


@st.composite
def teams(draw, branches=3):
    """Ragged: agents have 0..3 instances that act 1..3 times, some acts have candidates, padding is anywhere."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    team = rng.choice([lambda: float(rng.random() < 0.4), lambda: rng.randint(-8, 8) / 8, lambda: 1.0])
    own = rng.choice([lambda: 0.0, lambda: rng.randint(-2, 2) / 4])
    penalty = rng.choice([lambda: 0.0, lambda: 0.125 * (rng.random() < 0.2)])
    rows = []
    for task in "abc"[: draw(st.integers(1, 3))]:
        for session in range(draw(st.integers(1, 5))):
            acts = [
                (agent, instance, turn)
                for agent in ("solver", "verifier", "judge")
                for instance in rng.sample(range(4), rng.choice((0, 1, 1, 2, 3)))
                for turn in range(rng.randint(1, 3))
            ]
            for agent, instance, turn in acts:
                candidates = rng.randint(1, branches) if agent == "solver" else 1
                kept = rng.randrange(candidates)
                for branch in range(candidates):
                    seen, tokens = rng.choice("xyz"), rng.randint(1, 9)
                    earned = team(), own(), penalty()
                    kept_on = branch == kept
                    rows.append(Row(task, session, agent, turn, branch, *earned, seen, tokens, instance, kept_on))
    copies = [dataclasses.replace(rng.choice(rows), padding=True) for _ in range(rng.randint(0, 4)) if rows]
    rows += copies
    rng.shuffle(rows)
    return rows


def batch_of(rows, scores=None):
    column = {f.name: [getattr(r, f.name) for r in rows] for f in dataclasses.fields(Row)}
    own_scores = [r.score for r in rows]
    return AdvantageInput(
        scores=torch.tensor(own_scores if scores is None else scores, dtype=torch.float32),
        **{name: torch.tensor(column.pop(name)) for name in PARTS},
        padding=torch.tensor(column.pop("padding"), dtype=torch.bool),
        tokens=torch.tensor(column.pop("tokens")),
        prompt=[r.prompt for r in rows],
        role=[r.role for r in rows],
        **column,
    )


def advantages_of(name, rows, options=AdvantageOptions(), **kwargs):  # noqa: B008  # frozen
    if name == "hierarchical_grpo" and options.main is None:
        options = dataclasses.replace(options, main="solver")
    return compute_advantages(name, batch_of(rows, **kwargs), options).advantages


def close(actual, expected):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float32), atol=2e-6, rtol=2e-6)


# Those of the others: test_second_implementation.py.
@settings(max_examples=100, deadline=None)
@given(rows=teams())
def test_the_defaults_of_gdpo_are_the_published_formula(rows):
    close(advantages_of("agent_gdpo", rows), reference("agent_gdpo", rows, PUBLISHED["agent_gdpo"]))


choices = st.fixed_dictionaries(
    {
        "deviation": st.sampled_from(["sample", "population"]),
        "eps": st.sampled_from([1e-6, 1e-3, 0.1]),
        "group_of_one": st.sampled_from(["zero", "raw"]),
        "baseline": st.sampled_from(["mean", "leave_one_out", "best_other"]),
        "scale": st.sampled_from(["std", "none", "batch_std"]),
        "weighting": st.sampled_from(["per_act", "per_invocation", "per_session", "per_token"]),
    }
)


@pytest.mark.parametrize("name", PUBLISHED)
@settings(max_examples=60, deadline=None)
@given(
    rows=teams(),
    chosen=choices,
    by=st.sampled_from(["agent", "role"]),
    gamma=st.sampled_from([None, 0.0, 0.5, 0.95, 1.0]),
)
def test_every_combination_of_options_is_its_formula(name, rows, chosen, by, gamma):
    if name in ("agent_grpo", "agent_rloo", "agent_gdpo"):
        chosen = {**chosen, "gamma": gamma}
    if name == "agent_gdpo":
        chosen["penalty_weight"] = 0.5 * (gamma or 0.0)
    chosen = {**chosen, "session_mean": gamma is None} if name == "team_grpo" else {**chosen, "by": by}
    if name == "hierarchical_grpo":
        # With roles, the main agent may also be several agents.
        chosen["main"] = "solver" if by == "agent" else "checker"
    expected = reference(name, rows, {**PUBLISHED[name], **chosen})
    close(advantages_of(name, rows, AdvantageOptions(**chosen)), expected)


@pytest.mark.parametrize("name", ["agent_grpo", "at_grpo", "team_grpo", "agent_reinforce_pp"])
@settings(max_examples=50, deadline=None)
@given(rows=teams(), scale=st.sampled_from([0.25, 2.0, 64.0]), shift=st.integers(-100, 100))
def test_an_affine_change_of_all_rewards_changes_nothing(name, rows, scale, shift):
    options = AdvantageOptions(eps=0.0)
    changed = advantages_of(name, rows, options, scores=[scale * r.score + shift for r in rows])
    close(changed, advantages_of(name, rows, options))
