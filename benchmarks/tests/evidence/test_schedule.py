from __future__ import annotations

import subprocess
import time

import pytest


@pytest.fixture
def swapped(evidence):
    matrix = evidence("matrix")
    return matrix.Piece(matrix.ARMS["roles_swapped"], 0)


def test_what_is_finished_or_running_is_skipped(evidence):
    matrix, schedule = evidence("matrix"), evidence("schedule")
    one, two, three, *_ = pieces = list(matrix.pieces())

    def following(done, busy):
        return schedule.next_piece(pieces, busy, done.__contains__, done.__contains__)

    assert following(set(), []) == one and following({one}, [two]) == three
    assert following(set(pieces), []) is None


def test_what_a_piece_needs_runs_before_it_also_when_only_its_result_is_there(evidence, swapped):
    next_piece = evidence("schedule").next_piece
    (need,) = evidence("matrix").needs(swapped)
    assert next_piece([swapped], [], lambda piece: piece == need, lambda piece: False) == need
    assert next_piece([swapped], [need], lambda piece: False, lambda piece: False) is None
    assert next_piece([swapped], [], lambda piece: False, lambda piece: True) == swapped


def test_all_pieces_run_once_and_a_failure_stops_only_what_needs_it(evidence, swapped):
    matrix, schedule = evidence("matrix"), evidence("schedule")
    (need,) = evidence("matrix").needs(swapped)
    other = matrix.Piece(matrix.ARMS["agent_grpo"], 0)
    ran, done, lines = [], set(), []

    def run(piece):
        ran.append(piece)
        if piece == need:
            raise subprocess.CalledProcessError(1, "python")
        done.add(piece)

    well = schedule.run_all(
        [swapped, other],
        run,
        finished=done.__contains__,
        usable=done.__contains__,
        jobs=2,
        until=time.time() + 60,
        log=lines.append,
    )
    assert not well and set(ran) == {need, other} and len(ran) == 2
    assert any("at_grpo_per_role-0 failed" in line for line in lines)


def test_nothing_starts_after_the_time_is_up(evidence, swapped):
    ran = []
    schedule = evidence("schedule")
    assert schedule.run_all(
        [swapped], ran.append, finished=lambda p: False, usable=lambda p: True, jobs=1, until=0.0, log=ran.append
    )
    assert not ran
