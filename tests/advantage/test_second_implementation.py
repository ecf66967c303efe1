"""Every estimator with every option on random steps, against a second implementation.

The second implementation was written from the papers and the options' descriptions. It uses float64 and works row by
row. It was written without reading `verl_mas/advantage`, except for GDPO, own rewards, best_other and session_mean.
Each row has a weight, and the scores of a role in earlier steps are added to the role's groups as further rows. If the
two implementations disagree, the paper decides.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from verl_mas import AdvantageInput, AdvantageOptions, RunningScores, compute_advantages

LABELS = ("task", "session", "agent", "role", "source", "instance", "turn", "branch", "observation", "committed")
PARTS = ("team_reward", "local_reward", "penalty")
ROLE = {"scout_0": "scout", "scout_1": "scout", "lead": "lead"}


def agent_grpo(rows, o, past, unit=("task", "session")):
    """2602.08847, equation 5. With leave_one_out and scale=none, it is the estimator of 2402.14740."""
    group, scores = alike(rows, "task", "agent"), rows.score + rows.local_weight * later(rows, o.gamma)
    weights, pool = weigh(rows, o, group, unit), alike(rows, "agent")
    return compare(scores, group, weights, o, pool, lambda row: shrunk(rows, row, o, past))


def mhgpo(rows, o, past):
    """2506.02718: a fork is a rollout of its own."""
    return agent_grpo(rows, o, past, unit=("task", "session", "branch"))


def at_grpo(rows, o, past):
    """2510.11062, section 3: a group has the candidates of one act.

    If every act of an agent has a single candidate, a group has the agent's acts of one turn in the sessions of a task.
    """
    branches = np.isin(rows.agent, rows.agent[rows.branch > 0])
    candidates = alike(rows, "task", "session", "agent", "instance", "turn")
    group = np.where(branches, candidates, -1 - alike(rows, "task", "agent", "turn"))
    return compare(rows.score, group, weigh(rows, o, group, ("task", "session", "branch")), o, alike(rows, "agent"))


def team_grpo(rows, o, past):
    """2602.08847, equation 2: a baseline for the whole team. session_mean: the variant in the paper's code."""
    group, session = alike(rows, "task"), alike(rows, "task", "session")
    scores = total(rows.score, session) / total(np.ones(len(session)), session) if o.session_mean else rows.score
    return compare(scores, group, weigh(rows, o, group, ("task", "session")), o, alike(rows))


def agent_gigpo(rows, o, past):
    """2505.10978, equations 3 to 8: the team's reward comes with the last act, so earlier acts get it discounted."""
    life = alike(rows, "task", "session", "agent", "instance")
    last = np.array([rows.turn[life == own].max() for own in life])
    own = rows.local_weight * (rows.local_reward + later(rows, o.gamma)) - rows.penalty
    returns = o.gamma ** (last - rows.turn) * rows.team_weight * rows.team_reward + own
    group = alike(rows, "task", "agent", "observation")
    of_steps = compare(returns, group, weigh(rows, o, group, ("task", "session")), o, alike(rows, "agent"))
    return agent_grpo(rows, SimpleNamespace(**vars(o) | {"gamma": None}), past) + o.step_weight * of_steps


def agent_gdpo(rows, o, past):
    """2601.05242: each reward is normalised in its group, and the weighted sum of the results is scaled once more.

    The sum is divided by its standard deviation over the agent's acts (in the paper, over the batch). A penalty is a
    reward below 0.
    """
    group, agent = alike(rows, "task", "agent"), alike(rows, "agent")
    weights, own = weigh(rows, o, group, ("task", "session")), rows.local_reward + later(rows, o.gamma)
    parts = ((rows.team_weight, rows.team_reward), (rows.local_weight, own), (o.penalty_weight, -rows.penalty))
    summed = sum(weight * compare(part, group, weights, o, agent) for weight, part in parts)
    counted, _ = weigh(rows, o, agent, ("task", "session"))
    scale = np.array([deviation(summed[agent == mine], counted[agent == mine], o) for mine in agent])
    return np.where(scale > 1e-9, summed / (scale + o.eps), summed)


def agent_reinforce_pp(rows, o, past):
    """2501.03262: a group has all rows of the agent in the step."""
    group = alike(rows, "agent")
    return compare(rows.score, group, weigh(rows, o, group, ("task", "session")), o, group)


