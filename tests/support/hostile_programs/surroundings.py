"""Targets of hostile programs: the caller, a victim process, a file with a secret, a folder."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

from hostile_programs.case import Case

SECRET = "Zx9Secret-" + os.urandom(8).hex()
# The victim keeps a secret, and memory that forks share, like a Ray cluster of other tests. It prints each signal that
# reaches it, except SIGKILL, SIGSTOP and two signals of the C library, which cannot be handled.
VICTIM = f"""
import mmap, os, signal, time
secret, shared = {SECRET!r}, mmap.mmap(-1, 4096)
for number in set(range(1, 65)) - {{9, 17, 19, 32, 33}}:
    signal.signal(number, lambda number, frame: os.write(1, b"%d " % number))
os.write(1, b"ready")
while True: time.sleep(60)
"""
TRACES = [Path(folder, "verl_mas_escaped") for folder in ("/dev/shm", "/tmp", "/")]


class Surroundings:
    """A context with targets of attacks; `harm` lists the damage."""

    def __enter__(self) -> Surroundings:
        self.folder = Path(tempfile.mkdtemp(prefix="hostile_"))
        self.folder.chmod(0o777)
        (self.folder / "open").mkdir()
        (self.folder / "open").chmod(0o777)
        self.file = self.folder / "secret.txt"
        self.file.write_text(SECRET)
        self.file.chmod(0o666)
        self.as_it_was = self._state()
        os.environ["HOSTILE_SECRET"] = SECRET
        self.victim = subprocess.Popen([sys.executable, "-I", "-S", "-c", VICTIM], stdout=subprocess.PIPE)
        assert self.victim.stdout is not None
        self.signals = self.victim.stdout
        assert self.signals.read(5) == b"ready"
        os.set_blocking(self.signals.fileno(), False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.victim.kill()
        self.victim.wait()
        self.signals.close()
        del os.environ["HOSTILE_SECRET"]
        for path in [*self.folder.rglob("*")][::-1]:
            path.rmdir() if path.is_dir() else path.unlink()
        self.folder.rmdir()

    def text(self, case: Case) -> str:
        """Return a program with the real paths and process ids of these surroundings."""
        places = {
            "@CALLER@": str(os.getpid()),
            "@VICTIM@": str(self.victim.pid),
            "@SECRET@": str(self.file),
            "@FOLDER@": str(self.folder / "open"),
        }
        text: str = case.program
        for name, place in places.items():
            text = text.replace(name, place)
        return text

    def harm(self) -> list[str]:
        problems = [f"left {path}" for path in TRACES if path.exists()]
        if self._state() != self.as_it_was:
            problems.append(f"changed files: {self.as_it_was} {self._state()}")
        if self.victim.poll() is not None:
            problems.append(f"the victim ended: {self.victim.returncode}")
        if signals := self.signals.read():
            problems.append(f"the victim got signals {signals!r}")
        if "State:\tT" in Path(f"/proc/{self.victim.pid}/status").read_text():
            problems.append("the victim was stopped")
        return problems

    def _state(self) -> list[tuple[str, int, int, int, float]]:
        """Return name, mode, owner, size and time of the last change of each file."""
        return sorted(
            (str(path), stat.S_IMODE(status.st_mode), status.st_uid, status.st_size, status.st_ctime)
            for path in [self.folder, *self.folder.rglob("*")]
            for status in [path.stat()]
        )
