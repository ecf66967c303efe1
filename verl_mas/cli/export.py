"""Write the policies of a checkpoint as folders that others load, and the team as team.yaml.

A trained policy becomes a Hugging Face folder, an adapter a PEFT folder or, with --merge, a Hugging Face folder as
well. docs/after-training.md has the details.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from verl_mas.config.compose import compose
from verl_mas.config.load import load
from verl_mas.errors import ConfigError, raise_all
from verl_mas.run_folder.checkpoints import Checkpoint
from verl_mas.serve.export import Export, find_checkpoint
from verl_mas.trainer.checkpoint import other_policies, other_run, run_identity
from verl_mas.user_code import load_user_code
from verl_mas.workflow.team_file import TEAM_FILE, TeamFile, describe, read_team


def main(argv: list[str]) -> int:
    own, training = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    options = _parser().parse_args(own)
    checkpoint = find_checkpoint(Path(options.checkpoint).absolute())
    export = Export(
        checkpoint,
        _team(checkpoint, training),
        Path(options.out),
        merge=options.merge,
        force=options.force,
        trust=options.trust_remote_code,
    )
    for line in export.run(options.policy):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    return 0


def _team(checkpoint: Checkpoint, arguments: Sequence[str]) -> TeamFile:
    """As the run described it or, for a checkpoint of an earlier version, as the arguments of its command do."""
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
            fix="add them after --: verl-mas export CHECKPOINT OUT -- +mas=... actor_rollout_ref.model.path=...",
        )
    config = compose(arguments)
    mas = load(config.get("mas"))
    load_user_code(mas)
    raise_all(other_run(checkpoint, run_identity(config, mas)))
    team = describe(config, mas)
    raise_all(other_policies(checkpoint.folder, [policy.folder for policy in team.policies.values() if policy.folder]))
    return team


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "verl-mas export",
        usage="verl-mas export CHECKPOINT OUT [--policy NAME] [--merge] [--force] [-- ARGUMENTS OF THE TRAINING]",
        description=__doc__,
    )
    parser.add_argument("checkpoint", help="global_step_N of a run, or the run's folder for its latest checkpoint")
    parser.add_argument("out", help="a folder, which gets a folder per policy and team.yaml")
    parser.add_argument("--policy", metavar="NAME", help="only this policy, and no team.yaml")
    parser.add_argument(
        "--merge",
        action="store_true",
        help="adapters merged into their base; prints how far the log-probs of a prompt move by it",
    )
    parser.add_argument("--force", action="store_true", help="replace what an earlier export wrote")
    parser.add_argument("--trust-remote-code", action="store_true", help="run the Python files of the models")
    return parser
