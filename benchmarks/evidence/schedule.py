"""Run pieces in the order of their importance, several in parallel."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from benchmarks.evidence.arms import Piece
from benchmarks.evidence.matrix import needs

Test = Callable[[Piece], bool]


def next_piece(matrix: Iterable[Piece], busy: Iterable[Piece], finished: Test, usable: Test) -> Piece | None:
    """Return the first piece that is neither finished nor running.

    If it needs the weights of another piece, return that piece instead, or go on if that piece is running.
    """
    running = set(busy)
    for piece in matrix:
        if finished(piece) or piece in running:
            continue
        missing = [need for need in needs(piece) if not usable(need)]
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
    log: Callable[[str], None],
) -> bool:
    """Run the remaining pieces; none starts after the time `until`. Return False if a piece failed, else True."""
    running: dict[Future[None], Piece] = {}
    failed: set[Piece] = set()
    with ThreadPoolExecutor(jobs) as pool:
        while True:
            while len(running) < jobs and time.time() < until:
                piece = next_piece(matrix, {*running.values(), *failed}, finished, usable)
                if piece is None:
                    break
                log(f"{piece.key} starts")
                running[pool.submit(run, piece)] = piece
            if not running:
                return not failed
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                piece = running.pop(future)
                error = future.exception()
                if isinstance(error, subprocess.CalledProcessError):
                    failed.add(piece)
                    log(f"{piece.key} failed: {error}")
                elif error is not None:
                    raise error
                else:
                    log(f"{piece.key} is done")
