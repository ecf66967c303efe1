"""Kuhn poker: three cards, one each, one bet. The smallest game in which bluffing pays; its value is -1/18 chips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from verl_mas.gym.games.game import Game, Player, register_game

CARDS = ("J", "Q", "K")
CHECK, BET, FOLD, CALL = "check", "bet", "fold", "call"
OPEN, FACING = (CHECK, BET), (FOLD, CALL)
# Player 0 has a family of equilibria, by how often it bets a jack. This one bluffs as often as is possible.
BLUFF = 1 / 3
# (the number of actions so far, whether the last was a bet) -> the card -> how often the second action is taken.
AGGRESSION: Mapping[tuple[int, bool], Mapping[str, float]] = {
    (0, False): {"J": BLUFF, "Q": 0.0, "K": 3 * BLUFF},
    (1, False): {"J": 1 / 3, "Q": 0.0, "K": 1.0},
    (1, True): {"J": 0.0, "Q": 1 / 3, "K": 1.0},
    (2, True): {"J": 0.0, "Q": BLUFF + 1 / 3, "K": 1.0},
}


@register_game("kuhn_poker")
@dataclass(frozen=True)
class KuhnPoker(Game):
    cards: tuple[str, ...]
    history: tuple[str, ...] = ()

    name = "kuhn_poker"
    rules = (
        "Kuhn poker: the deck is J, Q and K, and K is the highest card. Each player has one card, which the other does "
        "not see, and puts one chip into the pot. A player may check or bet one more chip; who faces a bet folds, and "
        "loses one chip, or calls with one more. Unless a player folds, the higher card wins."
    )
    stake = 2.0
    dealt = True

    @classmethod
    def starts(cls) -> Sequence[str]:
        return [" ".join(cards) for cards in permutations(CARDS, 2)]

    @classmethod
    def start(cls, name: str) -> KuhnPoker:
        return cls(tuple(name.split()))

    @property
    def player(self) -> Player:
        return 1 if len(self.history) == 1 else 0

    def actions(self) -> Sequence[str]:
        if self.history[-1:] == (BET,):
            return FACING
        over = self.history[-1:] in ((FOLD,), (CALL,)) or self.history == (CHECK, CHECK)
        return () if over else OPEN

    def after(self, action: str) -> KuhnPoker:
        return KuhnPoker(self.cards, (*self.history, action))

    def result(self) -> float:
        if self.history[-1] == FOLD:
            # The other one has made the last action but one.
            return 1.0 if len(self.history) == 2 else -1.0
        chips = 2.0 if self.history[-1] == CALL else 1.0
        first, second = map(CARDS.index, self.cards)
        return chips if first > second else -chips

    @property
    def card(self) -> str:
        return self.cards[self.player]

    def view(self) -> str:
        return f"Your card: {self.card}\nActions so far: {', '.join(self.history) or 'none'}"

    def compact(self) -> str:
        return " ".join([self.card, *self.history])

    def optimal(self) -> Mapping[str, float]:
        chance = AGGRESSION[len(self.history), self.history[-1:] == (BET,)][self.card]
        passive, active = self.actions()
        return {action: p for action, p in ((passive, 1 - chance), (active, chance)) if p}