def hierarchical_grpo(rows, o, past):
    """2511.13288, equations 9 to 13: an agent's invocations in a rollout count once together, in equal shares."""
    group = alike(rows, "task", "agent")
    called = SimpleNamespace(**vars(rows))
    called.instance = np.where(rows.agent == o.main, 0, alike(rows, "agent", "instance"))
    weights = weigh(called, o, group, ("task", "session"), invocations_alike=True)
    return compare(rows.score, group, weights, o, alike(rows, "agent"))


def rao(rows, o, past):
    """2605.06639, equations 3 and 4: the baseline is the mean score of the first copies in the task's other rollouts.

    All depths have the same total weight.
    """
    copies = {(row[:3], row[3]) for row in zip(rows.task, rows.session, rows.instance, rows.agent, strict=True)}
    depths = [depth for _, depth in copies]
    found = np.zeros(len(rows.score))
    for row, score in enumerate(rows.score):
        roots = (rows.task == rows.task[row]) & (rows.session != rows.session[row]) & (rows.agent == o.main)
        others = [rows.score[roots & (rows.session == other)].mean() for other in set(rows.session[roots])]
        lone = score if o.group_of_one == "raw" else 0.0
        weight = len(depths) / len(set(depths)) / depths.count(rows.agent[row])
        found[row] = weight * (score - np.mean(others) if others else lone)
    return found


def agent_rae(rows, o, past):
    """2506.24119: a role's score minus the running mean of its scores, which does not include the session itself."""
    group = alike(rows, "source", "role")
    weights = weigh(as_agents(rows), o, group, ("task", "session"))
    return compare(rows.score, group, weights, o, group, lambda row: remembered(rows, row, o, past))


PAPERS = {f.__name__: f for f in (agent_grpo, mhgpo, at_grpo, team_grpo, agent_gigpo, agent_gdpo, agent_reinforce_pp)}
PAPERS |= {"hierarchical_grpo": hierarchical_grpo, "agent_rae": agent_rae, "agent_rloo": agent_grpo, "rao": rao}


def later(rows, gamma):
    """Return the own rewards of the instance's later acts, discounted by the number of its acts up to then. Only
    committed candidates count, because a session continues with one candidate of each act."""
    life = alike(rows, "task", "session", "agent", "instance")
    ahead = rows.turn - rows.turn[:, None]
    follows = (life == life[:, None]) & (ahead > 0) & rows.committed
    return follows * (gamma or 0.0) ** np.maximum(ahead, 0) @ rows.local_reward


def alike(rows, *columns):
    """Number the combinations of values, and return the number of each row."""
    values = list(zip(*(getattr(rows, column).tolist() for column in columns), strict=True)) or [()] * len(rows.score)
    place = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return np.array([place[value] for value in values])


def total(values, *labels):
    """Return for each row the sum of the values of all rows with the same labels."""
    same = np.all([np.equal.outer(label, label) for label in labels], axis=0)
    return same @ values


def weigh(rows, o, group, unit, invocations_alike=False):
    """Return the weight of each row in its group, and the number of its unit, whose rows share a reward."""
    owner, one = alike(rows, *unit), np.ones(len(group))
    per_invocation = 1 / total(one, group, alike(rows, *unit, "agent", "instance"))
    share = per_invocation if invocations_alike else one
    kinds = {"per_act": one, "per_token": rows.tokens * 1.0, "per_invocation": per_invocation}
    return kinds.get(o.weighting, share / total(share, group, owner)), owner


def mean(values, weight):
    return values @ weight / weight.sum()


def deviation(scores, weight, o):
    variance = mean((scores - mean(scores, weight)) ** 2, weight)
    count = weight.sum()
    if o.deviation == "population":
        return np.sqrt(variance)
    return np.sqrt(variance * count / (count - 1)) if count > 1 + 1e-9 else 0


