"""Names of the metrics that a run logs, and functions that read them. `table.py` has their meanings.

The first segment says what a metric belongs to: `agent/<agent>/...`, `policy/<policy>/...`, `session/...`,
`filter/...`, `async/...`. The prefix `val-` marks a metric of validation. verl's own metrics keep verl's names. In a
team with one trained policy, verl's actor metrics have only verl's names, so that each number is logged once.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

AGENT, POLICY, SESSION = "agent", "policy", "session"
VALIDATION = "val-"
CORE = "val-core/"  # verl's prefix of the scores of a validation
MEASURES = "exploitability"  # pattern of the measures that a world reports besides its score
V = TypeVar("V")


def agent(name: str, key: str) -> str:
    return f"{AGENT}/{name}/{key}"


def policy(name: str, key: str) -> str:
    return f"{POLICY}/{name}/{key}"


def session(key: str) -> str:
    return f"{SESSION}/{key}"


def of_validation(metrics: Mapping[str, V]) -> dict[str, V]:
    return {f"{VALIDATION}{key}": value for key, value in metrics.items()}


def agents_in(keys: Iterable[str]) -> list[str]:
    """List the agents that acted, in the order of `keys`."""
    return names_in(keys, AGENT, "acts")


def policies_in(keys: Iterable[str]) -> list[str]:
    """List the trained policies, in the order of `keys`."""
    return names_in(keys, POLICY, "rows/real")


def names_in(keys: Iterable[str], kind: str, key: str) -> list[str]:
    """List the agents or policies that have this metric."""
    parts = (name.split("/", 2) for name in keys)
    return list(dict.fromkeys(part[1] for part in parts if part[0] == kind and part[2:] == [key]))


def key_of_policy(keys: Collection[str], name: str, key: str) -> str:
    """Return the name of a policy's metric in `keys`: verl's name if no other policy is trained."""
    own = policy(name, key)
    return own if own in keys or policies_in(keys) != [name] else key


def control_of(source: str, sources: Collection[str]) -> str | None:
    """Return the data source that `source` is a control of: `clues` for `clues_shuffled`; None for other sources."""
    base = source.removesuffix("_shuffled").removesuffix("_control")
    return base if base != source and base in sources else None
