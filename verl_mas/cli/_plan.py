"""What `verl-mas plan` prints: tables of memory and policies, and a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from verl_mas.checks.report import CheckReport
from verl_mas.cli._output import console
from verl_mas.planning.events import LOG_PROBS, ROLLOUT, START, SYNC, UPDATE, WAITING
from verl_mas.planning.hardware import GIB, SAFE
from verl_mas.planning.plan import RunPlan

PHASES = (START, SYNC, ROLLOUT, LOG_PROBS, UPDATE, WAITING)


def show(plan: RunPlan, report: CheckReport) -> None:
    out = console()
    out.print(f"Estimated, not measured on a GPU, for {plan.hardware}", markup=False, highlight=False)
    if plan.policies:
        out.print(memory(plan))
        out.print(policies(plan))
    for line in _lines(plan):
        out.print(line, markup=False, highlight=False)
    verdict = f"{report.problems.removesuffix(report.verdict)}{_verdict(plan, accepted=report.accepted)}"
    out.print(verdict, style="green" if report.accepted else "red", markup=False, highlight=False)


def memory(plan: RunPlan) -> Table:
    """A GPU of the pool in each phase, with what the other policies hold."""
    most = SAFE * plan.hardware.card / GIB
    table = _table(f"GiB per GPU by phase, at most {most:.1f} ({SAFE:g} of the card)", ["policy"], PHASES)
    for name, policy in plan.policies.items():
        table.add_row(name, *(f"{policy.gpu[phase]:.1f}" if phase in policy.gpu else "-" for phase in PHASES))
    return table


def policies(plan: RunPlan) -> Table:
    right = ("KV tokens", "requests", "steps", "disk")
    table = _table("policies", ["policy", "model", "engine"], right)
    for name, policy in plan.policies.items():
        table.add_row(
            name,
            escape(f"{policy.model}, {policy.parameters / 1e9:.2f} B"),
            f"{policy.replicas} x {policy.engine}",
            f"{policy.kv_tokens:,}",
            f"{policy.concurrent} x {policy.context:,}",
            "-" if policy.updates is None else str(policy.updates),
            f"{policy.disk:.0f} GiB",
        )
        for adapter, of in policy.adapters.items():
            share = f"rank {of.rank} on {name}, {of.parameters / 1e6:.1f} M"
            table.add_row(adapter, share, "", "", "", str(of.updates), f"{of.disk:.1f} GiB")
    return table


def _table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for column in left:
        table.add_column(column)
    for column in right:
        table.add_column(column, justify="right")
    return table


def _lines(plan: RunPlan) -> Iterator[str]:
    for name, pool in plan.pools.items():
        nodes = f"{pool.nodes} x " if pool.nodes > 1 else ""
        yield f"pool {name}: {nodes}{pool.gpus_per_node} GPUs" + (", in phases" if pool.phases else "")
        yield f"  at most {pool.gpu:.1f} GiB per GPU, {pool.worst}: {_parts(pool.parts, 1)}"
        yield f"  host memory: {pool.host:.0f} GiB per node" + (f": {_parts(pool.host_parts, 0)}" if pool.host else "")
    unused = "" if plan.gpus >= plan.hardware.gpus else ", by trainer.n_gpus_per_node, trainer.nnodes and mas.pools"
    yield f"GPUs: {plan.gpus} of {plan.hardware.gpus}{unused}"
    yield f"rows: {plan.sessions} per step for each act that an agent makes once in every session"
    kept = "all are kept" if plan.kept is None else f"{plan.kept} are kept: {plan.kept * plan.disk:.0f} GiB"
    yield f"disk: {plan.disk:.0f} GiB per checkpoint; {kept}, as trainer.max_actor_ckpt_to_keep says"
    yield f"host memory: {plan.host:.0f} GiB on a node, beside the processes themselves"
    for source in dict.fromkeys((policy.model, policy.source) for policy in plan.policies.values()):
        yield f"{source[0]}: {source[1]}"
    for note in dict.fromkeys(note for policy in plan.policies.values() for note in policy.notes):
        yield f"note: {note}"


def _parts(parts: Mapping[str, float], digits: int) -> str:
    return ", ".join(f"{name} {size:.{digits}f}" for name, size in parts.items())


def _verdict(plan: RunPlan, *, accepted: bool) -> str:
    if accepted:
        if not plan.pools:
            return "fits: no policy is served here"
        worst = max(pool.gpu for pool in plan.pools.values())
        return f"fits: at most {worst:.1f} of {SAFE * plan.hardware.card / GIB:.1f} GiB per GPU"
    return "does not fit" if not plan.fits else "refused"
