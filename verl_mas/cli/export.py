"""Write the policies of a checkpoint as folders that others load, and the team as team.yaml.

A trained policy becomes a Hugging Face folder, an adapter a PEFT folder or, with --merge, a Hugging Face folder as
well. docs/after-training.md has the details. ARGUMENTS are those of the training of an earlier version, whose
checkpoint has no team.yaml.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from verl_mas.cli._arguments import add_json, add_out, add_run, add_step, takes_run_arguments
from verl_mas.cli._output import write_json
from verl_mas.cli._parser import Parser
from verl_mas.errors import ConfigError, raise_all

if TYPE_CHECKING:
    from verl_mas.run_folder.checkpoints import Checkpoint
    from verl_mas.workflow.team_file import TeamFile


def parser() -> Parser:
    made = Parser("verl-mas export", __doc__)
    add_run(made, what="the folder of a run (trainer.default_local_dir), or a checkpoint global_step_N in it")
    add_step(made, "the checkpoint of this step; without it the latest one")
    add_out(made, "a folder, which gets a folder per policy, team.yaml and a model card", required=True)
    made.add_argument("--policy", metavar="NAME", help="only this policy, and no team.yaml")
    made.add_argument(
        "--merge",
        action="store_true",
        help="adapters merged into their base; prints how far the log-probs of a prompt move by it",
    )
    made.add_argument("--trust-remote-code", action="store_true", help="run the Python files of the models")
    add_json(made)
    takes_run_arguments(made, "[-- ARGUMENTS]")
    return made


def main(argv: list[str]) -> int:
    own, training = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    options = parser().parse_args(own)
    from verl_mas.serve.export import Export, find_checkpoint

    checkpoint = find_checkpoint(options.run.absolute(), options.step)
    export = Export(
        checkpoint,
        _team(checkpoint, training),
        options.out,
        merge=options.merge,
        force=options.force,
        trust=options.trust_remote_code,
    )
    written = []
    for line in export.run(options.policy):
        written.append(line)
        if not options.json:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    if options.json:
        write_json({"folder": str(options.out), "step": checkpoint.step, "written": written})
    return 0


def _team(checkpoint: Checkpoint, arguments: Sequence[str]) -> TeamFile:
    """As the run described it or, for a checkpoint of an earlier version, as the arguments of its command do."""
    from verl_mas.config.compose import compose
    from verl_mas.config.load import load
    from verl_mas.trainer.checkpoint import other_policies, other_run, run_identity
    from verl_mas.user_code import load_user_code
    from verl_mas.workflow.team_file import TEAM_FILE, describe, read_team

    if (checkpoint.folder / TEAM_FILE).exists():
        if arguments:
            raise ConfigError(
                f"-- {' '.join(arguments)}",
                rule=f"{checkpoint.folder} has a {TEAM_FILE}, which describes the team",
                fix="leave out -- and what follows it",
            )
        return read_team(checkpoint.folder)
    if not arguments:
        raise ConfigError(
            f"{checkpoint.folder} has no {TEAM_FILE}: an earlier version of verl-mas saved it",
            rule="its team is then described by the arguments of the command that trained it",
            fix="add them after --: verl-mas export RUN --out DIR -- +mas=... actor_rollout_ref.model.path=...",
        )
    config = compose(arguments)
    mas = load(config.get("mas"))
    load_user_code(mas)
    raise_all(other_run(checkpoint, run_identity(config, mas)))
    team = describe(config, mas)
    raise_all(other_policies(checkpoint.folder, [policy.folder for policy in team.policies.values() if policy.folder]))
    return team