def compare(scores, group, weights, o, pool, history=lambda row: (np.zeros(0), np.zeros(0))):
    """Compute (score - baseline) / (deviation + eps) for every row that can be compared with others."""
    weight, owner = weights
    advantages = np.zeros(len(scores))
    for row, score in enumerate(scores):
        mine = group == group[row]
        base = mine if o.baseline == "mean" else mine & (owner != owner[row])
        counted = np.sum(base) - 1 if o.weighting == "per_token" else weight[base].sum() - 1
        old, old_weight = history(row)
        known = old_weight.sum() > 0
        if not known and (counted < 1e-9 if o.baseline == "mean" else not base.any()):
            advantages[row] = score if o.group_of_one == "raw" else 0
            continue
        baseline = mean(np.append(scores[base], old), np.append(weight[base], old_weight))
        if o.baseline == "best_other":  # 2503.19595
            baseline = min(score, scores[base].max())
        wide = pool == pool[row] if o.scale == "batch_std" else mine
        scale = deviation(np.append(scores[wide], old), np.append(weight[wide], old_weight), o)
        if o.scale == "none":
            advantages[row] = score - baseline
        elif scale > 1e-9:
            advantages[row] = (score - baseline) / (scale + o.eps)
    return advantages


def remembered(rows, row, o, past):
    """Return the earlier scores of the row's role on its data source, with their weights in this step."""
    scores, weights, age = [np.zeros(0)], [np.zeros(0)], 1
    for step, weight in reversed(past):
        same = (step.role == rows.role[row]) & (step.source == rows.source[row])
        if same.any():
            scores.append(step.score[same])
            weights.append(weight[same] * o.decay**age)
            age += 1
    return np.concatenate(scores), np.concatenate(weights)


def shrunk(rows, row, o, past):
    """Scale the weights of the earlier scores so that they add up to at most `shrinkage`."""
    scores, weights = remembered(rows, row, o, past)
    return scores, weights * min(o.shrinkage or 0, weights.sum()) / max(weights.sum(), 1e-9)


def as_agents(rows):
    """Copy the rows, with roles as agents."""
    return SimpleNamespace(**vars(rows) | {"agent": rows.role, "instance": alike(rows, "agent", "instance")})


DEFAULTS = {"by": "agent", "baseline": "mean", "scale": "std", "deviation": "sample", "eps": 1e-6, "decay": 0.9}
DEFAULTS |= {"weighting": "per_act", "group_of_one": "zero", "shrinkage": None, "gamma": None, "session_mean": False}
OWN_DEFAULTS = {
    "team_grpo": {"weighting": "per_session"},
    "agent_rloo": {"baseline": "leave_one_out", "scale": "none"},
    "agent_gigpo": {"step_weight": 1.0, "gamma": 0.95},
    "agent_gdpo": {"penalty_weight": 1.0},
    "agent_reinforce_pp": {"weighting": "per_token"},
    "hierarchical_grpo": {"weighting": "per_session"},
    "agent_rae": {"weighting": "per_session", "baseline": "leave_one_out", "scale": "none"},
}
VALUES = {
    "by": ["agent", "role"],
    "deviation": ["sample", "population"],
    "eps": [1e-6, 0.01],
    "group_of_one": ["zero", "raw"],
    "baseline": ["mean", "leave_one_out", "best_other"],
    "scale": ["std", "none", "batch_std"],
    "weighting": ["per_act", "per_invocation", "per_session", "per_token"],
}
OWN_VALUES = {
    "agent_gigpo": {"step_weight": [0.0, 0.5, 2.0], "gamma": [0.0, 0.5, 1.0]},
    "agent_gdpo": {"penalty_weight": [0.0, 0.5], "gamma": [0.0, 0.5, 1.0]},
    "team_grpo": {"by": ["agent"], "session_mean": [True]},
    "agent_rae": {"decay": [0.0, 0.5, 1.0], "scale": ["std", "none"], "baseline": ["mean", "leave_one_out"]},
    "agent_grpo": {"shrinkage": [None, 0.5, 2.0], "decay": [0.5], "gamma": [0.0, 0.5, 1.0]},
    "agent_rloo": {"shrinkage": [None, 0.5, 2.0], "decay": [0.5], "gamma": [0.0, 0.5, 1.0]},
}


