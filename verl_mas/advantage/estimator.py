"""Everything that estimators share: name, defaults, checks of the compared rows, and metrics of groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from typing import TypeAlias

from verl_mas.advantage.kernel import GroupStats, Partition, Prior, compact, moments, normalise, total, units_per_group
from verl_mas.advantage.options import AdvantageOptions
from verl_mas.advantage.record import AdvantageInput, AdvantageOutput, RunningScores, owners_of
from verl_mas.config.registry import Registry, nearest
from verl_mas.errors import ConfigError, DataError
from verl_mas.util.later import Tensor, torch

Compared: TypeAlias = Callable[[AdvantageInput, AdvantageOptions], AdvantageOutput]


@dataclass(frozen=True)
class Estimator:
    """A function that decides which rows are compared. Calling the estimator first removes padding and checks every
    row."""

    name: str
    function: Compared
    # Options that differ from the common defaults, and options that only this estimator reads.
    defaults: Mapping[str, object]
    compares_sessions: bool = False  # whether it needs several sessions per task
    one_baseline: bool = False  # whether it compares all agents with each other, so grouping by role is pointless
    remembers: bool = False  # whether it always reads the scores of earlier steps, whatever its options
    numbers_acts: bool = False  # whether it compares acts by turn or instance, whose numbers repeat in each fork
    replaces: tuple[str, ...] = ()  # verl's estimators that it replaces for a team
    needs: tuple[str, ...] = ()  # columns of AdvantageInput that it reads and that not every run has

    def __call__(
        self, batch: AdvantageInput, options: AdvantageOptions | None = None, running: RunningScores | None = None
    ) -> AdvantageOutput:
        """Compute the advantages of all rows. If the options use running scores, `running` is read, and the scores of
        these rows are added to it."""
        chosen = self.options(options or AdvantageOptions())
        real, rows = _without_padding(batch)
        remembered = running if self.reads_running(chosen) else None
        if remembered is not None:
            real = replace(real, running=remembered)
        elif self.reads_running(chosen):
            rule = "it compares rows with the scores of earlier steps, which verl's own trainers do not keep"
            fix = "train a team (+mas=<team>), or pass RunningScores() to compute_advantages, the same one each step"
            raise DataError(f"{self.name} has no running scores", rule=rule, fix=fix)
        check_rows(real)
        for column in self.needs:
            real.given(column)
        # Metrics are per agent even if options.by is role, so a group counts for each agent that has a row in it.
        output = self.function(real.by_role() if chosen.by == "role" else real, chosen)
        metrics = metrics_per_agent(real, output.groups, output.stats) | output.metrics
        if remembered is not None:
            _, weight = _counted(real, owners_of(real), chosen)
            remembered.add(real, weight, chosen.decay or 0.0)
            metrics |= remembered.metrics()
        advantages = output.advantages.float()
        if rows is not None:
            advantages = advantages.new_zeros(len(batch)).index_copy_(0, rows, advantages)
        return replace(output, advantages=advantages, metrics=metrics)

    def reads_running(self, options: AdvantageOptions) -> bool:
        """Whether it reads the scores of earlier steps with these options."""
        return self.remembers or options.shrinkage is not None

    def reads_own_rewards(self, options: AdvantageOptions) -> bool:
        """Whether it reads the own rewards of acts with these options, so that these rewards need a weight.

        An estimator whose gamma is None by default uses gamma only to discount own rewards. So if the user sets gamma,
        the estimator reads own rewards.
        """
        only_own = "gamma" in self.defaults and self.defaults["gamma"] is None
        return "local_reward" in self.needs or (only_own and options.gamma is not None)

    def options(self, given: AdvantageOptions) -> AdvantageOptions:
        """Fill the given options with the estimator's defaults. Raises ConfigError for an option that it does not
        read."""
        if given.by == "role" and self.one_baseline:
            rule = f"{self.name} compares the acts of all agents with each other, whatever their roles"
            fix = f"remove it, or set {PER_AGENT}"
            raise ConfigError("mas.advantage.by=role", rule=rule, fix=fix)
        return given.resolved(self.name, self.defaults)


# The setting that the `fix` of errors and warnings suggests. Its estimator compares the acts of an agent only with each
# other.
PER_AGENT = "algorithm.adv_estimator=agent_grpo"
ESTIMATORS: Registry[Estimator] = Registry(
    "advantage estimator", package="verl_mas.advantage.estimators", group="verl_mas.estimators"
)


def estimator(
    *,
    compares_sessions: bool = False,
    one_baseline: bool = False,
    remembers: bool = False,
    numbers_acts: bool = False,
    replaces: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
    **defaults: object,
) -> Callable[[Compared], Estimator]:
    """Register a function of (AdvantageInput, AdvantageOptions), which decides which rows are compared, under its name.

    `compares_sessions`: a run with one session per task is refused. `one_baseline`: mas.advantage.by=role is refused.
    `remembers`: it reads `AdvantageInput.running`. `numbers_acts`: a workflow with forks is refused. `replaces`: it is
    suggested for these estimators of verl. `needs`: a run that lacks one of these columns is refused. For example, a
    run lacks branch if its workflow does not branch, and local_reward if mas.reward.local=0. `defaults`: see
    `Estimator.defaults`.
    """

    def decorate(function: Compared) -> Estimator:
        name = getattr(function, "__name__", "")
        try:
            signature(function).bind(None, None)
        except TypeError as error:
            value, fix = f"estimator {name}: {error}", f"write def {name}(batch, options)"
            raise ConfigError(value, rule="an estimator takes the rows of a step and the options", fix=fix) from None
        flags = (compares_sessions, one_baseline, remembers, numbers_acts, replaces, needs)
        return ESTIMATORS.register(name)(Estimator(name, function, defaults, *flags))

    return decorate


def compute_advantages(
    name: str, batch: AdvantageInput, options: AdvantageOptions | None = None, running: RunningScores | None = None
) -> AdvantageOutput:
    """Compute the advantages of all rows of a step with the named estimator.

    `running`: the scores of earlier steps, for an estimator that reads them. The scores of this step are added to them.
    """
    return ESTIMATORS[name](batch, options, running)


def options_for(name: str, config: Mapping[str, object] | None) -> AdvantageOptions:
    """Read a `mas.advantage` mapping, and fill in the estimator's defaults. Raises ConfigError for an option that the
    estimator does not read."""
    return ESTIMATORS.find(name, "algorithm.adv_estimator").options(AdvantageOptions.from_config(config))


def within(
    batch: AdvantageInput,
    groups: Partition,
    options: AdvantageOptions,
    *,
    unit: tuple[str, ...] = ("task", "session"),
    pool: tuple[str, ...] = ("agent",),
    invocations: Partition | None = None,
    prior: Prior | None = None,
) -> AdvantageOutput:
    """Compare every row with its group according to the options, and return the result of an estimator.

    `unit`: columns that identify a unit, whose rows count as one. `pool`: with scale=batch_std, rows with equal values
    in these columns share one deviation. `invocations`: parts of a unit that have equal weight, whatever their number
    of rows. `prior`: pseudo-scores that are added to every group. mas.advantage.shrinkage replaces them by running
    scores.
    """
    if options.shrinkage is not None and batch.running is not None:
        prior = batch.running.prior(batch, groups, options.decay or 0.0, most=options.shrinkage)
    units, weight = _counted(batch, groups, options, unit, invocations)
    advantages, stats = normalise(
        batch.scores,
        groups,
        options,
        weight=weight,
        unit=units,
        pool=batch.partition(*pool) if options.scale == "batch_std" else None,
        prior=prior,
    )
    return AdvantageOutput(advantages, groups, stats)


def _counted(
    batch: AdvantageInput,
    groups: Partition,
    options: AdvantageOptions,
    unit: tuple[str, ...] = ("task", "session"),
    invocations: Partition | None = None,
) -> tuple[Partition | None, Tensor | None]:
    """Return the units of each group, and the weight of each row. The rows of a unit count as one, and a leave-one-out
    baseline excludes them together. If the units are None, every row is its own unit; if the weights are None, every
    row has weight 1."""
    by = options.weighting
    units = None
    if by == "per_session" or options.baseline != "mean":
        units = _inside(groups, batch.partition(*unit))
    if by == "per_act" or not len(batch):
        return units, None
    if by == "per_token":
        if batch.tokens is None:
            rule = "weighting=per_token counts the trained tokens of a row"
            fix = "fill AdvantageInput.tokens, or set mas.advantage.weighting=per_act"
            raise DataError("the rows have no tokens", rule=rule, fix=fix)
        return units, batch.tokens.to(batch.scores.device).double()
    if by == "per_invocation":
        invoked = _inside(groups, invocations or batch.partition(*unit, "agent", "instance"))
        return units or invoked, _split(invoked)
    if units is None or invocations is None:
        return units, _split(units) if units else None
    invoked = _inside(groups, invocations)
    return units, _split(invoked) / units_per_group(units, invoked)[units.ids]


def _inside(groups: Partition, parts: Partition) -> Partition:
    """Divide every group into its parts. If each part lies in one group already, `parts` is returned without
    sorting."""
    group = groups.ids.new_empty(parts.count).index_copy_(0, parts.ids, groups.ids)
    if torch.equal(group.index_select(0, parts.ids), groups.ids):
        return parts
    return compact(groups.ids * parts.count + parts.ids)


def _split(parts: Partition) -> Tensor:
    """Return a weight per row, so that the weights of every part add up to 1."""
    return 1 / torch.bincount(parts.ids, minlength=parts.count)[parts.ids].double()


def _without_padding(batch: AdvantageInput) -> tuple[AdvantageInput, Tensor | None]:
    if batch.padding is None or not bool(batch.padding.any()):
        return batch, None
    rows = (~batch.padding).nonzero().squeeze(1).to(batch.scores.device)
    return batch.select(rows), rows


ACT = ("task", "session", "agent", "instance", "turn", "branch")


def check_rows(batch: AdvantageInput) -> None:
    """Check that scores are finite, agents are known, and no row appears twice."""
    columns = batch.existing(*ACT)
    fix = "correct the reward function, or drop the session"
    unscored, rule = ~torch.isfinite(batch.scores), "a score is a finite number"
    batch.refuse(unscored, "has the score {}", columns, batch.scores, rule=rule, fix=fix)
    agents = batch.codes("agent")
    for code, name in enumerate(agents.names):
        if batch.agents is not None and name not in batch.agents:
            fix = nearest(str(name), list(batch.agents))
            unknown, rule = agents.ids == code, "every row comes from an agent of mas.agents"
            batch.refuse(unknown, "is not of this team", ("task", "session", "agent"), rule=rule, fix=fix)
    acts = batch.partition(*columns)
    copied, rule = torch.bincount(acts.ids)[acts.ids] > 1, "an act is one row; a copy would count twice in its group"
    fix = "mark padding rows as padding, and give every candidate its own branch"
    batch.refuse(copied, "is in the batch more than once", columns, rule=rule, fix=fix)


def actors(batch: AdvantageInput) -> Partition:
    """Partition the rows by agent and instance within a session. The acts of an actor, ordered by turn, are its steps.
    Acts of other agents belong to its environment."""
    return batch.partition("task", "session", "agent", *batch.existing("instance"))


def later_rewards(batch: AdvantageInput, gamma: float | None) -> Tensor:
    """Compute the discounted later rewards [N]; all are 0 if gamma is None. A row at turn t gets the sum over k > t of
    gamma ** (k - t) * r_k, where r_k is the own reward of its actor's act at turn k. All candidates of an act share the
    rewards after the committed candidate, just as they share the team's reward."""
    later = torch.zeros_like(batch.scores, dtype=torch.float64)
    if gamma is None:
        return later
    own, committed, actor = batch.given("local_reward").to(later), batch.numbers("committed"), actors(batch)
    turn, ahead = batch.numbers("turn"), later.new_zeros(actor.count)
    for rows in reversed(turn.argsort().split(torch.bincount(turn).tolist())):
        who = actor.ids[rows]
        later[rows] = ahead[who]
        ahead = gamma * ahead.index_add(0, who, own[rows] * committed[rows])
    return later


