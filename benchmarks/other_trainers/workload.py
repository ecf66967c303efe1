"""The work that every trainer gets: short chats, eight samples of a prompt, replies of 16 tokens, all weights.

The trainers run in environments of their own, so this module imports the standard library alone.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

PROMPTS, SESSIONS, REPLY = 4, 8, 16  # of a step; tokens of a reply
STEPS = 6
LEARNING_RATE = 1e-6
# None of these stories ends within a reply, so that all trainers sample equally many tokens.
ANIMALS = (
    "cat dog horse cow sheep goat pig hen duck goose fox wolf bear lion tiger whale crab frog toad snake owl".split()
)
PLACES = "river forest".split()


def questions() -> list[str]:
    """Return enough prompts for all steps, none of them twice."""
    stories = [
        f"Tell me a long story about a {animal} that lives near a {place}." for animal in ANIMALS for place in PLACES
    ]
    return stories[: PROMPTS * STEPS]


def score(reply: str) -> float:
    """Return the share of vowels, in which sampled replies differ."""
    return sum(letter in "aeiou" for letter in reply) / max(len(reply), 1)


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: object = None) -> float:
    """Return the same reward, with the signature that verl calls."""
    return score(solution_str)


def step_done(log: Path, tokens: int) -> None:
    """Write that a step is done, and how many tokens were sampled for it."""
    with log.open("a") as out:
        out.write(json.dumps({"time": time.time(), "tokens": tokens}) + "\n")
