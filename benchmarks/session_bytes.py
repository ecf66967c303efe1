"""Measure session records: bytes per session relative to plain lines of schema 1, and seconds to write and list them.

    python benchmarks/session_bytes.py
    python benchmarks/session_bytes.py --records RUN/trajectories

Without arguments, a scripted model plays sessions of two shapes. A step of `demo` is one of `plan_path/laptop`: 12
sessions of two agents, with 8 candidates per act and replies of 2 tokens. A step of `text` has 32 tasks x 8 sessions of
solver_verifier with replies of 300 tokens; the replies are consecutive parts of Python's library, so no text repeats.
With `--records`, the script writes the sessions of a run with records of schema 1 again.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import itertools
import json
import random
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow

from verl_mas.config.schema import BranchSpec, PolicySpec, TrajectorySpec
from verl_mas.gym.puzzles.data import tiny_workflow
from verl_mas.gym.puzzles.puzzle import row
from verl_mas.results.sessions.reader import SessionIndex, read_sessions
from verl_mas.rollout.trajectories import TrajectoryWriter
from verl_mas.run_folder.disk import size_of
from verl_mas.run_folder.records import Record, listed, packed, plain, unpacked
from verl_mas.run_folder.session_files import TABLE, file_of, write_advantages, write_table
from verl_mas.util.splits import TRAIN
from verl_mas.workflow import Generation, Request, Task, Workflow
from verl_mas.workflow.agents import resolve_agents
from verl_mas.workflow.run import run_session
from verl_mas.workflow.session import SessionConfig, SessionResult
from verl_mas.workflows.solver_verifier import SolverVerifier

STEPS = 3
# Fields that schema 1 did not have.
NEW = {"group", "uniform", "tokens"}


class Script:
    """A scripted model with `token` characters per token. Its log-probs are like those of an LLM: most tokens are
    nearly certain."""

    def __init__(self, reply: Callable[[Request], str], token: int):
        self.reply, self.token, self.rng = reply, token, random.Random(0)
        self.ids: dict[str, int] = {}
        self.pieces: list[str] = []

    async def generate(self, request: Request, n: int = 1) -> list[Generation]:
        return [self._one(self.reply(request)) for _ in range(n)]

    def _one(self, text: str) -> Generation:
        pieces = [text[start : start + self.token] for start in range(0, len(text), self.token)]
        ids = [self.ids.setdefault(piece, len(self.ids)) for piece in [*pieces, "<|im_end|>"]]
        self.pieces += list(self.ids)[len(self.pieces) :]
        log_probs = [-self.rng.expovariate(1) * self.rng.random() ** 3 for _ in ids]
        return Generation(text, "stop", range(200), ids, [1] * len(ids), log_probs, len(ids), 1.0)

    def texts(self, ids: Sequence[int]) -> list[str]:
        return [self.pieces[token] for token in ids]


@dataclass(frozen=True)
class Shape:
    workflow: Callable[[], Workflow]
    llm: Script
    tasks: Callable[[int], Iterator[Task]]
    branch: BranchSpec

    def sessions(self, step: int) -> list[SessionResult]:
        config = SessionConfig(
            resolve_agents(self.workflow().agents, {}, {"main": PolicySpec()}), {"main": self.llm}, self.branch
        )

        async def play() -> list[SessionResult]:
            return [await run_session(self.workflow, task, config) for task in self.tasks(step)]

        return asyncio.run(play())


def demo() -> Shape:
    rng = random.Random(0)

    def reply(request: Request) -> str:
        return rng.choice("UDLR")

    def tasks(step: int) -> Iterator[Task]:
        for number in range(12):
            fields = row("plan_path", 12 * step + number, TRAIN, {"size": 4, "min_distance": 5})
            info = fields["extra_info"]
            assert isinstance(info, dict)
            yield Task(
                [{"role": "user", "content": f"plan_path train {number}"}],
                extra_info=info,
                uid=f"{step}-{number}",
                step=step,
            )

    args = {"moves": 1, "max_turns": 8}
    return Shape(
        lambda: tiny_workflow("planner_executor", args), Script(reply, 1), tasks, BranchSpec(k=8, commit="uniform")
    )


def text() -> Shape:
    # Skip files with tables of characters.
    library = [file for file in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")) if "encod" not in str(file)]
    characters = itertools.chain.from_iterable(file.read_text(errors="replace") for file in library)

    def words(count: int) -> str:
        return "".join(itertools.islice(characters, 4 * count))

    def reply(request: Request) -> str:
        return words(300) + ("<verify>reject</verify>" if request.agent == "verifier" else "\\boxed{4}")

    def tasks(step: int) -> Iterator[Task]:
        for number in range(32):
            messages = [{"role": "user", "content": words(120)}]
            yield from (Task(messages, uid=f"{step}-{number}", session=session, step=step) for session in range(8))

    return Shape(lambda: SolverVerifier(max_rounds=2), Script(reply, 4), tasks, BranchSpec())


def schema_1(record: Record) -> bytes:
    """Return the line that earlier versions wrote for a session. It has times with all their digits."""
    acts = [{name: value for name, value in act.items() if name not in NEW} for act in record["acts"]]
    for act in acts:
        act["reward"] = {name: value for name, value in act["reward"].items() if name != "parts"}
        act["seconds"] += 1e-9 / 7
    old = {name: value for name, value in record.items() if name not in NEW}
    return f"{json.dumps({**old, 'schema': 1, 'acts': acts}, ensure_ascii=False, default=plain)}\n".encode()


def advantages_of(records: Sequence[Record], rng: random.Random) -> dict[str, float]:
    return {act["key"]: rng.gauss(0, 1) for record in records for act in record["acts"] if act["key"]}


def measure(name: str, shape: Shape) -> list[bytes]:
    """Print the cost of a shape's records, and return the lines of all its steps."""
    rng = random.Random(0)
    steps = [shape.sessions(step) for step in range(STEPS)]
    count = sum(map(len, steps))
    before = 0
    for results in steps:
        records = [result.session.record("finished") for result in results]
        before += sum(len(schema_1(record)) for record in records) + len(json.dumps(advantages_of(records, rng)))
    print(f"{name}: {count} sessions in {STEPS} steps; schema 1: {before / count:,.0f} bytes per session")
    lines: list[bytes] = []
    for tokens in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            spec = TrajectorySpec(tokens=tokens)
            writer = TrajectoryWriter(spec, folder, "a", tokens={"main": shape.llm.texts})
            begin = time.process_time()
            for results in steps:
                for result in results:
                    writer.write(result, "finished")
                lines = [line for path in Path(folder).rglob("*.jsonl") for line in path.read_bytes().splitlines(True)]
                writer.compress()
            seconds = time.process_time() - begin
            for number, results in enumerate(steps):
                records = [result.session.record("finished") for result in results]
                write_advantages(folder, number, "a", advantages_of(records, rng))
            now = size_of(Path(folder))
        what = "with tokens" if tokens else "without"
        print(
            f"  {what:12} {now / count:10,.0f} bytes per session   {now / before:6.3f} of schema 1   "
            f"{1000 * seconds / STEPS:8.1f} ms of CPU per step"
        )
    return lines