def random_step(rng):
    """Make random rows. Their numbers have few binary digits, so that sums are exact in float32 as well."""
    rows = []
    most = {role: rng.integers(1, 4) for role in ROLE.values()}
    earns, errs = rng.random(2) < 0.5
    for task, session, agent in np.ndindex(2, 3, len(ROLE)):
        agent, role = list(ROLE.items())[agent]
        for instance, turn in np.ndindex(int(rng.integers(3)), int(rng.integers(1, 3))):
            kept = rng.integers(candidates := rng.integers(1, most[role] + 1))
            for branch in range(candidates):
                team = rng.integers(3) / 2 if rng.random() < 0.7 else np.round(rng.normal() * 64) / 64
                parts = (team, earns * rng.integers(-2, 3) / 4, errs * (rng.random() < 0.3) / 8)
                labels = (task, session, agent, role, f"source {task % 2}", instance, turn, branch, rng.integers(2))
                rows.append((*labels, branch == kept, *parts, rng.integers(1, 5)))
    rng.shuffle(rows)
    names = (*LABELS, *PARTS, "tokens")
    step = SimpleNamespace(**{name: np.array([row[i] for row in rows]) for i, name in enumerate(names)})
    step.team_weight, step.local_weight = rng.choice([0.5, 1.0, 2.0], 2)
    step.score = step.team_weight * step.team_reward + step.local_weight * step.local_reward - step.penalty
    return step


def random_options(rng, name):
    values = VALUES | OWN_VALUES.get(name, {})
    if name == "rao":
        values = {option: values[option] for option in ("deviation", "eps", "group_of_one")}
    options = {option: of[rng.integers(len(of))] for option, of in values.items() if rng.random() < 0.4}
    if name == "rao":
        options["main"] = "lead"
    if name == "hierarchical_grpo":  # With by=role, `main` is a role, which may have several agents.
        options["main"] = "scout" if options.get("by") == "role" else "lead"
    # These options are refused together with shrinkage, which adds scores of earlier steps. With batch_std, for
    # example, the deviation of this step may be 0 although its scores differ from those of earlier steps.
    if options.get("scale") == "batch_std" or options.get("baseline") == "best_other" or "gamma" in options:
        options.pop("shrinkage", None)
    if name != "agent_rae" and not options.get("shrinkage"):
        options.pop("decay", None)
    return options, SimpleNamespace(**DEFAULTS | OWN_DEFAULTS.get(name, {}) | options)


def ours(name, rows, options, running, rng):
    """Compute the advantages with the package, with two rows of padding at random positions."""
    count = len(rows.score)
    order = rng.permutation(count + 2)
    columns = {name: np.resize(getattr(rows, name), count + 2)[order] for name in LABELS}
    numbers = {name: np.append(getattr(rows, name), [9, 9])[order] for name in (*PARTS, "tokens", "score")}
    parts = {name: torch.tensor(numbers[name]) for name in (*PARTS, "tokens")}
    weights = {"team_weight": rows.team_weight, "local_weight": rows.local_weight}
    scores, padding = torch.tensor(numbers["score"], dtype=torch.float32), torch.tensor(order >= count)
    batch = AdvantageInput(scores, **columns, **parts, **weights, padding=padding)
    found = compute_advantages(name, batch, AdvantageOptions(**options), running).advantages.numpy()
    return found[np.argsort(order)[:count]]


@pytest.mark.parametrize("cases", [40, pytest.param(120, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", PAPERS)
def test_an_estimator_has_the_values_of_its_second_implementation(name, cases):
    rng = np.random.default_rng(sorted(PAPERS).index(name))
    for case in range(cases):
        if case % 3 == 0:
            (options, o), running, past = random_options(rng, name), RunningScores(), []
        rows = random_step(rng)
        found = ours(name, rows, options, running, rng)
        seen = as_agents(rows) if o.by == "role" else rows
        expected = PAPERS[name](seen, o, past)
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6), (case, options)
        past.append((rows, weigh(as_agents(rows), o, alike(rows, "role", "source"), ("task", "session"))[0]))


@pytest.mark.parametrize("name", ["agent_grpo", "at_grpo", "team_grpo", "agent_reinforce_pp"])
def test_an_affine_change_of_all_rewards_changes_nothing(name):
    rng, options = np.random.default_rng(0), {"eps": 0.0}
    for _ in range(30):
        rows = random_step(rng)
        changed = SimpleNamespace(**vars(rows) | {"score": rng.choice([0.25, 64]) * rows.score + rng.integers(-9, 9)})
        found, expected = (ours(name, each, options, None, rng) for each in (changed, rows))
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)
