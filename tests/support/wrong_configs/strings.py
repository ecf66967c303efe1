"""Texts that are no name, no path or no line, and interpolations that cannot be resolved."""

from __future__ import annotations

from wrong_configs.case import Case, wrong

MODEL = "actor_rollout_ref.model.path"

CASES = (
    # Interpolations.
    wrong("data.train_batch_size=${nope}", "nope"),
    wrong("trainer.experiment_name=${oc.env:NOT_SET_ANYWHERE}", "NOT_SET_ANYWHERE"),
    wrong("trainer.project_name=${unknown:x}", "unknown"),
    wrong(
        "trainer.project_name=${trainer.experiment_name} trainer.experiment_name=${trainer.project_name}", "trainer."
    ),
    wrong(f"{MODEL}=${{{MODEL}}}", MODEL),
    wrong("actor_rollout_ref.actor.optim.lr=${nope.lr}", "nope.lr"),
    wrong("mas.workflow.name=${nope}", "nope"),
    wrong("mas.trajectories.dir=${oc.env:NOT_SET_ANYWHERE}", "NOT_SET_ANYWHERE"),
    wrong("++mas.policies.main.overrides.model.path=${nope}", "nope"),
    wrong("++mas.agents.solver.system_prompt=${nope}", "nope"),
    wrong("trainer.logger=[${nope}]", "nope"),
    wrong("trainer.experiment_name=${", "an override is key=value"),
    # The grammar of overrides.
    wrong("=5", "an override is key=value"),
    wrong("data.train_batch_size", "an override is key=value"),
    wrong("data.train_batch_size==8", "data.train_batch_size"),
    wrong("data..train_batch_size=8", "data..train_batch_size"),
    wrong("mas.agents={solver", "an override is key=value"),
    wrong("data.train_files=a,b", "To use it as a list, use key=[value1,value2]"),
    Case(('mas.agents={"a b":{}}',), "an override is key=value"),
    # Sections that are deleted.
    wrong("~actor_rollout_ref", "actor_rollout_ref was deleted"),
    wrong("~trainer", "trainer was deleted"),
    wrong("~data", "if a ~ deletes its section, remove that"),
    wrong("~actor_rollout_ref.actor.optim", "actor_rollout_ref.actor.optim was deleted"),
    wrong("actor_rollout_ref=null", "actor_rollout_ref was deleted or is null"),
    # Names that leave their folder.
    wrong("trainer.experiment_name=../../escape", "leaves the folder"),
    wrong("trainer.project_name=a/../../b", "leaves the folder"),
    wrong("trainer.project_name=/tmp/x", "leaves the folder"),
    wrong("trainer.experiment_name=", "not empty"),
    # Characters.
    Case(('trainer.experiment_name="a\nb"',), "line break or other control character"),
    Case(('trainer.experiment_name="a\0b"',), "null byte"),
    Case(('trainer.experiment_name="a\ud800b"',), "surrogate"),
    Case(('mas.trajectories.dir="a\0b"',), "null byte"),
    Case(('mas.workflow.name="solver\u200b_verifier"',), "control character"),
    Case(('data.train_files="\x1b[31m.parquet"',), "control character"),
    Case(('++mas.agents.solver.system_prompt="a\0b"',), "null byte"),
    wrong("++mas.policies.pölicy={}", "an override is key=value"),
    Case(('mas.workflow.name="../../etc"',), "../../etc"),
    Case(("++mas.policies.__class__={}",), "names are part of metric names"),
    Case(("++mas.pools.rows={}",), "none of"),
)
