"""One world of each hub: does a team learn in the world, and only from the world's rewards?

Run it in the environment of `make hubs`. The task `openenv_number` also needs its server, which the first line starts:

    .venv-openenv/bin/python tests/support/openenv_server.py 8931 256
    .venv-hubs/bin/python -m benchmarks.evidence --only worlds
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.evidence.arms import ROOT, Start, Training, Trial, using
from benchmarks.evidence.claims import Claim, gain, gap, success
from benchmarks.evidence.tasks.base import Group, Task

SEEDS = 3
COINS = f"mas.workflow.path={Path(__file__).parents[1] / 'coins.py'}"
SMALL = (
    "+recipe=first_run/laptop",
    "reward.custom_reward_function.path=null",
    "mas.updates_per_step=1",
    "actor_rollout_ref.actor.entropy_coeff=0.003",
    "actor_rollout_ref.rollout.val_kwargs.temperature=1.0",
    "mas.trajectories.enabled=false",
)

# The options of a warmed-up model with a token per character.
WARM_UP = (
    *("--warm-up", "hidden=32", "initial=0.1", "learning_rate=3e-3"),
    *("steps=600", "texts=100", "vocabulary=259"),
)


def hub(name: str, world: str, measured: str, steps: int, rate: str, *settings: str) -> Trial:
    steps_of = (f"trainer.total_training_steps={steps}", f"trainer.test_freq={steps}")
    rated = f"actor_rollout_ref.actor.optim.lr={rate}"
    return Trial(name, steps, f"val-core/{world}/{measured}", (*SMALL, *steps_of, rated, *settings))


def start(name: str, world: str, *options: str) -> Start:
    return Start(name, ("data", "world_start", world, *options))


def arm(trial: Trial, begin: Start, kind: str, *overrides: str, workflow: str = "world") -> Training:
    overrides = using("agent_grpo") + overrides
    return Training(f"{trial.name}_{kind}", trial, begin, workflow, overrides, seeds=SEEDS)


def in_world(world: str) -> Sequence[str]:
    return (f"mas.workflow.args.world={world}", "mas.workflow.args.text=compact")


# Two players may talk, and then each cooperates or defects. They get (3, 3), (5, 0), (0, 5) or (1, 1) points; with
# random choices, each gets 2.25 on average.
DILEMMA = "textarena/IteratedPrisonersDilemma-v0"
DILEMMA_TRIAL = hub("dilemma", DILEMMA, "reward/mean@1", 12, "3e-3", *in_world(DILEMMA), "data.max_prompt_length=200")
DILEMMA_START = start(
    "dilemma",
    DILEMMA,
    *("--options", "num_rounds=1", "points=scores", "--noise", "0"),
    *("--warm-up", "hidden=32", "initial=0.1", "steps=200", "batch=32", "lessons=3200", "texts=800"),
)
SCORES = "mas.workflow.args.options={{num_rounds:1,points:scores,joint:{}}}"
JOINT = arm(DILEMMA_TRIAL, DILEMMA_START, "joint", SCORES.format("true"))
OWN = arm(DILEMMA_TRIAL, DILEMMA_START, "own", SCORES.format("false"))

# The opponent moves at random, in training and in validation.
BOARD = "pettingzoo/classic/tictactoe_v3"
BOARD_TRIAL = hub(
    "board",
    BOARD,
    "acc/mean@1",
    40,
    "1e-3",
    *in_world(BOARD),
    "mas.workflow.args.opponent=random",
    "mas.workflow.args.validation_opponent=random",
    "data.val_max_samples=256",
)
BOARD_START = Start("board", ("data", "self_play", BOARD, "--noise", "0.3", "--test-rows", "256"))
BOARD_WORLD = arm(BOARD_TRIAL, BOARD_START, "world")
BOARD_COINS = arm(BOARD_TRIAL, BOARD_START, "coins", COINS, "mas.workflow.name=CoinWorld")

# The agent has five guesses for a number of one digit. An agent that sees the remaining interval needs at most four; an
# agent that does not see it finds the number in a share `BLIND` of the episodes at most.
BLIND = 0.5
NUMBER = "openenv/Guessing"
NUMBER_TRIAL = hub("number", NUMBER, "acc/mean@1", 24, "2e-3", *in_world(NUMBER))
NUMBER_START = start("number", NUMBER, "--noise", "0.7", *WARM_UP)
SERVED = (
    'mas.workflow.args.options={{base_url:"http://127.0.0.1:8931/guess",'
    "action:number,observation:[{}],illegal_reward:-1}}"
)
NUMBER_SEEN = arm(NUMBER_TRIAL, NUMBER_START, "seen", SERVED.format("between"))
NUMBER_BLIND = arm(NUMBER_TRIAL, NUMBER_START, "blind", SERVED.format("left"))

SUM = "reasoning_gym/chain_sum"
SUM_TRIAL = hub(
    "sum",
    SUM,
    "acc/mean@1",
    40,
    "1e-3",
    *in_world(SUM),
    "data.train_batch_size=32",
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "data.max_prompt_length=128",
)
SUM_START = start(
    "sum",
    SUM,
    *("--options", "min_terms=2", "max_terms=2", "min_digits=1", "max_digits=1", "--noise", "0.5"),
    *WARM_UP,
)
SUM_WORLD = arm(SUM_TRIAL, SUM_START, "world")
SUM_COINS = arm(SUM_TRIAL, SUM_START, "coins", COINS, "mas.workflow.name=CoinWorld")

FOLDER = ROOT / "tests" / "support" / "verifiers_tasks"
WORD = "verifiers/reverse_word"
WORD_TRIAL = hub(
    "word",
    WORD,
    "reward/mean@1",
    24,
    "2e-3",
    "mas.workflow.args.taskset=reverse_word",
    f"mas.workflow.args.folder={FOLDER}",
)
WORD_START = start(
    "word",
    WORD,
    *("--options", "letters=abcdefgh", "length=3", "words=false", "num_tasks=512", "--folder", str(FOLDER)),
    *("--train-rows", "384", "--test-rows", "128", "--noise", "0.5"),
    *WARM_UP,
)
WORD_WORLD = arm(WORD_TRIAL, WORD_START, "world", workflow="verifiers")
WORD_COINS = arm(WORD_TRIAL, WORD_START, "coins", COINS, "mas.workflow.name=CoinVerifiers", workflow="verifiers")

TASK = Task(
    "worlds",
    "Worlds of hubs",
    (
        Group("textarena_dilemma", (JOINT, OWN)),
        Group("pettingzoo_board", (BOARD_WORLD, BOARD_COINS)),
        Group("openenv_number", (NUMBER_SEEN, NUMBER_BLIND)),
        Group("reasoning_gym_sum", (SUM_WORLD, SUM_COINS)),
        Group("verifiers_word", (WORD_WORLD, WORD_COINS)),
    ),
    (
        Claim("two prisoners that share what they earn end above 2.8 of 3 each", success(JOINT), low=2.8, seeds=SEEDS),
        Claim("and where each has its own, below 1.5", success(OWN), high=1.5, seeds=SEEDS),
        Claim("0.2 more boards are won", gain(BOARD_WORLD), low=0.2, seeds=SEEDS),
        Claim("0.15 more than after coin flips", gap(BOARD_WORLD, BOARD_COINS), low=0.15, seeds=SEEDS),
        Claim("a number is found more often than without hints", success(NUMBER_SEEN), low=BLIND, seeds=SEEDS),
        Claim("and by an agent without hints it is not", success(NUMBER_BLIND), high=BLIND, seeds=SEEDS),
        Claim("0.05 more sums are right than after coin flips", gap(SUM_WORLD, SUM_COINS), low=0.05, seeds=SEEDS),
        Claim("0.1 more of a word is right than after coin flips", gap(WORD_WORLD, WORD_COINS), low=0.1, seeds=SEEDS),
    ),
)
