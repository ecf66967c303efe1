"""Output of `verl-mas plan`: a table of memory, the policies, the time of a step, and a verdict."""

from collections.abc import Iterator, Mapping, Sequence

from rich.markup import escape
from rich.table import Table

from verl_mas.checks.report import CheckReport
from verl_mas.cli._output import console, wrapped
from verl_mas.planning.events import LOG_PROBS, ROLLOUT, START, SYNC, UPDATE, WAITING
from verl_mas.planning.hardware import GIB, SAFE
from verl_mas.planning.plan import RunPlan
from verl_mas.planning.step import Step
from verl_mas.workflow.codecs import JsonObject

PHASES = {
    START: "engine start",
    SYNC: "weight sync: the engine gets weights",
    ROLLOUT: "rollout: the engines sample",
    LOG_PROBS: "log-probs of the rows",
    UPDATE: "update",
    WAITING: "held while another policy trains",
}


PUBLISHED = "1.2 to 2.9"  # factors by which published hours are below their plans, from docs/train/plan.md


def show(plan: RunPlan, report: CheckReport) -> None:
    out = console()
    out.print(f"Estimated, not measured on a GPU, for {plan.hardware}", markup=False, highlight=False)
    if plan.policies:
        most = f"{SAFE * plan.hardware.card / GIB:.1f} ({SAFE:g} of the card)"
        out.print(f"GiB per GPU, with all policies of its pool: at most {most}", highlight=False)
        out.print(memory(plan))
    out.print(wrapped("\n".join(_lines(plan))), markup=False, highlight=False)
    verdict = f"{report.problems.removesuffix(report.verdict)}{_verdict(plan, accepted=report.accepted)}"
    out.print(wrapped(verdict), style="green" if report.accepted else "red", markup=False, highlight=False)


def show_all(plans: Mapping[str, tuple[RunPlan | None, CheckReport]]) -> None:
    """Print a row per machine, then the first error of each machine on which the run is refused."""
    table = Table("GPUs", "GiB per GPU", "s per step", "hours", "GPU hours", "", box=None)
    for gpus, (plan, report) in plans.items():
        verdict = _verdict(plan, accepted=report.accepted).partition(":")[0] if plan else "refused"
        table.add_row(gpus, *_row(plan), verdict)
    out = console()
    out.print("Estimated, not measured on a GPU, for runs that use the whole machine")
    out.print(table)
    if not any(plan.time and plan.time["hours"] for plan, _ in plans.values() if plan):
        out.print("hours: add --assume steps=N, or put the data where the run reads it")
    for gpus, (_, report) in plans.items():
        for error in report.errors[:1]:
            out.print(wrapped(f"{gpus}: {error.value}\n  fix: {error.fix}"), markup=False, highlight=False)


def _row(plan: RunPlan | None) -> Sequence[str]:
    """Format the cells of a row. Unknown numbers are empty: a run that does not fit has no time, and a run without
    data has no hours."""
    if plan is None:
        return [""] * 4
    sizes = ([pool[size] for pool in plan.pools.values()] for size in ("expected", "gpu"))
    memory = " to ".join(dict.fromkeys(f"{max(of_pools, default=0.0):.1f}" for of_pools in sizes))
    if plan.time is None or not plan.fits:
        return [memory, "", "", ""]
    seconds, steps = list(filter(None, (plan.time["seconds"], plan.time["limit"]))), plan.time["step"].steps
    hours = [steps * each / 3600 for each in seconds] if steps else []
    columns = seconds, hours, [each * plan.gpus for each in hours]
    return [memory, *(" to ".join(f"{each:,.0f}" for each in column) for column in columns)]


