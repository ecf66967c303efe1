"""Which piece is next, with several side by side."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from benchmarks.evidence.matrix import Piece

Test = Callable[[Piece], bool]


def next_piece(matrix: Iterable[Piece], busy: Iterable[Piece], finished: Test, usable: Test) -> Piece | None:
    """The first piece that is neither done nor running and has what it needs, or what it needs before it."""
    running = set(busy)
    for piece in matrix:
        if finished(piece) or piece in running:
            continue
        missing = [need for need in piece.needs if not usable(need)]
        for need in missing:
            if need not in running:
                return need
        if not missing:
            return piece
    return None


def run_all(
    matrix: list[Piece],
    run: Callable[[Piece], None],
    *,
    finished: Test,
    usable: Test,
    jobs: int,
    until: float,
    say: Callable[[str], None],
) -> bool:
    """Run what is left, starting nothing after `until`. A piece that fails is left out, and makes the answer False."""
    running: dict[Future[None], Piece] = {}
    failed: set[Piece] = set()
    with ThreadPoolExecutor(jobs) as pool:
        while True:
            while len(running) < jobs and time.time() < until:
                piece = next_piece(matrix, {*running.values(), *failed}, finished, usable)
                if piece is None:
                    break
                say(f"{piece.key} starts")
                running[pool.submit(run, piece)] = piece
            if not running:
                return not failed
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                piece = running.pop(future)
                error = future.exception()
                if isinstance(error, subprocess.CalledProcessError):
                    failed.add(piece)
                    say(f"{piece.key} failed: {error}")
                elif error is not None:
                    raise error
                else:
                    say(f"{piece.key} is done")
