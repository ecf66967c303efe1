"""Small runs with made-up sessions, for the tests of the viewer."""

import json
from collections.abc import Iterable, Sequence
from copy import deepcopy
from pathlib import Path

import verl_mas
from verl_mas.run_folder.records import Record, packed, unpacked
from verl_mas.trainer.timeline import CHECKS, ENGINE, FILE, LAUNCH, SAMPLE, START, STEP, UPDATE, TimelineEvent

# The record of a session, in which a test changes what it needs.
PLAYED = verl_mas.run(
    "single",
    verl_mas.Task([{"role": "user", "content": "2 + 2?"}], "4", data_source="sums", extra_info={"index": 0}),
    verl_mas.ScriptedLLM("Answer: 4"),
)
SESSION = unpacked(packed(PLAYED.record("finished"))) | {"started": 1.79e9, "seconds": 2.0}
[ACT] = SESSION["acts"]
ACT |= {"key": None, "prompt_tokens": 8, "response_tokens": 3, "sampled_tokens": 3, "stop_reason": "stop"}
ACT |= {"started": 0.0, "seconds": 1.0, "reward": {**ACT["reward"], "team": 1.0, "score": 1.0}}
# Texts with which a model, a tool or a user may try to break out of its element in the page.
HOSTILE = [
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "<!--<script>",
    "\u2028\u2029 line separators",
    "\x1b[2J\x1b]0;owned\x07 an escape",
    "right to left \u202eevil\u202c and \u2066isolate",
    "{{ title }} ${document.title='owned'} `;document.title='owned'//",
    "a lone surrogate \udc80, a null \x00",
]


def act(agent: str = "solver", text: str = "Answer: 4", **more: object) -> Record:
    messages = [{"role": "system", "content": f"You are {agent}."}, {"role": "user", "content": "2 + 2?"}]
    own = {"agent": agent, "role": agent, "messages": messages, "text": text}
    return {**deepcopy(ACT), **own, **more}


def session(step: int = 1, uid: str = "1-0", number: int = 0, reward: float | None = 1.0, **more: object) -> Record:
    acts = more.pop("acts", None) or [act(), act("checker", "Verdict: right")]
    assert isinstance(acts, list)
    keyed = [{**one, "key": one["key"] or f"{uid}_{number}_{place}"} for place, one in enumerate(acts)]
    own = {"uid": uid, "group": uid, "session": number, "step": step, "acts": keyed}
    own["outcome"] = {"answer": "4", "reward": reward, "info": {}}
    return {**deepcopy(SESSION), **own, **more}


def write_run(folder: Path, records: Sequence[Record], worker: str = "0") -> Path:
    """Write these sessions into a run's folder, in the files of their steps. Later calls add more."""
    for record in records:
        name = f"{record['step']:06d}-20261123T000000000000Z-{worker}.jsonl"
        path = folder / "trajectories" / record["partition"] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(packed(record))
    return folder


def write_metrics(folder: Path, steps: int = 3, equal: Sequence[str] = ()) -> Path:
    lines = []
    for step in range(1, steps + 1):
        different = {"agent/solver/reward/score": step / 4, "agent/checker/malformed": 0.5}
        metrics = dict.fromkeys(equal, step / 7) or different
        lines.append(f"{json.dumps({'step': step, 'time': step, 'metrics': metrics})}\n")
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


def write_timeline(folder: Path, steps: Iterable[int], started: bool = False) -> None:
    """Write the timeline of steps of ten seconds: sampling takes two seconds, an update three. `started`: also write a
    start of six seconds."""
    lines, steps = ["["], list(steps)
    if started:
        at = 10.0 * steps[0] - 6
        parts = [TimelineEvent(CHECKS, steps[0], at, at + 2), TimelineEvent(LAUNCH, steps[0], at + 2, at + 6, "solver")]
        parts = [TimelineEvent(START, steps[0], at, at), *parts]
        lines += [f"{json.dumps(part.trace())}," for part in parts]
    for step in steps:
        at = 10.0 * step
        spans = [
            TimelineEvent(STEP, step, at, at),
            TimelineEvent(SAMPLE, step, at, at + 2),
            TimelineEvent(ENGINE, step, at, at + 1.5, "solver", "main"),
            TimelineEvent(UPDATE, step, at + 2, at + 5, "solver", "main"),
        ]
        lines += [f"{json.dumps(span.trace())}," for span in spans]
    (folder / FILE).write_text("\n".join(lines) + "\n")
