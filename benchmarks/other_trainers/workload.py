"""The work that every trainer gets: short chats, eight replies per prompt, 16 tokens per reply, all weights trained.

Each trainer runs in a separate environment, so this module imports only the standard library.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

PROMPTS, SESSIONS, REPLY = 4, 8, 16  # prompts per step; replies per prompt; tokens per reply
STEPS = 6
LEARNING_RATE = 1e-6
# Stories about these animals are longer than a reply, so all trainers sample the same number of tokens.
ANIMALS = (
    "cat dog horse cow sheep goat pig hen duck goose fox wolf bear lion tiger whale crab frog toad snake owl".split()
)
PLACES = "river forest".split()


def questions() -> list[str]:
    """Return a different prompt for every task of all steps."""
    stories = [
        f"Tell me a long story about a {animal} that lives near a {place}." for animal in ANIMALS for place in PLACES
    ]
    return stories[: PROMPTS * STEPS]


def score(reply: str) -> float:
    """Return the share of vowels in a reply. Sampled replies differ in it, so the rewards of a prompt differ."""
    return sum(letter in "aeiou" for letter in reply) / max(len(reply), 1)


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: object = None) -> float:
    """Return the same reward, with the signature that verl calls."""
    return score(solution_str)


def step_done(log: Path, tokens: int) -> None:
    """Append a line to the log with the time at which a step ended and the number of tokens sampled in it."""
    with log.open("a") as out:
        out.write(json.dumps({"time": time.time(), "tokens": tokens}) + "\n")
