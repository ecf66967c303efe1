"""Every metric that a run logs, with its meaning. docs/metrics.md is made from it (`python scripts/generate_pages.py`).

The first pattern that fits a name describes it, so the general ones are last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property

# Names of data sources and of reported numbers may contain a slash.
_PLACEHOLDERS = {"source": ".+?", "name": ".+?", "n": r"\d+", "k": r"\d+", "s": r"\d+"}
_TOKEN = re.compile(r"<(\w+)>|\{([^}]*)\}|([^<{]+)")


@dataclass(frozen=True)
class Metric:
    """`pattern`: a name, in which `<agent>` is any one name and `{a,b}` either of these."""

    pattern: str
    meaning: str
    unit: str = ""
    watch: str = ""  # Of the ten to watch: what is healthy
    # A metric that verl logs for an actor: `policy/<policy>/` is before it in a team of several trained policies.
    of_actor: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (self.pattern, f"policy/<policy>/{self.pattern}") if self.of_actor else (self.pattern,)

    @cached_property
    def expression(self) -> re.Pattern[str]:
        found = "(?:policy/[^/]+/)?" if self.of_actor else ""
        for name, choices, plain in _TOKEN.findall(self.pattern):
            text = f"(?:{'|'.join(map(re.escape, choices.split(',')))})" if choices else re.escape(plain)
            found += _PLACEHOLDERS.get(name, "[^/]+") if name else text
        return re.compile(found)


@dataclass(frozen=True)
class MetricSection:
    title: str
    about: str
    metrics: tuple[Metric, ...]


AGENTS = (
    Metric("agent/<agent>/reward/score", "mean score of the agent's rows: team + local - penalty", watch="rises"),
    Metric("agent/<agent>/reward/team", "mean of the team's part"),
    Metric("agent/<agent>/reward/local", "mean of the agent's own part"),
    Metric("agent/<agent>/reward/penalty", "mean penalty"),
    Metric(
        "agent/<agent>/advantage/zero",
        "share of its rows without an advantage, which teach nothing",
        "share",
        "well below 1",
    ),
    Metric("agent/<agent>/advantage/mean", "mean advantage"),
    Metric("agent/<agent>/advantage/std", "standard deviation of its advantages"),
    Metric("agent/<agent>/malformed", "share of its replies the codec could not read", "share", "falls, or stays at 0"),
    Metric("agent/<agent>/cut", "share of its replies that ended at the limit of tokens", "share", "near 0"),
    Metric("agent/<agent>/acts", "its rows: a conversation is one, however many acts it has", "rows"),
    Metric("agent/<agent>/acts_per_session", "the same per session", "rows"),
    Metric("agent/<agent>/length/response", "mean length of its responses", "tokens", "below data.max_response_length"),
    Metric("agent/<agent>/length/response_longest", "the longest response", "tokens"),
    Metric("agent/<agent>/length/prompt", "mean length of its prompts", "tokens"),
    Metric("agent/<agent>/tool_calls", "of an agent with tools: calls per session", "calls"),
    Metric("agent/<agent>/tool_errors", "of an agent with tools: share of its calls that failed", "share"),
    Metric("agent/<agent>/forged_tokens", "marks of turns that its prompts quoted, per session", "marks"),
    Metric(
        "agent/<agent>/log_probs/{mean,max,limit}",
        "how far engine and trainer are apart about its tokens, where the trainer computes them again",
        "nats",
        "the mean stays below the limit, which rounding explains",
    ),
    Metric("agent/<agent>/log_probs/tokens", "the tokens on which they are compared", "tokens"),
    Metric("agent/<agent>/group/groups", "groups in which the agent has a row", "groups"),
    Metric(
        "agent/<agent>/group/group_size_{mean,min,max}",
        "how many rows, or sessions, a group compares",
        "rows or sessions",
    ),
    Metric("agent/<agent>/group/groups_of_one", "share of its groups with one member: nothing to compare", "share"),
    Metric(
        "agent/<agent>/group/groups_uniform",
        "share of its groups with equal scores: too hard, too easy, or a reward that does not depend on the replies",
        "share",
        "below 0.5",
    ),
    Metric("agent/<agent>/group/sigma", "deviation of its scores within a task (root mean square)"),
    Metric(
        "agent/<agent>/group/inflation",
        "factor by which one baseline for the team would multiply the second moment of its gradient "
        "([Dr. MAS](advantages.md#the-cost-of-one-baseline-for-the-team), Lemma 4.2)",
    ),
    Metric("agent/<agent>/group/signal_share", "the part of that moment that depends on what the agent does", "share"),
    Metric("agent/<agent>/group/one_prompt", "`at_grpo`: 1 if its groups are of one prompt by construction"),
    Metric(
        "agent/<agent>/group/running_{mean,std}",
        "estimators that remember scores: of the role's scores so far. The name is the role's",
    ),
    Metric("agent/<agent>/group/running_count", "how many acts, sessions or tokens these stand for"),
    Metric("agent/<agent>/group/<name>", "what else an estimator reports of an agent"),
    Metric("advantage/acts_with_a_step_group", "`agent_gigpo`: share of acts whose observation was met again", "share"),
    Metric("advantage/<name>", "what else an estimator reports"),
)

POLICIES = (
    Metric("policy/<policy>/rows/real", "rows of its update", "rows"),
    Metric("policy/<policy>/rows/padding", "rows without any weight, which fill a batch up", "rows"),
    Metric("policy/<policy>/rows/skipped", "rows without an advantage, left out of the update", "rows"),
    Metric("policy/<policy>/updated", "1 if it was updated in this step"),
    Metric(
        "policy/<policy>/timing/{old_log_prob,update}",
        "of several trained policies: seconds for its log-probs and its update",
        "s",
    ),
    Metric(
        "policy/<policy>/requests", "of frozen ones, too: requests at once, mean over the time with any", "requests"
    ),
    Metric("policy/<policy>/adapter/updates", "of an [adapter](adapters.md): its optimiser steps so far", "steps"),
    Metric("policy/<policy>/adapter/norm", "of an adapter: norm of what it adds to the weights of its base"),
    Metric("policy/<policy>/sync/seconds", "of a base: time to send its engines all adapters before the step", "s"),
    Metric("policy/<policy>/sync/mb", "of a base: how much each engine got", "MB"),
    Metric("policy/<policy>/snapshot/step", "of a [snapshot](self-play.md): the step of its weights", "step"),
    Metric("policy/<policy>/snapshot/age", "of a snapshot: how many steps older than the learner's they are", "steps"),
)

ACTOR = tuple(
    replace(metric, of_actor=True)
    for metric in (
        Metric("actor/grad_norm", "norm of the gradient before clipping", watch="finite, without steady growth"),
        Metric("actor/loss", "the loss, with all of its terms"),
        Metric("actor/pg_loss", "the policy-gradient term"),
        Metric("actor/lr", "learning rate"),
        Metric("actor/ppo_kl", "estimated KL from the policy that the step began with to the one that is updated"),
        Metric("actor/pg_clipfrac", "share of tokens clipped at the ratio's upper or lower limit", "share"),
        Metric("actor/pg_clipfrac_lower", "share of tokens clipped at `clip_ratio_c`", "share"),
        Metric("actor/{entropy,entropy_loss}", "mean entropy at the sampled tokens, where it is computed"),
        Metric("actor/kl_loss", "KL to the reference policy in the loss"),
        Metric("actor/kl_coef", "its factor"),
        Metric("actor/{reward_kl_penalty,reward_kl_penalty_coeff}", "KL to the reference in the reward; its factor"),
        Metric("actor/overflow", "fp16: 1 if the gradient overflowed, and the optimiser step was skipped"),
        Metric("actor/perf/max_memory_{allocated,reserved}_gb", "peak memory of a GPU", "GB"),
        Metric("actor/perf/cpu_memory_used_gb", "memory of the host in use", "GB"),
        Metric("actor/<name>", "what else verl's loss reports"),
        Metric("perf/mfu/{actor,actor_infer}", "share of peak FLOPs in the update, and in log-probs", "share"),
        Metric("global_seqlen/{min,max,mean,minmax_diff}", "tokens per data-parallel rank before balancing", "tokens"),
        Metric("global_seqlen/balanced_{min,max}", "the same after it", "tokens"),
        Metric(
            "training/rollout_actor_probs_pearson_corr",
            "correlation of the engine's and the trainer's probabilities of the sampled tokens",
            watch="above 0.99 from step 1",
        ),
        Metric("training/rollout_probs_diff_{max,mean,std}", "difference of these probabilities"),
        Metric("training/rollout_probs_diff_valid", "1 if the step had tokens to compare"),
        Metric("rollout_corr/{kl,k3_kl}", "KL from the trainer's to the engine's probabilities, two estimates"),
        Metric("rollout_corr/{training,rollout}_{ppl,log_ppl}", "perplexity under the trainer and under the engine"),
        Metric("rollout_corr/log_ppl_{diff,abs_diff,diff_max,diff_min}", "their difference in logarithms"),
        Metric("rollout_corr/ppl_ratio", "their ratio"),
        Metric("rollout_corr/{chi2_token,chi2_seq}", "chi-square divergence, by token and by sequence"),
        Metric("rollout_corr/rollout_is_<name>", "statistics of the importance weights (`rollout_is`)"),
        Metric("rollout_corr/rollout_rs_<name>", "statistics of what is rejected (`rollout_rs`)"),
    )
)

SESSIONS = (
    Metric("session/count", "sessions that ended", "sessions"),
    Metric("session/dropped", "sessions without rows: every attempt failed", "sessions", "0 or close to it"),
    Metric("session/retried", "sessions that succeeded after a failed attempt", "sessions"),
    Metric("session/groups_given_up", "tasks that were dropped with all of their sessions (`fail_group`)", "tasks"),
    Metric("session/faults/<kind>", "failed attempts of a [kind](errors.md)", "attempts"),
    Metric("session/acts/mean", "acts per session, each one of a conversation too", "acts"),
    Metric("session/seconds/mean", "seconds per session", "s"),
    Metric("session/seconds/acts", "of these in acts; the rest is in worlds, graders and the workflow itself", "s"),
    Metric(
        "session/loop_lag",
        "how late an event loop of a rollout worker was at most: while something blocks it, its sessions wait",
        "s",
    ),
    Metric("session/generated_tokens", "tokens generated, probes included: compare runs at equal sums of it", "tokens"),
    Metric("session/{probe_acts,probe_tokens}", "those of [continuations](continuation.md)"),
    Metric("session/record_mib", "session records written to disk, compressed", "MiB"),
    Metric("session/mixed_versions", "share of sessions with a row of several versions of the weights", "share"),
    Metric("session/<name>/mean", "mean of a number in `Outcome.info` or of the scorer, over the sessions with it"),
)

FILTERS = (
    Metric("filter/kept", "tasks of the step that are trained on", "tasks"),
    Metric("filter/dropped", "tasks that are not", "tasks"),
    Metric("filter/rounds", "rounds of sampling"),
    Metric("filter/spread", "mean spread of the sampled tasks: deviation of the sessions' rewards"),
    Metric("filter/spread_kept", "mean spread of those that are kept"),
)

ASYNCHRONOUS = (
    Metric("policy/<policy>/staleness/mean", "mean staleness of its rows", "updates"),
    Metric("policy/<policy>/staleness/max", "the largest", "updates"),
    Metric("policy/<policy>/staleness/<s>/rows", "share of its rows with staleness s; 8 means 8 and more", "share"),
    Metric("policy/<policy>/staleness/<s>/tokens", "share of its trained tokens with staleness s", "share"),
    Metric(
        "policy/<policy>/staleness/<s>/weight",
        "mean probability of these tokens under the weights of the step over that at which they were sampled, before "
        "any limit. Away from 1 at staleness 0, engine and trainer differ",
    ),
    Metric("policy/<policy>/staleness/<s>/kl", "the KL that it estimates: mean of w - 1 - log w"),
    Metric(
        "policy/<policy>/staleness/<s>/clipped",
        "where `rollout_is` is set: share of them outside `rollout_is_threshold`",
        "share",
    ),
    Metric("policy/<policy>/staleness/mixed_versions", "share of its rows with tokens of several versions", "share"),
    Metric("policy/<policy>/staleness/aborted", "share of its rows with an act that an update interrupted", "share"),
    Metric("policy/<policy>/staleness/continued", "share of those that continued under new weights", "share"),
    Metric("policy/<policy>/idle/engine", "share of the time since the last sampling without a request of it", "share"),
    Metric(
        "policy/<policy>/idle/trainer",
        "share of that time in which its training processes computed neither log-probs nor an update",
        "share",
    ),
    Metric(
        "async/tokens/sampled",
        "tokens of trained policies in sessions that ended since the process started, or that its checkpoint had kept",
        "tokens",
    ),
    Metric("async/tokens/trained", "tokens of rows that were trained on", "tokens"),
    Metric("async/tokens/waiting", "tokens of rows that wait for a later step", "tokens"),
    Metric(
        "async/tokens/lost",
        "sampled and neither trained nor waiting: of dropped tasks, failed sessions and probes, and of sessions whose "
        "task has not ended",
        "tokens",
    ),
    Metric(
        "async/seconds/{sample,abort,sleep,wake,resume}",
        "since the last sampling: waiting for tasks, stopping engines, weights and memory of engines; all policies "
        "added up",
        "s",
    ),
)

VALIDATION = (
    Metric(
        "val-core/<source>/<name>/mean@<n>",
        "verl: mean accuracy (`acc`) over all n sessions of a task, or mean reward of a source without one",
        watch="rises",
    ),
    Metric("val-core/<source>/<name>/{best,maj}@<n>/{mean,std}", "verl: best of n and majority of n, resampled"),
    Metric("val-core/mean_of_sets/{pass,mean}@<n>", "mean over data sources, as in tables of papers; no controls"),
    Metric("val-core/<source>/pass@<k>", "probability that one of k sessions solves the task, without bias", "share"),
    Metric("val-core/<source>/mean@<n>", "of a source without accuracy: mean score, in which a failed session is 0"),
    Metric("val-core/<source>/{pass,mean}@<n>/{low,high}", "95 % bootstrap interval of the last two, over tasks"),
    Metric(
        "val-agent/<agent>/verdict/{accepts,rejects,malformed}_{right,wrong}",
        "shares of the agent's verdicts, by what they say and by the truth",
        "share",
    ),
)

# What each agent and the sessions of a validation have in common with those of training.
_NOT_VALIDATED = ("/advantage/", "/group/", "mixed_versions", "<name>/mean")
_VALIDATED = tuple(
    replace(metric, pattern=f"val-{metric.pattern}", watch="")
    for metric in (*AGENTS, *SESSIONS)
    if not metric.pattern.startswith("advantage/") and not any(part in metric.pattern for part in _NOT_VALIDATED)
)

VERL_VALIDATION = (
    Metric("val-aux/num_turns/{min,max,mean}", "messages per session, prompts included"),
    Metric("val-aux/<source>/acc_success_only/<name>", "accuracy over the sessions that did not fail"),
    Metric(
        "val-aux/<source>/<name>/{mean,std}@<n>",
        "reward and every number of `Outcome.info` or of the scorer: mean and deviation over the sessions of a task",
    ),
    Metric("val-aux/<source>/<name>/{best,worst,maj}@<n>/{mean,std}", "best, worst and majority of n, resampled"),
)

VERL = (
    Metric("critic/score/{mean,max,min}", "score of a row, over all agents"),
    Metric("critic/rewards/{mean,max,min}", "the same after a KL penalty in the reward"),
    Metric("critic/advantages/{mean,max,min}", "advantage of a token, over all agents"),
    Metric("critic/returns/{mean,max,min}", "the same as the advantage: there is no critic"),
    Metric("response_length/{mean,max,min}", "length of a response, over all agents", "tokens"),
    Metric("response_length/clip_ratio", "share of responses as long as the longest one of the step", "share"),
    Metric("response_length_non_aborted/{mean,max,min,clip_ratio}", "the same of responses that are not empty"),
    Metric("response/aborted_ratio", "share of empty responses", "share"),
    Metric("prompt_length/{mean,max,min}", "length of a prompt, over all agents", "tokens"),
    Metric("prompt_length/clip_ratio", "share of prompts as long as the longest one of the step", "share"),
    Metric("num_turns/{mean,max,min}", "messages per row, prompts included"),
    Metric("tool_call_counts/{mean,max,min}", "tool calls per row of verl's loop with tools", "calls"),
    Metric("training/{global_step,epoch}", "step; pass over the data"),
    Metric("training/num_turns/{mean,max,min}", "as `num_turns`"),
    Metric("training/off_policy/trajectory_spans/{mean,max,min}", "versions of the weights that sampled a row"),
    Metric(
        "training/off_policy/{trajectory_staleness,trajectory_staleness_worst}/{mean,max,min}",
        "updates since the newest, and since the oldest, version that sampled a row",
        "updates",
    ),
    Metric(
        "training/{off_policy,filter_groups,rollout_failure}/evicted_samples",
        "tasks that verl dropped: too stale, filtered, or without any row",
        "tasks",
    ),
    Metric("training/off_policy/evicted_samples_staleness/{mean,max,min}", "staleness of the first kind", "updates"),
    Metric("timing_s/step", "seconds of a step", "s", "steady"),
    Metric(
        "timing_s/<name>",
        "seconds of a phase: `gen` (sampling), `old_log_prob`, `adv`, `update_actor`, `update_weights`, `testing`, "
        "`save_checkpoint`",
        "s",
    ),
    Metric("timing_per_token_ms/<name>", "the same per token", "ms"),
    Metric("perf/throughput", "tokens per second and device", "tokens/s"),
    Metric("perf/time_per_step", "the same as `timing_s/step`", "s"),
    Metric("perf/total_num_tokens", "tokens of all rows, prompts included", "tokens"),
    Metric("rollout/<name>", "of engines with experts or speculative decoding"),
    Metric("agent_loop/<name>", "times and counts of verl's agent loops"),
)

SECTIONS = (
    MetricSection(
        "Agents", "Of each agent that acted, over all sampled sessions; `group/...` over those trained on.", AGENTS
    ),
    MetricSection("Policies", "Of each trained policy, and of bases and snapshots.", POLICIES),
    MetricSection(
        "Policies: verl's metrics of an actor",
        "In a team of one trained policy under the name below, as in verl. In a team of several with "
        "`policy/<policy>/` before it. `actor/entropy`, `training/rollout_<name>` and `rollout_corr/<name>` are there "
        "in steps in which [old log-probs](trainer.md#a-training-step) are computed.",
        ACTOR,
    ),
    MetricSection("Sessions", "Over all sessions of the step.", SESSIONS),
    MetricSection("Filters of tasks", "With [`mas.filter`](loss.md#filters-of-tasks).", FILTERS),
    MetricSection(
        "Asynchronous modes",
        "A token is as stale as the number of updates since the weights that sampled it, a row as its oldest token. "
        "Weights and KL need `rollout.calculate_log_probs=true` and a `rollout_correction` without bypass.",
        ASYNCHRONOUS,
    ),
    MetricSection(
        "Validation",
        "A session's accuracy (`acc`) or, without one, its score; at 1 or more the session solved its task. `<source>` "
        "is a data source.",
        (*VALIDATION, *_VALIDATED, *VERL_VALIDATION),
    ),
    MetricSection("verl's metrics of a step", "Over the rows of all agents, padding left out.", VERL),
)


METRICS = tuple(metric for section in SECTIONS for metric in section.metrics)
TO_WATCH = tuple(metric for metric in METRICS if metric.watch)
