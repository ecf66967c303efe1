"""The account of every card: applies events, at given sizes, and refuses what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ledger.events import CONTEXT, KV, WEIGHTS, Event, Holder

USABLE = 0.92
"""Of a card: the rest is for fragments and for what nobody accounts for."""


class OverCard(Exception):
    """More than the card has."""


class WrongOrder(Exception):
    """A process does what needs memory that it does not hold."""


@dataclass(frozen=True)
class PolicySizes:
    """Of one policy, in GiB per card."""

    trainer: Mapping[str, float]
    """By the names of `events`."""

    weights: float
    """Of the engine."""

    engine_context: float
    """What a sleeping engine holds."""

    fraction: float
    """rollout.gpu_memory_utilization"""

    of_free: bool = False
    """SGLang: the fraction is of what is free at the start and covers weights and KV cache. vLLM: it is of the card
    and covers everything."""


@dataclass(frozen=True)
class Sizes:
    """Of a team."""

    card: float
    """GiB that a process finds on an empty card."""

    policies: Mapping[str, PolicySizes]

    @property
    def limit(self) -> float:
        return self.card * USABLE


@dataclass
class _Process:
    held: dict[str, float] = field(default_factory=dict)
    reserved: float = 0.0
    """With what PyTorch keeps after it was freed."""

    kv: float = 0.0


@dataclass(frozen=True)
class Entry:
    """A card after an event."""

    event: Event
    phase: str
    used: float
    holders: Mapping[Holder, float]

    def __str__(self) -> str:
        held = ", ".join(f"{holder} {gib:.1f}" for holder, gib in sorted(self.holders.items(), key=lambda it: -it[1]))
        return f"{self.event.what} of {self.event.holder} ({self.phase}): {self.used:.1f} GiB on card: {held}"


class Account:
    """All cards of a run. `strict=False` accounts for what does not fit, too."""

    def __init__(self, sizes: Sizes, *, strict: bool = True):
        self.sizes = sizes
        self.phase = "start"
        self._strict = strict
        self._cards: dict[str, dict[Holder, _Process]] = {}

    def add(self, event: Event) -> Entry | None:
        """None if the event is of no card."""
        if event.holder is None:
            self.phase = event.what
            return None
        processes = self._cards.setdefault(event.card, {})
        free = self.sizes.card - _used(processes)
        process = processes.setdefault(event.holder, _Process())
        if missing := [name for name in event.needs if name not in process.held]:
            raise WrongOrder(f"{event.what} of {event.holder} ({self.phase}) without its {' and '.join(missing)}")
        if event.holder.kind == "engine" and not process.kv:
            process.kv = self._kv(event, free)
        for name in event.free:
            process.held.pop(name, None)
        for name in event.take:
            process.held[name] = self._gib(event.holder, name, process)
        live = sum(process.held.values())
        # An engine's allocators give memory back at once.
        keeps = event.holder.kind == "trainer" and not event.empty_cache
        process.reserved = max(live, process.reserved) if keeps else live
        entry = Entry(event, self.phase, _used(processes), {h: p.reserved for h, p in processes.items()})
        if self._strict and entry.used > self.sizes.limit:
            raise OverCard(f"{entry}; the limit is {self.sizes.limit:.1f}, {USABLE:.2f} of {self.sizes.card:.1f}")
        return entry

    def card_of(self, holder: Holder) -> str:
        return next(card for card, processes in self._cards.items() if holder in processes)

    def _gib(self, holder: Holder, name: str, process: _Process) -> float:
        sizes = self.sizes.policies[holder.policy]
        if holder.kind == "trainer":
            return sizes.trainer[name]
        return {CONTEXT: sizes.engine_context, WEIGHTS: sizes.weights, KV: process.kv}[name]

    def _kv(self, event: Event, free: float) -> float:
        """What an engine reserves when it starts."""
        assert event.holder is not None
        sizes = self.sizes.policies[event.holder.policy]
        if sizes.of_free:
            kv = sizes.fraction * free - sizes.weights
        else:
            kv = sizes.fraction * self.sizes.card - sizes.weights - sizes.engine_context
            if self._strict and sizes.fraction * self.sizes.card > free:
                raise OverCard(f"{event.holder} starts with {sizes.fraction} of the card, and {free:.1f} GiB are free")
        if kv <= 0:
            raise OverCard(f"{event.holder} has no memory for a KV cache: {kv:.1f} GiB")
        return kv


def _used(processes: Mapping[Holder, _Process]) -> float:
    return sum(process.reserved for process in processes.values())


def replay(events: Iterable[Event], sizes: Sizes, *, strict: bool = True) -> list[Entry]:
    """A card's holdings after every event."""
    account = Account(sizes, strict=strict)
    return [entry for event in events if (entry := account.add(event))]


def peaks(entries: Iterable[Entry]) -> dict[str, Entry]:
    """The fullest moment of every phase."""
    found: dict[str, Entry] = {}
    for entry in entries:
        if entry.phase not in found or entry.used > found[entry.phase].used:
            found[entry.phase] = entry
    return found
