"""Worlds of others: do agents with an LLM of their own learn what a world rewards? They run in `.venv-hubs`."""

from __future__ import annotations

from benchmarks.evidence.arms import Start, Training, Trial, using
from benchmarks.evidence.claims import Claim, gap, success
from benchmarks.evidence.tasks.base import Group, Task

STEPS = 60
# PettingZoo: one agent sees a colour and sends a signal, the other sees the signal and names the colour. The control is
# a runner that sees no signal: the best constant answer is right in 0.42 of the held-out episodes.
SIGNALS = "pettingzoo/tests/support/toy_zoo.py:Signals"
CONSTANT = 0.42
AGENTS = ("scout", "runner")
TRIAL = Trial(
    "signals",
    STEPS,
    f"val-core/{SIGNALS}/reward/mean@8",
    settings=(
        "+recipe=self_play/laptop",
        f"trainer.total_training_steps={STEPS}",
        f"mas.workflow.args.world={SIGNALS}",
        "mas.workflow.args.opponent=self",
        "mas.workflow.args.validation_opponent=self",
        *(f"~mas.policies.{name}" for name in ("main", "past")),
        *(f"~mas.agents.{name}" for name in ("player_0", "player_1", "opponent")),
        *(f"++mas.policies.{name}={{}}" for name in AGENTS),
        *(f"++mas.agents.{name}.policy={name}" for name in AGENTS),
        *using("agent_grpo"),
    ),
)
MODEL = ("data", "self_play", SIGNALS, "--noise", "0.01", "--test-rows", "96", "--train-rows", "256")
HEARING = Training("signals_heard", TRIAL, Start("signals", MODEL), "world", seeds=3)
DEAF_MODEL = (*MODEL, "--options", "deaf=true")
DEAF = Training("signals_deaf", TRIAL, Start("signals-deaf", DEAF_MODEL), "world", seeds=3)

TASK = Task(
    "worlds",
    "Worlds of others",
    (Group("world_signals", (HEARING, DEAF)),),
    (
        Claim(
            "two policies learn a signal in PettingZoo: above a constant answer",
            success(HEARING),
            low=CONSTANT,
            seeds=3,
        ),
        Claim("and above a runner that sees no signal", gap(HEARING, DEAF), low=0.0, seeds=3),
    ),
)
