"""The plan of a run: the memory of each policy in each phase, whether it fits, and the time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from omegaconf import OmegaConf

from verl_mas.config.adapters import adapters
from verl_mas.config.placement import gpus_needed, policies_on, pool_shape, used_pools
from verl_mas.config.run import Run
from verl_mas.config.schema import DEFAULT_POOL
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.planning import fit, training
from verl_mas.planning.events import LOG_PROBS, WAITING, Moment, Pool, total
from verl_mas.planning.fit import Larger, fits, needed_tokens, tokens, too_small, worst
from verl_mas.planning.hardware import GIB, SAFE, Hardware
from verl_mas.planning.load import Policy, Terms
from verl_mas.planning.step import Step, expected, rows_of, seconds, training_line
from verl_mas.workflow.codecs import JsonObject

Problem: TypeAlias = ConfigError | ConfigWarning

# Terms that do not follow from tensor shapes. Their values come from measurements on other machines.
ROUGH = ("contexts", "CUDA graphs", "images")
# A KV cache below this multiple of a context may in fact be smaller than one context, because its size is an estimate.
MARGIN = 1.25


@dataclass(frozen=True)
class RunPlan:
    """The plan of a run, as `verl-mas plan --json` writes it. Sizes are in GiB."""

    hardware: Hardware
    gpus: int  # GPUs that the run reserves
    policies: Mapping[str, JsonObject]
    pools: Mapping[str, JsonObject]
    host: float  # host memory of the worst node
    disk: float  # size of one checkpoint of all policies
    kept: int | None  # trainer.max_actor_ckpt_to_keep; null: all
    time: JsonObject | None  # null if nothing is trained here
    errors: Sequence[ConfigError] = field(default=())
    warnings: Sequence[ConfigWarning] = field(default=())

    @property
    def fits(self) -> bool:
        return not self.errors


def make_plan(run: Run, served: Mapping[str, Policy], hardware: Hardware, step: Step) -> RunPlan:
    """Plan a run. `served`: every policy whose engines the run starts."""
    mas, pools, rows = run.mas, {}, rows_of(run, step)
    served = {name: replace(policy, rows=rows.get(name, 0.0)) for name, policy in served.items()}
    for name in used_pools(mas):
        policies = [served[policy].at(name) for policy in policies_on(mas, name)]
        pools[name] = Pool(policies, hardware.card, phases=mas.pools[name].serving == "phases")
    shapes = {name: pool_shape(run, name) for name in pools}
    host = {name: pool.host(shapes[name][0]) for name, pool in pools.items()}
    node = _worst_node(shapes, {name: total(terms) for name, terms in host.items()}, hardware)
    keep = OmegaConf.select(run.config, "trainer.max_actor_ckpt_to_keep")
    larger = None
    # More GPUs can help if all policies are on the pool that uses the trainer's GPUs, and some of `--gpus` are unused.
    if list(shapes) == [DEFAULT_POOL] and sum(shapes[DEFAULT_POOL]) < hardware.gpus:
        nodes = f"trainer.nnodes={hardware.nodes} " if len(shapes[DEFAULT_POOL]) != hardware.nodes else ""
        larger = f"{nodes}trainer.n_gpus_per_node={hardware.gpus_per_node}", hardware.gpus
    problems: list[Problem] = [*_too_few_gpus(shapes, gpus_needed(run), hardware)]
    problems += [warning for pool in pools.values() for warning in _long_context(pool)]
    served = {
        name: replace(one, kv_tokens=tokens(pools[one.serving_pool or one.pool], one)) for name, one in served.items()
    }
    usual = {name: pool.of(expected(policy, step) for policy in pool.policies) for name, pool in pools.items()}
    for name, pool in pools.items():
        problems += [] if fits(pool) else _lacking(name, pool, usual[name], step, _fix(pool, sum(shapes[name]), larger))
    return RunPlan(
        hardware=hardware,
        gpus=gpus_needed(run),
        policies={name: _policy(run, policy, pools, usual, step) for name, policy in served.items()},
        pools={name: _pool(pools[name], usual[name], shapes[name], host[name]) for name in pools},
        host=node / GIB,
        disk=sum(map(training.checkpoint, served.values())) / GIB,
        kept=keep if isinstance(keep, int) else None,
        time=_time(list(served.values()), step),
        errors=[problem for problem in problems if isinstance(problem, ConfigError)],
        warnings=[problem for problem in problems if isinstance(problem, ConfigWarning)],
    )


def _time(policies: Sequence[Policy], step: Step) -> JsonObject | None:
    trained = next((policy for policy in policies if policy.trains), None)
    if trained is None:
        return None
    phases, one = seconds(policies, step), step.alone
    whole = sum(phases.values())
    return {
        "seconds": whole,  # of one step
        "phases": phases,  # the parts of `seconds`
        # Hours of the run; null if the number of steps is unknown without the data.
        "hours": step.steps * whole / 3600 if step.steps else None,
        # Seconds of a step with the longest replies; null if `--assume` sets the length of replies, or if `seconds` is
        # already for the longest replies.
        "limit": sum(seconds(policies, step.at_limit).values()) if step.at_limit else None,
        # Seconds of a step with one agent that acts once, on the first trained policy.
        "alone": sum(seconds([replace(trained, rows=one.rows)], one).values()),
        "step": step,
    }


def _policy(run: Run, policy: Policy, pools: Mapping[str, Pool], usual: Mapping[str, Pool], step: Step) -> JsonObject:
    replicas, on_it = policy.servers // policy.replica, _adapters(run, policy)
    return {
        "model": policy.model_path,
        "source": policy.source,
        "parameters": policy.model.parameters,
        "engine": policy.engine,
        "replicas": replicas,
        "kv_tokens": policy.kv_tokens * policy.data_parallel,  # KV tokens that one replica holds
        "context": policy.context,
        # Number of requests with a full context that fit in the KV caches of all replicas together.
        "concurrent": policy.kv_tokens // policy.context * policy.data_parallel * replicas,
        # Phase -> memory of a GPU of the pool, including the other policies. Key `waiting`: memory of this policy alone
        # while another policy computes.
        "gpu": _phases(pools, policy),
        "expected": _phases(usual, policy),  # with rows of the usual length; `gpu` is the worst case
        "disk": 0.0 if on_it else training.checkpoint(policy) / GIB,  # one checkpoint; 0 for a base of adapters
        # Optimiser steps per training step; null if the policy is not trained.
        "updates": policy.updates if run.mas.policies[policy.name].is_trained else None,
        "notes": policy.notes,
        "path": training_line(policy, step),  # empty if frozen
        "adapters": on_it,
    }


def _adapters(run: Run, policy: Policy) -> JsonObject:
    """Describe the policies that are adapters on a base. The memory of the adapters is part of the base's memory."""
    return {
        name: {
            "rank": int(run.view(name).value("model.lora_rank")),
            "parameters": parameters,
            "disk": training.adapter_checkpoint(parameters) / GIB,
            "updates": run.view(name).updates_per_step,
        }
        for name, parameters in zip(adapters(run.mas, policy.name), policy.adapters, strict=True)
    }


