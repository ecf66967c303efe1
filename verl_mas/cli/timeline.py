"""Draw what a run did when, as one SVG: when it sampled and updated, and when each engine had requests."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from verl_mas.errors import ConfigError
from verl_mas.trainer.timeline import read_timeline
from verl_mas.trainer.timeline_picture import draw


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    run, out = Path(options.run), Path(options.out)
    steps = None if options.steps is None else _steps(options.steps)
    if out.exists() and not options.force:
        raise ConfigError(f"--out {out}", rule="a file that exists is kept", fix="choose another one, or add --force")
    if not out.absolute().parent.is_dir():
        raise ConfigError(
            f"--out {out}", rule="the picture is written into a folder that exists", fix=f"mkdir -p {out.parent}"
        )
    out.write_text(draw(read_timeline(run), options.title or run.absolute().name, steps), encoding="utf-8")
    sys.stdout.write(f"{out}\n")
    return 0


def _steps(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal() and int(first) <= int(last or first)):
        raise ConfigError(f"--steps {text}", rule="a step, or the first and the last of several", fix="use --steps 3-8")
    return int(first), int(last or first)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("verl-mas timeline", description=__doc__)
    parser.add_argument("run", help="the folder of a run (trainer.default_local_dir), or its timeline.jsonl")
    parser.add_argument("--out", required=True, help="the SVG file")
    parser.add_argument("--steps", metavar="FIRST-LAST", help="only these steps")
    parser.add_argument("--title", help="above the picture; without it the name of the folder")
    parser.add_argument("--force", action="store_true", help="replace a file that exists")
    return parser
