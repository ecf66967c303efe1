"""Write the policies of a checkpoint as folders that other tools load, and the team as team.yaml.

A trained policy becomes a Hugging Face folder. An adapter becomes a PEFT folder or, with --merge, a Hugging Face
folder. docs/use/after-training.md has the details.
"""

import sys

from verl_mas.cli._arguments import add_json, add_out, add_run, whole
from verl_mas.cli._output import write_json
from verl_mas.cli._parser import Parser


def parser() -> Parser:
    command = Parser("verl-mas export", __doc__)
    add_run(command, what="the folder of a run (trainer.default_local_dir), or a checkpoint global_step_N in it")
    step = "the checkpoint of this step; without it the latest one"
    command.add_argument("--step", type=whole(0), metavar="N", help=step)
    add_out(command, "a folder, which gets a folder per policy, team.yaml and a model card", required=True)
    merged = "adapters merged into their base; prints how far the log-probs of a prompt move by it"
    command.add_argument("--merge", action="store_true", help=merged)
    command.add_argument("--trust-remote-code", action="store_true", help="run the Python files of the models")
    add_json(command)
    return command


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    from verl_mas.results.serve.export import Export, find_checkpoint
    from verl_mas.workflow.team_file import read_team

    checkpoint = find_checkpoint(options.run.absolute(), options.step)
    team, trust = read_team(checkpoint.folder), options.trust_remote_code
    export = Export(checkpoint, team, options.out, merge=options.merge, force=options.force, trust=trust)
    written = []
    for line in export.run():
        written.append(line)
        if not options.json:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    if options.json:
        write_json({"folder": str(options.out), "step": checkpoint.step, "written": written})
    return 0
