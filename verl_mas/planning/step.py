"""Estimates the samples and the duration of a training step whose rows all have the mean length. See
docs/train/plan.md."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from omegaconf import OmegaConf

from verl_mas.config.merge import SECTION
from verl_mas.config.run import Run
from verl_mas.config.values import Count, Positive, Share
from verl_mas.planning.events import LOG_PROBS, ROLLOUT, SYNC, UPDATE
from verl_mas.planning.load import Policy
from verl_mas.planning.model import ModelSize
from verl_mas.planning.path import FUSED, MASKED, STREAMED, TRAFFIC
from verl_mas.planning.serving import kv_per_token
from verl_mas.workflow.base import agents_of, resolve


@dataclass(frozen=True)
class Assumed:
    """Numbers that the plan needs but that no configuration contains. `--assume NAME=VALUE` sets a number. `usual_step`
    estimates the numbers that are None."""

    acts: Positive | None = None  # Acts per session, on average
    prompt: Positive | None = None  # Prompt tokens per act, on average
    response: Positive | None = None  # Response tokens per act, on average
    steps: Count | None = None  # Training steps of the run
    tflops: Positive = 989.0  # Peak TFLOPS of a GPU in bfloat16. The GPU defaults of this class describe an H100.
    # The share of `tflops` that training and prefill reach. torchtitan measured 0.33 for Llama 3.1 8B with FSDP2,
    # without torch.compile, on H100s with a lower power limit (its llama3_h100_202412_torchtitan.md). The measured
    # share includes the logits, which this plan counts separately.
    mfu: Share = 0.35
    bandwidth: Positive = 3.35  # Bandwidth of a GPU's memory in TB/s
    mbu: Share = 0.5  # The share of `bandwidth` that decoding reaches
    launch: Positive = 5.0  # Milliseconds of an engine's overhead per token, besides reading and computing
    link: Positive = 10.0  # GB/s at which a GPU receives weights, or moves them to the host and back
    skipped: Share = 0.0  # The share of rows without an advantage, if updates skip them

    def __str__(self) -> str:
        return " ".join(f"{name}={value:g}" for name, value in vars(self).items() if value is not None)


@dataclass(frozen=True)
class Sample:
    """Measurements of the training data on this machine."""

    task: float | None = None  # Tokens of a prompt, on average
    of: int = 0  # Number of prompts that were measured
    rows: int | None = None  # Number of rows of the data
    by: str = "the model's tokenizer"  # How the prompts were measured


@dataclass(frozen=True)
class Step:
    """Averages of the sessions that a step samples. Each act is one row."""

    sessions: int
    acts: float  # Acts per session
    turns: float  # Consecutive acts per session; candidates for an act are sampled in parallel
    task: float  # Prompt tokens of the task alone, without earlier replies
    prompt: float
    response: float
    longest: int  # data.max_response_length
    fullest: float  # Tokens of a prompt, on average, if every reply has the maximal length
    sources: Mapping[str, str]  # The sources of `acts`, `prompt` and `response`
    assumed: Assumed
    steps: int | None  # Steps of the run; None if unknown without the data
    group: int = 1  # Sessions per task

    @property
    def rows(self) -> float:
        return self.sessions * self.acts

    @property
    def length(self) -> float:
        return self.prompt + self.response

    @property
    def computed(self) -> float:
        """Tokens per row that training computes if sessions share prefixes. The tokens of a task are then computed only
        once for all sessions of its group."""
        return self.length - self.task * (1 - 1 / self.group)

    @property
    def at_limit(self) -> Step | None:
        """The step with replies of maximal length; None if `--assume` sets the length or it is already maximal."""
        guessed = self.assumed.response is None and self.response < self.longest
        return replace(self, response=float(self.longest), prompt=self.fullest) if guessed else None

    @property
    def alone(self) -> Step:
        """The step of a single agent that acts once."""
        return replace(self, acts=1.0, turns=1.0, prompt=self.task)


def usual_step(run: Run, assumed: Assumed, sample: Sample) -> Step:
    rollout, trainer, together, most = run.config[SECTION].rollout, run.config.trainer, 1, None
    sources = {"acts": "each agent acts once", "response": "half of data.max_response_length"}
    if run.mode is not None:
        workflow = resolve(run.mas.workflow)
        together = run.mas.branch.k if workflow.branches else 1
        most = workflow.most_acts(together)
        sources["acts"] += f", with {together} candidates" if together > 1 else ""
    agents = len(agents_of(run.mas)) if run.mode else 1
    acts, response = assumed.acts or most or agents * together, assumed.response or rollout.response_length / 2
    turns, task = max(1.0, acts / together), assumed.prompt or rollout.prompt_length / 4
    sources["prompt"] = "a quarter of data.max_prompt_length, as the data is not here"
    prompt = fullest = task
    if sample.task:
        task = min(sample.task, rollout.prompt_length)
        prompt, fullest = (
            assumed.prompt or min(task + (1 - 1 / turns) * reply, rollout.prompt_length)
            for reply in (response, rollout.response_length)
        )
        rows = f"the first {sample.of} rows of the data, by {sample.by}"
        sources["prompt"] = f"{rows}; and one reply in each later prompt of a session"
    sources |= {"acts": "as many as the workflow can have"} if most else {}
    sources |= {name: "as --assume says" for name in sources if getattr(assumed, name)}
    steps = assumed.steps or OmegaConf.select(trainer, "total_training_steps")
    if not steps and sample.rows:
        steps = trainer.total_epochs * (sample.rows // run.config.data.train_batch_size)
    longest = int(rollout.response_length)
    sizes = task, prompt, response, longest, fullest
    return Step(run.sessions_per_step, acts, turns, *sizes, sources, assumed, steps, group=int(rollout.n))


def rows_of(run: Run, step: Step) -> Mapping[str, float]:
    """Return the rows of each policy, if all agents act equally often. Rows of an adapter count as rows of its base."""
    if run.mode is None:
        return dict.fromkeys(run.mas.policies, step.rows)
    acting = [(name, agent) for agent in agents_of(run.mas).values() for name in agent.policies]
    found: dict[str, float] = defaultdict(float)
    for name, agent in acting:
        found[run.mas.policies[name].adapter_of or name] += 1 / len(agent.policies)
    return {name: step.rows * share / sum(found.values()) for name, share in found.items()}


def expected(policy: Policy, step: Step) -> Policy:
    """Return the policy with micro batches that hold rows of mean length instead of rows of maximal length."""
    of_gpu = policy.rows * step.length / policy.trainers
    share = 1.0 if not policy.path.packed else min(1.0, step.length / policy.row)

    def usual(most: int, filled: float = of_gpu) -> int:
        return int(min(most, filled) if policy.by_tokens else share * most)

    return policy.resized(lambda most: usual(most, of_gpu / policy.updates), usual)


def seconds(policies: Sequence[Policy], step: Step) -> Mapping[str, float]:
    """Estimate the seconds of each phase of a step."""
    busy: dict[str, float] = defaultdict(float)
    found: dict[str, float] = defaultdict(float, {ROLLOUT: 0.0})
    # Tokens that the longest session samples one after another. Its last reply has the maximal length.
    chain = (step.turns - 1) * step.response + step.longest
    for policy in policies:
        busy[policy.serving_pool or policy.pool] += _sampling(policy, step)
        found[ROLLOUT] += policy.rows / step.rows * chain * _token(policy, step, 1)
        for phase, time in _trained(policy, step).items():
            found[phase] += time
    return {**found, ROLLOUT: max(found[ROLLOUT], *busy.values())}


def forward(model: ModelSize, keys: float) -> float:
    """FLOPs of the forward pass of a token that attends to `keys` keys: weights, attention scores and values."""
    return 2.0 * model.computed + 4.0 * model.attending * model.heads * model.head_size * keys


def _flops(step: Step) -> float:
    """FLOPs per second that a GPU reaches."""
    return step.assumed.tflops * 1e12 * step.assumed.mfu


def _sampling(policy: Policy, step: Step) -> float:
    """Seconds that the engines of a policy are busy."""
    requests = policy.rows / max(1, policy.servers // policy.replica)
    at_once = max(1.0, min(requests, policy.sequences, policy.kv_tokens / step.length))
    prefill = requests * step.prompt * forward(policy.model, step.prompt / 2) / (_flops(step) * policy.replica)
    return prefill + requests * step.response / at_once * _token(policy, step, at_once)


def _token(policy: Policy, step: Step, at_once: float) -> float:
    """Seconds in which an engine samples one token of each request.

    The speed is limited by reading weights and KV caches or by computing, so the longer of these two times counts.
    """
    model, assumed = policy.model, step.assumed
    cache = at_once * (step.prompt + step.response / 2) * kv_per_token(policy)
    reads = (model.served / policy.parts + cache) / (assumed.bandwidth * 1e12 * assumed.mbu)
    computes = at_once * forward(model, step.length / 2) / (_flops(step) * policy.replica)
    return assumed.launch / 1e3 + max(reads, computes)


def _trained(policy: Policy, step: Step) -> Mapping[str, float]:
    if not policy.trains:
        return {}
    policy, model = expected(policy, step), policy.model
    rows, sizes = policy.rows / policy.trainers, (policy.log_prob_tokens, policy.update_tokens)
    tokens, logits = rows * step.length, rows * step.length * bool(policy.logits)
    if policy.shares:
        tokens, logits = rows * step.computed, rows * step.response
    scoring, updating = (_token_pass(policy, step, size) for size in sizes)
    streamed = step.assumed.bandwidth * 1e12 * STREAMED
    scored, updated = (size * model.vocabulary / streamed for size in TRAFFIC[policy.path.log_probs])
    # Fused kernels compute the logits again for their gradient.
    updated += (policy.path.log_probs == FUSED) * 2 * model.embedding / _flops(step)
    moved = policy.element * model.parameters * policy.param_offload
    moved += 2 * policy.trained_element * policy.trained * policy.optimizer_offload
    pushed = model.served / policy.parts + 2 * moved / policy.shards
    # A backward pass costs two forward passes. Gradient checkpointing adds a forward pass.
    passes = 3 + policy.checkpointing
    of_critic = _trained(replace(policy.critic, rows=policy.rows), step) if policy.critic else {}
    found = (policy.old_log_probs + policy.reference) * (tokens * scoring + logits * scored)
    update = (1 - step.assumed.skipped * policy.skips) * (tokens * passes * updating + logits * updated)
    return {
        LOG_PROBS: found + of_critic.get(LOG_PROBS, 0.0),
        UPDATE: update + of_critic.get(UPDATE, 0.0),
        SYNC: pushed / (step.assumed.link * 1e9),
    }


def _token_pass(policy: Policy, step: Step, batch: float) -> float:
    """Seconds of a token's forward pass in a micro batch of `batch` tokens."""
    keys = step.length / 2 / MASKED if policy.shares else policy.path.keys(step.length, batch)
    return forward(policy.model, keys) / _flops(step)


def training_line(policy: Policy, step: Step) -> str:
    """Describe a policy's training path, with the estimated seconds of log-probs and updates on this path. If
    flash-attn would be faster, add the seconds with flash-attn."""
    if not policy.trains:
        return ""
    fastest = replace(policy, path=policy.path.fastest)
    found, least = (_computing(one, step) for one in (policy, fastest))
    other = f", {least:,.0f} s with flash-attn" if policy.path.masked else ""
    once = "; shared prefixes once" if policy.shares else ""
    return f"{policy.path}{once}; estimated: {found:,.0f} s per step{other}"


def _computing(policy: Policy, step: Step) -> float:
    times = _trained(policy, step)
    return times[LOG_PROBS] + times[UPDATE]
