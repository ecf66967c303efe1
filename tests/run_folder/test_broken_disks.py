"""On a full disk or with a wrong clock, a write raises an error or can be read in its order. No other file is left."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from broken import MACHINES, few, machine, many
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from PIL import Image

import verl_mas
from verl_mas.config.schema import TrajectorySpec
from verl_mas.data.dataset import write_parquet
from verl_mas.errors import DiskError
from verl_mas.results.serve.evaluate import Results
from verl_mas.results.sessions.reader import SessionIndex
from verl_mas.rollout.trajectories import TrajectoryWriter
from verl_mas.run_folder import checkpoints
from verl_mas.run_folder.about import AboutFile, attempts, read_about
from verl_mas.run_folder.disk import recording
from verl_mas.run_folder.metrics.file import FILE, MetricsFile, read_steps
from verl_mas.run_folder.session_files import new_attempt
from verl_mas.workflow.session import SessionResult


class Files:
    """Files of a run in `folder`. `write(n)` writes the n-th part, and `read` lists the parts that are there."""

    def __init__(self, folder: Path):
        self.folder = folder

    def write(self, number: int) -> None:
        raise NotImplementedError

    def read(self) -> list[int]:
        raise NotImplementedError


class Metrics(Files):
    """Metrics, of which a resumed run writes each step."""

    def write(self, number: int) -> None:
        MetricsFile(self.folder, number - 1).log({"x": number}, number)

    def read(self) -> list[int]:
        return [int(step.values["x"]) for step in read_steps(self.folder / FILE)]


class About(Files):
    def write(self, number: int) -> None:
        AboutFile(self.folder, {"number": number}, {})

    def read(self) -> list[int]:
        return [attempt["number"] for attempt in attempts(read_about(self.folder))]


class Checkpoints(Files):
    def write(self, number: int) -> None:
        folder = checkpoints.folder_of_step(self.folder, number)
        with recording(folder, "it"):
            (folder / "main").mkdir(parents=True)
            (folder / "main" / "model.pt").write_bytes(b"weights" * 100)
            checkpoints.complete(folder, {"text": "x" * 100})

    def read(self) -> list[int]:
        whole = [one.step for one in checkpoints.whole_checkpoints(self.folder)]
        assert checkpoints.read_pointer(self.folder) is None or checkpoints.latest(self.folder).step in whole
        return whole


class Evaluation(Files):
    def write(self, number: int) -> None:
        results = Results.open(self.folder / "results.jsonl", {"team": "team"}, force=False)
        results.add({"task": number, "session": 0, "failed": False, "text": "x" * 50})

    def read(self) -> list[int]:
        results = Results(self.folder / "results.jsonl", {"team": "team"})
        return [task for task, _ in Results.open(results.path, results.identity, force=False).records]


class Sessions(Files):
    """Every second session belongs to another attempt, and all sessions have images."""

    def write(self, number: int) -> None:
        if number % 2:
            self.writer = TrajectoryWriter(TrajectorySpec(), self.folder, new_attempt(self.folder))
        image = Image.new("RGB", (64, 64), (number, 0, 0))
        content = [{"type": "image", "image": image}, {"type": "text", "text": "x" * 100}]
        task = verl_mas.Task([{"role": "user", "content": content}], uid=str(number), session=0, step=1)
        self.writer.write(SessionResult(verl_mas.run("single", task, verl_mas.ScriptedLLM("4"))), "finished")
        if number % 3 == 0:
            self.writer.compress()

    def read(self) -> list[int]:
        if not (self.folder / "train").exists():
            return []
        found = list(SessionIndex(self.folder, attempts="all").records())
        for record in found:
            image, _ = record["task"]["messages"][0]["content"]
            assert Image.open(self.folder / image["file"]).getpixel((0, 0)) == (int(record["uid"]), 0, 0)
            assert record["seconds"] >= 0 and all(act["seconds"] >= 0 for act in record["acts"])
        assert not list(self.folder.rglob("*.new"))
        return [int(record["uid"]) for record in found]


class Rows(Files):
    """A file per write."""

    def write(self, number: int) -> None:
        write_parquet([{"prompt": "x" * 100, "number": number}] * 50, self.folder / f"{number}.parquet")

    def read(self) -> list[int]:
        return sorted(pq.read_table(file)["number"][49].as_py() for file in self.folder.glob("*.parquet"))


KINDS = Metrics, About, Checkpoints, Evaluation, Sessions, Rows
Drawn = tuple[type[Files], Sequence[tuple[Sequence[float], int | None]]]
# A checkpoint is whole before the pointer is written, and a session before its step is compressed.
MAY_BE_THERE = Checkpoints, Sessions
WRITES = st.tuples(st.sampled_from(KINDS), st.lists(MACHINES, min_size=1, max_size=6))


def survived(drawn: Drawn) -> None:
    kind, machines = drawn
    with tempfile.TemporaryDirectory() as name:
        files, written = kind(Path(name)), []
        failed: Mapping[int, str] = {}
        for number, here in enumerate([*machines, ([0.0], None)], 1):
            try:
                with machine(*here):
                    files.write(number)
                written.append(number)
            except DiskError as error:
                failed = {**failed, number: str(error)}
            read = files.read()
            assert [number for number in read if number not in failed] == written == sorted(written), failed
            assert read == sorted(read) and (kind in MAY_BE_THERE or read == written), failed
        event(f"{kind.__name__}: {len(failed)} failed")


FULL = [0.0], 0


@example((Evaluation, [FULL]))
@example((Sessions, [FULL, ([0.0], 100)]))
@settings(few, max_examples=40)
@given(WRITES)
def test_what_a_full_disk_and_a_wrong_clock_leave_is_whole_and_in_order(drawn):
    survived(drawn)


@pytest.mark.nightly
@many
@given(WRITES)
def test_many_full_disks_leave_whole_files_in_order(drawn):
    survived(drawn)