def metrics_per_agent(batch: AdvantageInput, groups: Partition, stats: GroupStats) -> dict[str, float]:
    """Compute the metrics `advantage/<agent>/...` of every agent with a row.

    groups, group_size_{mean,min,max}  number of groups in which the agent has a row, and of rows or units per group
    groups_of_one, groups_uniform      share of these groups that have one row, or no variance
    sigma                              root mean square deviation of its scores within a task
    inflation                          E[A^2] of its acts under one baseline for the team (Dr. MAS, Lemma 4.2):
                                       (sigma_k^2 + (mu_k - mu)^2) / sigma^2, over the tasks where sigma > 0; mu: mean
    signal_share                       the share of inflation's numerator that depends on what the agent does:
                                       sigma_k^2 / (sigma_k^2 + (mu_k - mu)^2), over the tasks where sigma_k > 0

    mu_k and sigma_k are computed over the agent's acts, and each act counts once. mu and sigma are computed over the
    team's sessions, and each session counts once. inflation is omitted if no task has sigma > 0, and signal_share is
    omitted if no task has sigma_k > 0.
    """
    agents = batch.codes("agent")
    metrics = {}
    columns = {**_group_columns(batch, groups, stats), **_lemma_columns(batch)}
    for name, values in columns.items():
        for agent, value in zip(agents.names, values.tolist(), strict=True):
            metrics[f"advantage/{agent}/{name}"] = value
    return {name: value for name, value in metrics.items() if not math.isnan(value)}