def _phases(pools: Mapping[str, Pool], policy: Policy) -> dict[str, float]:
    """Return the GiB on a GPU in each phase. If the policy is on two pools, the larger number counts."""
    found: dict[str, float] = {}
    for pool in [pools[policy.pool], *([pools[policy.serving_pool]] if policy.serving_pool else [])]:
        here = next(here for here in pool.policies if here.name == policy.name)
        sizes = [(event.phase, event.total) for event in pool.events() if event.policy in (policy.name, None)]
        for phase, size in [*sizes, (WAITING, total(pool.waiting(here)))]:
            found[phase] = max(found.get(phase, 0.0), size / GIB)
    return found


def _pool(pool: Pool, usual: Pool, shape: Sequence[int], host: Terms) -> JsonObject:
    event = worst(pool)
    return {
        "policies": [policy.name for policy in pool.policies],
        "nodes": len(shape),
        "gpus_per_node": shape[0],
        "phases": pool.phases,
        "worst": _named(event, pool),  # the phase and policy of the worst moment
        "gpu": event.total / GIB,  # memory of one GPU at the worst moment
        "expected": worst(usual).total / GIB,  # like `gpu`, with rows of the usual length
        "parts": _gib(event.parts),  # the terms of `gpu`
        "host": total(host) / GIB,  # host memory of each node, without the processes themselves
        "host_parts": _gib(host),
    }


def _gib(terms: Terms) -> dict[str, float]:
    return {name: size / GIB for name, size in sorted(terms.items(), key=lambda item: -item[1]) if size}


def _named(event: Moment, pool: Pool) -> str:
    together = "all policies together" if len(pool.policies) > 1 else pool.policies[0].name
    return f"{event.phase} of {event.policy or together}"


def _worst_node(shapes: Mapping[str, Sequence[int]], host: Mapping[str, float], hardware: Hardware) -> float:
    """Host memory of the worst node. Ray may place several pools on one node if their GPUs fit. In the worst case
    the largest pools are placed together."""
    free, taken = hardware.gpus_per_node, 0.0
    for name in sorted(shapes, key=lambda name: -host[name]):
        if shapes[name][0] <= free:
            free, taken = free - shapes[name][0], taken + host[name]
    return taken or max(host.values(), default=0.0)


def _too_few_gpus(shapes: Mapping[str, Sequence[int]], gpus: int, hardware: Hardware) -> Iterator[ConfigError]:
    for name, shape in shapes.items():
        if shape[0] > hardware.gpus_per_node:
            yield ConfigError(
                f"pool {name}: {shape[0]} GPUs per node, --gpus has {hardware.gpus_per_node}",
                rule="the GPUs of a pool on one node are on one machine",
                fix=f"lower trainer.n_gpus_per_node or mas.pools.{name}.n_gpus_per_node, or write --gpus "
                f"{f'{hardware.nodes}x' if hardware.nodes > 1 else ''}{shape[0]}x{hardware.gb:g}",
            )
    if gpus > hardware.gpus:
        yield ConfigError(
            f"the run reserves {gpus} GPUs, --gpus has {hardware.gpus}",
            rule="every pool reserves its GPUs for the whole run",
            fix="lower trainer.nnodes or trainer.n_gpus_per_node (of a pool: mas.pools.<pool>), put the policies on "
            "one pool, or plan for more GPUs",
        )


