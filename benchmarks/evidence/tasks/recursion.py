"""A question about a list of four windows, for an agent that delegates parts of the list to copies of itself, and for a
single agent. The list has letters for a tiny model, and words for SmolLM2."""

from __future__ import annotations

from pathlib import Path

from benchmarks.evidence.arms import Start, Training, Trial
from benchmarks.evidence.claims import Claim, gain, gap, success
from benchmarks.evidence.tables import control
from benchmarks.evidence.tasks.base import Group, Task

SEEDS, STEPS = 3, 24
HERE = Path(__file__).parents[1] / "long_list.py"
START = Start(
    "long_list",
    (
        *("data", "long_list", "--noise", "0.05", "--train-rows", "2000", "--test-rows", "90"),
        *("--warm-up", "hidden=64", "layers=2", "initial=0.1", "steps=900", "batch=64", "learning_rate=2e-3"),
        *("lessons=6000", "texts=2000", "vocabulary=4096"),
    ),
)
# Control -> windows of its lists. The lists of "shuffled" have the answers of other lists.
CONTROLS = {"1 window": 1, "8": 8, "shuffled": 4}
SHUFFLED = control("shuffled")
# Exact success of the best guess from one window of four: `benchmarks.evidence.floors.floor_of_list`.
FLOOR = 0.306
AGENTS = "learnt_solver: {policy: learnt}, fixed_solver: {policy: learnt}, scrolls_solver: {policy: scrolls}"
SETTINGS = (
    "+recipe=recursion/laptop",
    f"mas.plugins=[{HERE}]",
    f"mas.workflow.path={HERE}",
    "mas.workflow.name=Arms",
    "algorithm.adv_estimator=agent_rloo",
    "mas.advantage=null",
    "mas.policies={learnt: {}, scrolls: {}}",
    f"mas.agents={{{AGENTS}}}",
    f"trainer.total_training_steps={STEPS}",
    f"trainer.test_freq={STEPS}",
    "mas.trajectories.enabled=false",
    "actor_rollout_ref.actor.optim.lr=5e-4",
)
# SmolLM2, trained further on demonstrations, with one adapter per team.
WORD_STEPS, WORDS = 12, HERE.with_name("word_list.py")
WORD_START = Start("word_list", ("data", "word_list", "--noise", "0.05", "--train-rows", "2000", "--test-rows", "90"))
WORD_SETTINGS = (
    "+recipe=recursion/laptop",
    f"mas.workflow.path={WORDS}",
    "mas.workflow.name=WordArms",
    "algorithm.adv_estimator=agent_rloo",
    "mas.advantage=null",
    "mas.policies={main: {trainable: false}, learnt: {adapter_of: main}, scrolls: {adapter_of: main}}",
    f"mas.agents={{{AGENTS}}}",
    *("actor_rollout_ref.model.lora_rank=16", "actor_rollout_ref.model.lora_alpha=32"),
    "actor_rollout_ref.model.target_modules=[q_proj,k_proj,v_proj,o_proj]",
    "actor_rollout_ref.actor.optim.lr=4e-4",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2048",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=2048",
    f"trainer.total_training_steps={WORD_STEPS}",
    f"trainer.test_freq={WORD_STEPS}",
    "mas.trajectories.enabled=false",
)


def arm(name: str, team: str, *overrides: str, within: str | None = None, words: bool = False) -> Training:
    """Return the arm of one team of `Arms` or `WordArms`. `within`: the arm whose run also measures this team."""
    window = 4 if words else 8
    metric = f"val-aux/list_{{}}/{team}/mean@1"
    sources = {name: f"{size * window}{'_shuffled' * (name == 'shuffled')}" for name, size in CONTROLS.items()}
    trial = Trial(
        f"recursion_{name}",
        WORD_STEPS if words else STEPS,
        metric.format(4 * window),
        controls={windows: metric.format(source) for windows, source in sources.items()},
        held_out="validation.parquet",
        settings=WORD_SETTINGS if words else SETTINGS,
        # The team `fixed` runs with the weights of the team `learnt`, so it has that team's tokens.
        tokens=f"session/{team.replace('fixed', 'learnt')}_tokens/mean",
    )
    start = WORD_START if words else START
    return Training(trial.name, trial, start, "team", overrides, seeds=SEEDS, within=within)


LEARNT = arm("learnt", "learnt")
# The weights of `LEARNT` with a fixed depth, in validation only.
FIXED = arm("fixed", "fixed", within=LEARNT.name)
# A single agent that generates at least as many tokens as the team `learnt`.
SCROLLS = arm("scrolls", "scrolls", within=LEARNT.name)
# The team `learnt` with RAO's baseline, which averages over all depths.
RAO = arm("rao", "learnt", "algorithm.adv_estimator=rao_of_each")

WORDS_LEARNT = arm("words", "learnt", words=True)
WORDS_FIXED = arm("words_fixed", "fixed", within=WORDS_LEARNT.name, words=True)
WORDS_SCROLLS = arm("words_scrolls", "scrolls", within=WORDS_LEARNT.name, words=True)
# A reader of one window finds the colour in one case of four. Otherwise, it guesses one of twelve colours.
WORDS_FLOOR = 1 / 4 + 3 / 4 / 12

TASK = Task(
    "recursion",
    "Recursion",
    (
        Group("recursion_list", (LEARNT, FIXED, SCROLLS, RAO), tuple(CONTROLS)),
        Group("recursion_smollm2", (WORDS_LEARNT, WORDS_FIXED, WORDS_SCROLLS), tuple(CONTROLS)),
    ),
    (
        Claim("at four windows the recursion gains 0.3 by training", gain(LEARNT), low=0.3, seeds=SEEDS),
        Claim("and ends 0.3 above the best reader of one", success(LEARNT), low=FLOOR + 0.3, seeds=SEEDS),
        Claim("level with one agent that scrolls, or above it", gap(LEARNT, SCROLLS), low=-0.1, seeds=SEEDS),
        Claim("with the answers of other lists it is at chance", success(LEARNT, SHUFFLED), high=0.1, seeds=SEEDS),
        Claim("a depth that is learnt is level with one level", gap(LEARNT, FIXED), low=-0.1, seeds=SEEDS),
        Claim("at eight windows it is 0.2 above one level", gap(LEARNT, FIXED, control("8")), low=0.2, seeds=SEEDS),
        Claim("SmolLM2, a list of words: the recursion gains 0.2", gain(WORDS_LEARNT), low=0.2, seeds=SEEDS),
        Claim(
            "and ends 0.3 above the best reader of one window",
            success(WORDS_LEARNT),
            low=WORDS_FLOOR + 0.3,
            seeds=SEEDS,
        ),
        Claim("level with one agent that scrolls", gap(WORDS_LEARNT, WORDS_SCROLLS), low=-0.1, seeds=SEEDS),
        Claim(
            "with the answers of other lists it is at chance", success(WORDS_LEARNT, SHUFFLED), high=0.2, seeds=SEEDS
        ),
        Claim("a depth that is learnt is level with one level", gap(WORDS_LEARNT, WORDS_FIXED), low=-0.1, seeds=SEEDS),
    ),
    (LEARNT,),
)