def memory(plan: RunPlan) -> Table:
    """Make a table with one column per policy. A phase has two rows if its memory in the worst case, with the longest
    micro batches, differs from the expected memory."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("", *map(escape, plan.policies)):
        table.add_column(title, justify="right" if title else "left")
    for phase, label in PHASES.items():
        worst, usual = (
            ["-" if (size := of.get(phase)) is None else f"{size:.1f}" for of in sizes]
            for sizes in zip(*((policy["gpu"], policy["expected"]) for policy in plan.policies.values()), strict=True)
        )
        if worst != usual:
            table.add_row(f"  {label}: expected", *usual)
            table.add_row(f"  {label}: worst case", *worst)
        elif phase != WAITING or len(plan.policies) > 1:
            table.add_row(f"  {label}", *worst)
    return table


def _lines(plan: RunPlan) -> Iterator[str]:
    if plan.time is not None:
        yield from _time(plan.time)
    for name, policy in plan.policies.items():
        yield from _policy(name, policy)
    for name, pool in plan.pools.items():
        nodes = f"{pool['nodes']} x " if pool["nodes"] > 1 else ""
        yield f"pool {name}: {nodes}{pool['gpus_per_node']} GPUs" + (", in phases" if pool["phases"] else "")
        yield f"  fullest moment: {pool['worst']}, {pool['gpu']:.1f} GiB per GPU: {_parts(pool['parts'], 1)}"
        parts = f": {_parts(pool['host_parts'], 0)}" if pool["host"] else ""
        yield f"  host memory: {pool['host']:.0f} GiB per node{parts}"
    unused = "" if plan.gpus >= plan.hardware.gpus else "; trainer.n_gpus_per_node, trainer.nnodes and mas.pools say so"
    yield f"GPUs: {plan.gpus} of {plan.hardware.gpus} are used{unused}"
    yield f"host memory: {plan.host:.0f} GiB on a node, beside the processes themselves"
    kept = "all are kept" if plan.kept is None else f"{plan.kept} are kept: {plan.kept * plan.disk:.0f} GiB"
    yield f"disk: {plan.disk:.0f} GiB per checkpoint; {kept}, as trainer.max_actor_ckpt_to_keep says"
    for note in dict.fromkeys(note for policy in plan.policies.values() for note in policy["notes"]):
        yield f"note: {note}"


def _policy(name: str, policy: JsonObject) -> Iterator[str]:
    billions = policy["parameters"] / 1e9
    yield f"policy {name}: {policy['model']}, {billions:.2f} B parameters (from {policy['source']})"
    held = f"{policy['kv_tokens']:,} tokens in each: {policy['concurrent']} requests of {policy['context']:,}"
    yield f"  {policy['engine']} engines: {policy['replicas']}, with room for {held} at once in all"
    if policy["updates"] is not None:
        yield f"  optimizer steps per training step: {policy['updates']}; a checkpoint takes {policy['disk']:.0f} GiB"
    if policy["path"]:
        yield f"  {policy['path']}"
    for adapter, of in policy["adapters"].items():
        size = f"rank {of['rank']}, {of['parameters'] / 1e6:.1f} M parameters"
        yield f"  adapter {adapter}: {size}; optimizer steps: {of['updates']}; a checkpoint takes {of['disk']:.1f} GiB"


def _time(time: JsonObject) -> Iterator[str]:
    step: Step = time["step"]
    seconds, hours, limit, alone = (time[key] for key in ("seconds", "hours", "limit", "alone"))
    each = f"a prompt of {step.prompt:,.0f} and a reply of {step.response:,.0f} tokens"
    yield f"step: {step.sessions:,} sessions x {step.acts:.1f} acts = {step.rows:,.0f} rows, each {each}"
    yield from (f"  {name}: {source}" for name, source in step.sources.items())
    if step.group > 1:
        whole, computed = (step.rows * each / 1e6 for each in (step.length, step.computed))
        yield f"  trained: {whole:,.2f} M tokens; computed with mas.shared_prefixes: {computed:,.2f} M"
    run = "; hours of a run: add --assume steps=N" if hours is None else f"; {hours:,.1f} h for the run"
    yield f"time: {seconds:,.0f} s per step ({_parts(time['phases'], 0)}){run}"
    if limit:
        longest = f", {hours * limit / seconds:,.1f} h for the run" if hours else ""
        yield f"  with replies of data.max_response_length={step.longest:,}: {limit:,.0f} s per step{longest}"
    yield f"  published hours of six runs are {PUBLISHED} times below their plans: docs/train/plan.md"
    if step.acts > 1:
        tokens = step.rows * step.length / (step.alone.rows * step.alone.length)
        cost = f"{seconds / alone:.1f} times the time, {tokens:.1f} times the tokens"
        yield f"  one agent that acts once: {alone:,.0f} s per step; the team takes {cost}"
    yield f"  assumed (of H100s; --assume changes them): {step.assumed}"


def _parts(parts: Mapping[str, float], digits: int) -> str:
    return ", ".join(f"{name} {size:.{digits}f}" for name, size in parts.items())


def _verdict(plan: RunPlan, *, accepted: bool) -> str:
    if not accepted:
        return "does not fit" if not plan.fits else "refused"
    if not plan.pools:
        return "fits: no policy is served here"
    worst = max(pool["gpu"] for pool in plan.pools.values())
    usual = max(pool["expected"] for pool in plan.pools.values())
    card = plan.hardware.card / GIB
    if usual <= SAFE * card:
        return f"fits: {usual:.1f} of {SAFE * card:.1f} GiB per GPU are expected, and {worst:.1f} in the worst case"
    only_if = "contexts, CUDA graphs and images take less than estimated" if usual > card else "little is fragmented"
    return f"tight: {usual:.1f} GiB per GPU are expected, and a GPU has {card:.1f}: it fits only if {only_if}"
