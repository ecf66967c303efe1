"""Two adapters on SmolLM2 whose rewards differ by role, and the advantages that other trainers of teams give them."""

from __future__ import annotations

from pathlib import Path

from benchmarks.evidence.arms import Start, Training, Trial, using
from benchmarks.evidence.claims import Claim, gap, influence, success
from benchmarks.evidence.tables import control, in_training
from benchmarks.evidence.tasks.base import Group, Task

STEPS, TASKS_PER_STEP = 6, 4
FILE = Path(__file__).parents[1] / "unequal_roles.py"
METRIC = "val-{}/secret_words{}/{}/mean@1"


def trial(name: str, pays: str) -> Trial:
    settings = (
        "+recipe=smollm2/laptop",
        *("mas.workflow.name=UnequalRoles", f"mas.workflow.path={FILE}", f"++mas.workflow.args.pays={pays}"),
        "actor_rollout_ref.actor.optim.lr=4e-4",
        # Each request is seeded by its task, session and agent, so the arms of a seed sample the same first step.
        "actor_rollout_ref.rollout.full_determinism=true",
        *(f"trainer.total_training_steps={STEPS}", f"trainer.test_freq={STEPS}", "trainer.val_before_train=false"),
        "mas.trajectories.enabled=false",
    )
    controls = {
        "shuffled": METRIC.format("core", "_shuffled", "acc"),
        "all rewards": METRIC.format("aux", "", "whole"),
        "tokens of the first message": METRIC.format("aux", "", "length"),
    }
    return Trial(name, STEPS, METRIC.format("core", "", "acc"), settings, controls)


def tasks(count: int) -> tuple[str, ...]:
    """Return the overrides of a step with this many tasks."""
    return (f"data.train_batch_size={count}", f"actor_rollout_ref.actor.ppo_mini_batch_size={count}")


def arms(kind: str, start: Start, pays: str, tasks_alone: int) -> tuple[Training, ...]:
    shared = trial(f"unequal_{kind}", pays)

    def arm(name: str, *overrides: str) -> Training:
        return Training(f"unequal_{kind}_{name}", shared, start, "secret_words", overrides)

    usual = (*using("agent_grpo"), *tasks(TASKS_PER_STEP))
    alone = ("~mas.policies.scout", "mas.agents.scout.policy=judge", "++mas.workflow.args.alone=true")
    return (
        arm("agent_grpo", *usual),
        # verl's V1 trainer, which Uni-MARL uses, gives all rows of a session the same advantage, from one score.
        arm("team_grpo", *using("team_grpo"), *tasks(TASKS_PER_STEP), "++mas.workflow.args.rollout=true"),
        arm("agent_gdpo", *using("agent_gdpo"), *tasks(TASKS_PER_STEP)),
        arm("rated", *usual, "++mas.workflow.args.rated=both"),
        arm("alone", *using("agent_grpo"), *tasks(tasks_alone), *alone),
    )


PAIR = arms("pair", Start("unequal_pair", ("data", "smollm2", "--kind", "pair", "--test-rows", "24")), "scout", 14)
OFFERS = arms("offers", Start("unequal_offers", ("data", "offers")), "judge", 12)
CONTROLS, SUM = tuple(PAIR[0].trial.controls), control("all rewards")


def claims(on: str, arms: tuple[Training, ...]) -> tuple[Claim, ...]:
    """Return the claims on a task. `on`: the task's name in the claims' texts."""
    agent, rollout, parts, rated, alone = arms
    learnt = in_training("acc")
    return (
        Claim(f"{on}: with a baseline per agent the team ends above 0.5", success(agent), low=0.5),
        Claim("by messages, which are worth at least 0.3", influence(agent), low=0.3),
        Claim("one score per rollout learns more slowly", gap(rollout, agent, learnt), high=0.0),
        Claim("and ends lower", gap(rollout, agent), high=0.0),
        Claim("by the sum of all rewards, which it trains on, too", gap(rollout, agent, SUM), high=0.0),
        Claim("`agent_gdpo` learns as fast as `agent_grpo`", gap(parts, agent, learnt), low=-0.1),
        Claim("ratings of both agents make it faster", gap(rated, agent, learnt), low=0.0),
        Claim("one agent with everything is at least as good", gap(alone, agent), low=-0.05),
    )


TASK = Task(
    "unequal_roles",
    "Unequal roles",
    (Group("unequal_pair", PAIR, CONTROLS, signals=True), Group("unequal_offers", OFFERS, CONTROLS, signals=True)),
    (*claims("colour and thing", PAIR), *claims("offers", OFFERS)),
    (PAIR[0],),
)
