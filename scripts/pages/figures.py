"""The figures of docs/start/concepts.md and docs/train/advantages.md as SVG, for the light and the dark mode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

STYLE = """\
<style>
  text { font: 14px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }
  .title { font-weight: 600; font-size: 15px }
  .small { font-size: 12px; fill: #57606a }
  .page { fill: #ffffff }
  .ours { fill: #eef2ff; stroke: #4f5bd5; stroke-width: 1.5 }
  .verl { fill: #f6f8fa; stroke: #8c959f; stroke-width: 1.5 }
  .group { fill: none; stroke: #57606a; stroke-width: 1.5; stroke-dasharray: 5 4 }
  .line { fill: none; stroke: #57606a; stroke-width: 1.8 }
  .head { fill: #57606a }
  .solver { fill: #0072b2 } .verifier { fill: #d55e00 } .chip { fill: #ffffff; font-weight: 600; font-size: 12px }
  .left { fill-opacity: 0.25 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9da7b3 } .page { fill: #1e2129 }
    .ours { fill: #262b4a; stroke: #8c96ff } .verl { fill: #2a2f38; stroke: #8b949e }
    .group, .line { stroke: #9da7b3 } .head { fill: #9da7b3 }
    .solver { fill: #4ba3dc } .verifier { fill: #f08a4b } .chip { fill: #10131a }
  }
</style>
<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8"
 orient="auto-start-reverse">
<path class="head" d="M0 0L10 5L0 10z"/></marker></defs>
"""


def svg(width: int, height: int, label: str, parts: Iterator[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">\n'
    return head + STYLE + f'<rect class="page" width="{width}" height="{height}"/>\n' + "\n".join(parts) + "\n</svg>\n"


def box(x: int, y: int, width: int, height: int, kind: str) -> str:
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{content}</text>'


def lines(x: float, y: float, *contents: str) -> Iterator[str]:
    yield from (text(x, y + 18 * index, content, "small") for index, content in enumerate(contents))


def chip(x: int, y: int, agent: str, label: str | None = None, width: int = 84) -> Iterator[str]:
    yield f'<rect class="{agent}" x="{x}" y="{y}" width="{width}" height="26" rx="13"/>'
    yield text(x + width / 2, y + 17.5, label or agent, "chip", "middle")


def arrow(path: str, both: bool = False) -> str:
    start = ' marker-start="url(#arrow)"' if both else ""
    return f'<path class="line" d="{path}" marker-end="url(#arrow)"{start}/>'


def architecture() -> Iterator[str]:
    """Draw a step as a loop: tasks, sessions, rows, advantages, updates, engines."""
    yield from sampling()
    yield from training()
    yield '<rect class="ours" x="20" y="484" width="22" height="16" rx="3"/>' + text(50, 497, "verl-mas", "small")
    yield '<rect class="verl" x="130" y="484" width="22" height="16" rx="3"/>' + text(160, 497, "verl", "small")


def sampling() -> Iterator[str]:
    """Draw the upper half: a task becomes sessions, and their acts become rows."""
    yield box(20, 96, 150, 92, "verl")
    yield text(36, 122, "Task", "title")
    yield from lines(36, 144, "a row of the dataset;", "n sessions of each")
    yield arrow("M170 142H222")

    yield from (box(226 + shift, 24 + shift, 330, 236, "ours") for shift in (12, 6, 0))
    yield text(244, 50, "Session: Workflow.run(task, team)", "title")
    yield from chip(244, 70, "solver")
    yield from chip(346, 70, "verifier")
    yield from chip(448, 70, "solver")
    yield arrow("M328 83H343") + arrow("M430 83H445")
    acts = (
        "An act is one call of an LLM. The program",
        "decides at run time who acts next; acts may",
        "be parallel, branch, or call tools.",
        "The outcome sets the rewards: the team's,",
        "and each act's own.",
    )
    yield from lines(244, 124, *acts)
    yield text(244, 244, "in verl's agent-loop workers", "small")
    yield arrow("M568 142H622")

    yield box(626, 24, 314, 236, "ours")
    yield text(644, 50, "Rows: one per act, tagged", "title")
    for index, (agent, turn) in enumerate((("solver", 0), ("verifier", 0), ("solver", 1))):
        y = 66 + 34 * index
        yield from chip(644, y, agent)
        yield text(742, y + 18, f"policy, session, turn {turn}, reward", "small")
    stay = ("Tokens and log-probs stay in verl's", "TransferQueue; only tags reach the trainer's", "driver.")
    yield from lines(644, 194, *stay)


def training() -> Iterator[str]:
    """Draw the lower half from right to left: advantages, updates, and the engines of the next sampling."""
    yield arrow("M783 260V322")
    yield box(626, 326, 314, 140, "ours")
    yield text(644, 352, "Advantages", "title")
    compared = (
        "All rows of the step together: a row is",
        "compared with its group, with agent_grpo",
        "the rows of its agent in all sessions of",
    )
    yield from lines(644, 376, *compared, "the task. Groups may span policies.")
    yield arrow("M626 396H572")

    yield box(318, 326, 250, 140, "verl")
    yield text(336, 352, "A trainer per policy", "title")
    yield from chip(336, 366, "solver", width=96)
    yield from chip(444, 366, "verifier", width=96)
    yield from lines(
        336, 414, "verl's own: log-probs, update,", "checkpoint; frozen, adapter or", "one shared policy as configured"
    )
    yield arrow("M318 396H264")
    yield text(291, 386, "weights", "small", "middle")

    yield box(20, 326, 240, 140, "verl")
    yield text(38, 352, "Engines per policy", "title")
    yield from chip(38, 366, "solver", width=96)
    yield from chip(146, 366, "verifier", width=96)
    yield from lines(
        38, 414, "vLLM, SGLang or the embedded", "one; on one pool of GPUs or on", "several, together or in phases"
    )
    yield arrow("M244 322V276", both=True)
    yield text(234, 302, "prompts, replies", "small", "end")


def dot(x: float, y: float, agent: str, left: bool = False) -> str:
    return f'<circle class="{agent}{" left" if left else ""}" cx="{x}" cy="{y}" r="9"/>'


COLUMNS = (("solver", 120), ("verifier", 185), ("solver", 250))
SESSIONS = 4


def sessions(x: int) -> Iterator[str]:
    """Draw four sessions of a task, with three acts each."""
    for index in range(SESSIONS):
        y = 96 + 46 * index
        yield text(x + 14, y + 5, f"session {index}", "small")
        yield f'<path class="line" d="M{x + 129} {y}H{x + 176}M{x + 194} {y}H{x + 241}"/>'
        yield from (dot(x + column, y, agent) for agent, column in COLUMNS)


def outline(x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="group" x="{x}" y="{y}" width="{width}" height="{height}" rx="14"/>'


def groups() -> Iterator[str]:
    """Draw the groups in which three estimators compare rows."""
    yield text(14, 34, "agent_grpo", "title") + text(14, 54, "an agent's acts in all sessions of a task", "small")
    yield from sessions(0)
    yield outline(170, 76, 30, 170)
    # The group of the solver encloses both of its columns, around the verifier's.
    yield '<path class="group" d="M108 76H132V254H238V76H262V272H108z"/>'
    yield text(14, 300, "two groups: 8 acts of solver, 4 of verifier", "small")

    yield text(334, 34, "team_grpo", "title") + text(334, 54, "all acts of a task, each session once", "small")
    yield from sessions(320)
    yield outline(426, 76, 158, 178)
    yield text(334, 300, "one group: the control for the others", "small")

    yield text(654, 34, "at_grpo", "title") + text(654, 54, "the K candidates of one prompt", "small")
    for step, agent in enumerate(("solver", "verifier", "solver")):
        x = 690 + 100 * step
        yield outline(x - 16, 76, 32, 178)
        for index in range(SESSIONS):
            yield dot(x, 96 + 46 * index, agent, left=index != step)
        if step < 2:
            yield arrow(f"M{x + 12} {96 + 46 * step}C{x + 50} {96 + 46 * step} {x + 40} 165 {x + 80} 165")
    yield text(654, 300, "a group per act; full: committed, the session", "small")
    yield text(654, 318, "continues with it; all candidates are trained on", "small")


def page_architecture(root: Path) -> str:
    return svg(
        960, 512, "The loop of a training step: tasks, sessions, rows, advantages, trainers, engines", architecture()
    )


def page_groups(root: Path) -> str:
    return svg(960, 334, "Groups of three estimators on four sessions of a task", groups())