def _fix(pool: Pool, gpus: int, larger: Larger | None) -> str:
    found = fit.fixes(pool, gpus, larger)
    apart = ", or a pool per policy (mas.pools)" if len(pool.policies) > 1 else ""
    return "; or ".join(f"set {settings}" for settings in found) or f"use more or larger GPUs, a smaller model{apart}"


def _lacking(name: str, pool: Pool, usual: Pool, step: Step, change: str) -> list[Problem]:
    """Report which rows do not fit on a pool. The cases are one longest row per micro batch, usual rows, and micro
    batches full of longest rows, which are reported only if the first two cases fit."""
    found = [[*_memory(name, rows, change)] for rows in (fit.one_row(pool), usual)]
    # An error for either kind of rows takes precedence over a warning for the other kind.
    refused = next((each for each in found if any(isinstance(one, ConfigError) for one in each)), None)
    return refused or found[0] or found[1] or [_crowded(name, pool, usual, step, change)]


def _memory(name: str, pool: Pool, change: str) -> Iterator[Problem]:
    """Check a pool with one longest row in each micro batch, or with usual rows.

    A pool that exceeds the card even without the terms in ROUGH is an error. A pool that leaves less than the usual
    reserve of memory gets a warning. A KV cache that cannot hold one row is an error. If it holds a row, but not the
    context that the engine needs to start, there is a warning.
    """
    event, card = worst(pool), pool.card / GIB
    taken = _taken(name, pool, event)
    if event.total - sum(event.own.get(part, 0.0) for part in ROUGH) > pool.card:
        rule = f"a GPU has {card:.1f} GiB; with usual rows, and with one longest row, estimated: docs/train/plan.md"
        yield ConfigError(taken, rule=rule, fix=change)
    elif event.total > SAFE * pool.card and not too_small(pool):  # the loop below reports a KV cache that is too small
        above = "only with fewer bytes of contexts, CUDA graphs and images than estimated"
        why = above if event.total > pool.card else "fragments may take more than what is left"
        yield ConfigWarning(taken, f"estimated, of {card:.1f} GiB: {why}", change)
    for policy in too_small(pool):
        held, needed = tokens(pool, policy), needed_tokens(policy)
        value = f"policy {policy.name}: the KV cache of {policy.engine} holds {held} tokens"
        if held < policy.row:
            yield ConfigError(value, rule=f"a row has up to {policy.row} tokens", fix=change)
            continue
        unset = "" if policy.max_model_len else ", the model's context, as rollout.max_model_len is null"
        reason = f"estimated; the engine starts only if it can hold a request of {needed} tokens{unset}"
        yield ConfigWarning(value, reason, change)


def _taken(name: str, pool: Pool, event: Moment) -> str:
    parts = ", ".join(f"{part} {size:.1f}" for part, size in _gib(event.parts).items())
    return f"pool {name}: {_named(event, pool)} takes {event.total / GIB:.1f} GiB per GPU ({parts})"


def _crowded(name: str, pool: Pool, usual: Pool, step: Step, change: str) -> ConfigWarning:
    """Warn about a pool that fits with one longest row per micro batch, but not with micro batches full of longest
    rows. `usual`: the same pool with usual rows."""
    event, most, share = worst(pool), SAFE * pool.card / GIB, fit.room(pool)
    policy = next(policy for policy in pool.policies if policy.name == event.policy)
    size = policy.log_prob_tokens if event.phase == LOG_PROBS else policy.update_tokens
    rows = max(1.0, policy.rows / policy.trainers / policy.updates) if policy.by_tokens else size / policy.row
    how = fit.odds(share * size / rows / policy.row, step.length / policy.row, rows, policy.rows / rows)
    return ConfigWarning(
        f"{'worst case' if fits(usual) else 'expected'}: {_taken(name, pool, event)}, and {most:.1f} fit",
        f"only if a micro batch has more than {share * size:,.0f} of the {size:,} tokens that it can have; rows of the "
        f"usual length take {worst(usual).total / GIB:.1f} GiB. Odds: {how}",
        change,
    )


def _long_context(pool: Pool) -> Iterator[ConfigWarning]:
    for policy in pool.policies:
        held, needed = tokens(pool, policy), int(MARGIN * policy.context)
        if policy.max_model_len is None and needed_tokens(policy) <= held < needed:
            must = policy.memory.holds_context
            starts = ", and the engine starts only if it can hold one such request" if must else ""
            yield ConfigWarning(
                f"policy {policy.name}: rollout.max_model_len is null, so a request may have {policy.context} tokens",
                f"the KV cache holds {held} by an estimate{starts}",
                f"set {policy.section}.rollout.max_model_len={policy.row}, the longest prompt and response",
            )