def codecs(lines: Sequence[bytes]) -> None:
    """Print the compressed share of the lines, one by one and together, for several codecs."""
    names = {"gzip 6": lambda data: gzip.compress(data, 6)}
    for level in (1, 3, 9, 15):
        names[f"zstd {level}"] = pyarrow.Codec("zstd", compression_level=level).compress
    whole = b"".join(lines)
    for name, compress in names.items():
        alone = sum(len(compress(line)) for line in lines)
        begin = time.process_time()
        together = len(compress(whole))
        milliseconds = 1000 * (time.process_time() - begin)
        shares = f"{alone / len(whole):.3f} one by one, {together / len(whole):.3f} together"
        print(f"  {name:12} {shares} in {milliseconds:.0f} ms")


def listing(lines: Sequence[bytes], sessions: int = 20_000) -> None:
    """Print the seconds to list many sessions, and the milliseconds to read one."""
    with tempfile.TemporaryDirectory() as folder:
        per_step, entries = len(lines), [listed(unpacked(line)) for line in lines]
        for step in range(sessions // per_step):
            path = file_of(folder, False, step, "a", "b", TABLE)
            path.parent.mkdir(exist_ok=True)
            write_table(path, lines, entries)
        begin = time.process_time()
        index = SessionIndex(folder)
        seconds = time.process_time() - begin
        begin = time.process_time()
        read = sum(1 for _ in index.records(index.entries[:per_step]))
        each = 1000 * (time.process_time() - begin) / read
        print(f"  {len(index.entries):,} sessions listed in {seconds:.2f} s of CPU; {each:.2f} ms to read one")


def again(folder: Path) -> None:
    """Write the sessions of a run with schema 1 again, step by step and with the same advantages, and print the bytes
    per session before and after."""
    records = list(read_sessions(folder))
    before = size_of(folder / "train")
    by_step: dict[int, list[Record]] = {}
    for record in records:
        by_step.setdefault(record["step"], []).append(record)
    with tempfile.TemporaryDirectory() as made:
        for step, found in by_step.items():
            path = file_of(made, False, step, "a", "b", TABLE)
            path.parent.mkdir(exist_ok=True)
            write_table(path, [*map(packed, found)], [*map(listed, found)])
            known = {act["key"]: act["advantage"] for record in found for act in record["acts"]}
            write_advantages(made, step, "a", {key: value for key, value in known.items() if value is not None})
        now = size_of(Path(made))
    print(f"{folder}: {before / len(records):,.0f} -> {now / len(records):,.0f} bytes per session, {now / before:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, nargs="*", default=[], help="folders of session records of schema 1")
    given = parser.parse_args()
    for folder in given.records:
        again(folder)
    shapes = {} if given.records else {"demo": demo(), "text": text()}
    for name, shape in shapes.items():
        lines = measure(name, shape)
        codecs(lines)
        listing(lines)


if __name__ == "__main__":
    main()