def _group_columns(batch: AdvantageInput, groups: Partition, stats: GroupStats) -> dict[str, Tensor]:
    agent, group = _distinct_pairs(batch.partition("agent"), groups)
    count = torch.bincount(agent.ids, minlength=agent.count).double()
    size = stats.size[group].double()
    single = stats.single[group]
    return {
        "groups": count,
        "group_size_mean": total(size, agent) / count,
        "group_size_min": _extreme(size, agent, "amin"),
        "group_size_max": _extreme(size, agent, "amax"),
        "groups_of_one": total(single.double(), agent) / count,
        "groups_uniform": total((stats.uniform[group] & ~single).double(), agent) / count,
    }


def _lemma_columns(batch: AdvantageInput) -> dict[str, Tensor]:
    """Compute sigma, inflation and signal_share (Dr. MAS, Lemma 4.2). Each row is an act and counts once, except in the
    team's baseline, where each session counts once."""
    x, task, agent = batch.scores.double(), batch.partition("task"), batch.partition("task", "agent")
    centred, _, team = moments(x, task, "population", _split(batch.partition("task", "session")))
    own_centred, _, own = moments(x, agent, "population")
    signal = own.std.square().masked_fill(own.uniform, torch.nan)[agent.ids]
    offset = own.mean[agent.ids] - team.mean[task.ids]
    variance = team.std.square().masked_fill(team.uniform, torch.nan)[task.ids]
    return {
        "sigma": _mean(own_centred.square(), batch).sqrt(),
        "inflation": _mean(centred.square() / variance, batch),
        "signal_share": _mean(signal / (signal + offset.square()), batch),
    }


def _mean(values: Tensor, batch: AdvantageInput) -> Tensor:
    """Average over the rows of each agent that have a value. The result is NaN for an agent without values."""
    agent = batch.partition("agent")
    return total(values.nan_to_num(0.0), agent) / total((~values.isnan()).double(), agent)


def _distinct_pairs(agents: Partition, groups: Partition) -> tuple[Partition, Tensor]:
    """Find all pairs of an agent and a group that contains a row of this agent. Return a partition of the pairs by
    agent, and the group of each pair."""
    span = max(1, groups.count)
    pairs = torch.unique(agents.ids * span + groups.ids)
    return Partition(pairs // span, agents.count), pairs % span


def _extreme(values: Tensor, parts: Partition, how: str) -> Tensor:
    out = values.new_zeros(parts.count)
    return out.scatter_reduce_(0, parts.ids, values, how, include_self=False)
