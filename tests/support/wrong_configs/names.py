"""Names of agents, policies and pools that files and metrics cannot carry, names of nothing, and commit rules."""

from __future__ import annotations

from pathlib import Path

from wrong_configs.case import Case, wrong

NAMES = "names are part of metric names, file names and actor names"


def named(block: str, says: str = NAMES) -> Case:
    """A `mas:` block in a file, since Hydra's command line takes no quoted keys."""

    def write(folder: Path) -> None:
        (folder / "names").mkdir()
        (folder / "names/wrong.yaml").write_text(f"# @package _global_\nmas: {block}\n", encoding="utf-8")

    return wrong("--config-dir {folder} +names=wrong", says, prepare=write)


def policy(name: str) -> Case:
    return named(f"{{policies: {{{name}: {{}}}}, agents: {{solver: {{policy: {name}}}}}}}")


CASES = (
    policy('"a/b"'),
    policy('"../../etc"'),
    policy('""'),
    policy('"pölicy"'),
    policy('"main\\n"'),
    policy('"a\\0b"'),
    policy('"\\e[31mred"'),
    policy('"1"'),
    policy('"a b"'),
    policy('"."'),
    policy("rows"),
    policy("timing"),
    policy("__class__"),
    named("{pools: {../x: {}}}"),
    wrong("++mas.pools={session:{}}", NAMES),
    wrong("++mas.agents.slover.policy=main", "did you mean 'solver'?"),
    wrong("++mas.agents.solver.policy=mian", "did you mean 'main'?"),
    wrong("++mas.policies.main.pool=nowhere", "nowhere"),
    wrong("++mas.policies={main:{},spare:{}}", "mas.policies.spare is used by no agent"),
    wrong("mas.branch.commit=gredy", "did you mean 'greedy'?"),
    wrong("mas.branch.commit=5", "mas.branch.commit is text"),
    wrong("mas.branch.commit=os:system", "mas.branch.commit=os:system"),
    wrong("mas.branch.commit=softmax mas.branch.temperature=0", "mas.branch.temperature is a finite number, above 0"),
    wrong("mas.workflow.name=solver_verifer", "did you mean 'solver_verifier'?"),
    wrong("mas.workflow.name=5", "mas.workflow.name is text"),
    wrong("mas.workflow.name=../../x", "mas.workflow.name=../../x"),
    wrong("++mas.plugins=[no_such_module]", "mas.plugins=no_such_module"),
    wrong("++mas.plugins=plugin.py", "mas.plugins is a list"),
    wrong("++mas.agents.solver.role=[a]", "mas.agents.solver.role is text"),
)
