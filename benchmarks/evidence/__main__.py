"""Run the pieces (an arm with a seed) of the matrix that have no result yet, then write the page from the results.

python -m benchmarks.evidence --jobs 2 --hours 3      # repeat to continue
python -m benchmarks.evidence --page                  # tables and figures of benchmarks/EVIDENCE.md
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

from benchmarks.evidence import page
from benchmarks.evidence.matrix import named, pieces
from benchmarks.evidence.places import Places
from benchmarks.evidence.runs import RESULTS, Runner, finished, usable
from benchmarks.evidence.schedule import run_all

PAGE = Path(__file__).parents[1] / "EVIDENCE.md"


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.evidence", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1, help="parallel runs; results do not depend on it")
    parser.add_argument("--hours", type=float, default=3.0, help="start no run after this long")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="only these tasks, groups and arms")
    parser.add_argument("--keep", action="store_true", help="keep Ray clusters between runs, which saves their start")
    parser.add_argument("--through", default="", help='prefix of every command, such as "nice -n 10"')
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    succeeded, chosen = True, set(named(options.only))
    if not options.page:
        with Places(options.jobs if options.keep else 0) as places:
            succeeded = run_all(
                [piece for piece in pieces() if not options.only or piece.arm in chosen],
                Runner(shlex.split(options.through), places).run,
                finished=finished,
                usable=usable,
                jobs=options.jobs,
                until=time.time() + 3600 * options.hours,
                log=lambda line: print(f"{time.strftime('%H:%M:%S')} {line}", flush=True),
            )
    page.write(PAGE, page.Results.read(RESULTS))
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main())
