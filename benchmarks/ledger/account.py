"""The account of all cards, which applies events at given sizes and checks whether each event is possible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ledger.events import KV, Event, Holder
from ledger.sizes import Sizes
from verl_mas.planning.events import ROLLOUT, START, SYNC
from verl_mas.planning.hardware import GIB


class Refused(Exception):
    """An event takes more memory than the card has, or uses memory that its process does not hold."""


@dataclass
class _Process:
    sizes: Mapping[str, float]
    held: set[str] = field(default_factory=set)
    reserved: float = 0.0
    """Bytes of held memory, and of freed memory that PyTorch keeps."""

    @property
    def live(self) -> float:
        return sum(self.sizes[name] for name in self.held)


@dataclass(frozen=True)
class Entry:
    """The state of a card after an event."""

    event: Event
    phase: str
    used: float
    by: Mapping[Holder, float]
    wrong: str
    """Why the event is not possible; empty if it is possible."""

    def __str__(self) -> str:
        held = ", ".join(f"{holder} {size / GIB:.1f}" for holder, size in sorted(self.by.items(), key=lambda i: -i[1]))
        return f"{self.phase}: {self.event.what} of {self.event.holder}: {self.used / GIB:.1f} GiB ({held})"


class Account:
    """The memory of all cards of a run."""

    def __init__(self, sizes: Sizes):
        self._sizes = sizes
        self._phase = START
        self._cards: dict[str, dict[Holder, _Process]] = {}

    def add(self, event: Event) -> Entry | None:
        """Apply an event and return the card's state after it; None if the event begins a phase of the step."""
        if event.holder is None:
            self._phase = event.what
            return None
        card = self._cards.setdefault(event.card, {})
        wrong = ""
        if event.holder not in card:
            free = self._sizes.card - _used(card)
            card[event.holder] = _Process(self._sizes_of(event.holder, free))
            if event.holder.kind == "engine":
                wrong = self._sizes.cannot_start(event.holder.policy, free)
        process = card[event.holder]
        if missing := set(event.needs) - process.held:
            wrong = f"it does not hold its {' and '.join(sorted(missing))}"
        process.held = process.held - set(event.free) | set(event.take)
        # An engine gives freed memory back at once. In a trainer, PyTorch keeps it until its cache is emptied.
        keeps = event.holder.kind == "trainer" and not event.empty_cache
        process.reserved = max(process.live, process.reserved if keeps else 0.0)
        used, limit = _used(card), self._sizes.limit
        if not wrong and used > limit:
            wrong = f"that is more than {limit / GIB:.1f} GiB, the safe share of {self._sizes.card / GIB:.1f}"
        return Entry(event, self._phase, used, {holder: of.reserved for holder, of in card.items()}, wrong)

    def card_of(self, holder: Holder) -> str:
        for name, card in self._cards.items():
            if holder in card:
                return name
        raise Refused(f"{holder} has not joined: the ledger knows trained policies only")

    def _sizes_of(self, holder: Holder, free: float) -> Mapping[str, float]:
        is_trainer = holder.kind == "trainer"
        sizes: Mapping[str, float]
        sizes = self._sizes.trainer(holder.policy) if is_trainer else self._sizes.engine(holder.policy, free)
        return sizes


def _used(card: Mapping[Holder, _Process]) -> float:
    return sum(process.reserved for process in card.values())


def accounted(events: Iterable[Event], sizes: Sizes) -> list[Entry]:
    """Return the state of the event's card after every event."""
    account = Account(sizes)
    return [entry for event in events if (entry := account.add(event))]


def require(entry: Entry) -> None:
    if entry.wrong:
        raise Refused(f"{entry}\n  {entry.wrong}")


def peaks(entries: Iterable[Entry]) -> dict[tuple[str, str | None], float]:
    """Return the peak bytes of a card by phase and policy. The policy None stands for all policies.

    The sync phase ends when the engine takes its KV cache.
    """
    found: dict[tuple[str, str | None], float] = {}
    for entry in entries:
        assert entry.event.holder is not None
        phase = ROLLOUT if entry.phase == SYNC and KV in entry.event.take else entry.phase
        for policy in (entry.event.holder.policy, None):
            found[phase, policy] = max(found.get((phase, policy), 0.0), entry.used)
    return found
