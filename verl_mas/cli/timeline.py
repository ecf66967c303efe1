"""Draw what a run did when, as one SVG: when it sampled and updated, and when each engine had requests."""

from __future__ import annotations

from verl_mas.cli._arguments import add_json, add_out, add_run, add_steps, free, steps_of
from verl_mas.cli._output import say_written, write_text
from verl_mas.cli._parser import Parser


def parser() -> Parser:
    made = Parser("verl-mas timeline", __doc__)
    add_run(made, what="the folder of a run (trainer.default_local_dir), or its timeline.jsonl")
    add_out(made, "the SVG file", required=True)
    add_steps(made)
    made.add_argument("--title", help="above the picture; without it the name of the folder")
    add_json(made)
    return made


def main(argv: list[str]) -> int:
    from verl_mas.trainer.timeline import read_timeline
    from verl_mas.trainer.timeline_picture import draw

    options = parser().parse_args(argv)
    steps = steps_of(options.steps)
    out = free(options.out, options.force)
    picture = draw(read_timeline(options.run), options.title or options.run.absolute().name, steps)
    write_text(out, picture)
    say_written([out], as_json=options.json)
    return 0
