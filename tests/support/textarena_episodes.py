"""Random episodes of TextArena. As a program it drives the library alone, and prints how each episode ended."""

import json
import random
import re
import sys

WORDS = "Cooperate Defect Accept Deny check fold call bet up down left right hit stand rock paper scissors roll hold"
# Number of players by game. Some games draw random numbers at every step, eliminate players, or have one player.
PLAYERS = {
    "TicTacToe-v0": 2,
    "KuhnPoker-v0": 2,
    "PigDice-v0": 2,
    "SimpleNegotiation-v0": 2,
    "IteratedPrisonersDilemma-v0": 2,
    "LiarsDice-v0": 2,
    "ThreePlayerIPD-v0": 3,
    "SecretMafia-v0": 6,
    "2048-v0": 1,
    "Sokoban-v0": 1,
}
EPISODES = [(name, seed) for name in PLAYERS for seed in range(10)]
STEPS = 60


def action(rng: random.Random, text: str) -> str:
    """Choose an action: usually one that the text names, otherwise anything."""
    named = re.findall(r"\[[^\[\]]*\]", text)[-20:]
    anything = [f"[{rng.randrange(10)}]", f"[{rng.choice(WORDS.split())}]", "", "no brackets", "[" * 3000]
    chosen: str = rng.choice(named if named and rng.random() < 0.85 else anything)
    return chosen


def alone(name: str, seed: int) -> tuple[object, int]:
    import textarena

    rng, done, steps = random.Random(f"{name} {seed}"), False, 0
    env = textarena.make(name)
    env.reset(num_players=PLAYERS[name], seed=seed)
    while not done and steps < STEPS:
        _, text = env.get_observation()
        done, _ = env.step(action(rng, text))
        steps += 1
    return env.close()[0], steps


if __name__ == "__main__":
    json.dump([alone(name, seed) for name, seed in EPISODES], sys.stdout)
