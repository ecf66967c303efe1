"""A game of two players: the learner against itself, an earlier self, or a player without an LLM."""

from __future__ import annotations

import argparse
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Literal, TypeAlias

from verl_mas.config.values import Count
from verl_mas.data.dataset import DATA_SETS, Prepared
from verl_mas.data.items import Item
from verl_mas.gym.games.game import GAMES, STRATEGIES, Game, Player, draw, start_of, task_of
from verl_mas.gym.warmup import Generated, Lesson, WarmUp
from verl_mas.util.splits import TEST, TRAIN, split_of
from verl_mas.workflow import Malformed, Outcome, Reply, Tag, Task, Team, Workflow, instances, register_workflow

Opponent: TypeAlias = Literal["self", "past", "random", "optimal"]
SEATS = ("first", "second")
PAST = "opponent"
COMPACT = "compact"
MOVE = Tag("move")
# A player's action; None for a reply without a legal one.
ChooseMove: TypeAlias = Callable[[Game], Awaitable[str | None]]


@register_workflow("self_play")
class SelfPlay(Workflow):
    """The learner is agent `first` where it plays as player 0, and `second` as player 1: it has a baseline per seat."""

    opponent: Opponent = "self"
    """Who plays against the learner: self, the other seat, which learns as well; past, an agent `opponent`, whose
    policy should be a snapshot of the learner's; random or optimal, a player without an LLM."""

    validation_opponent: Opponent = "random"
    """The same in validation."""

    opponents: Count = 1
    """Earlier selves. More than one are `opponent_0`, `opponent_1`, ..., each on a policy; a session draws one."""

    text: Literal["words", "compact"] = "words"
    """words: prompts for language models. compact: prompts of a few tokens, for tiny models."""

    @property
    def agents(self) -> Sequence[str]:
        past = instances(PAST, self.opponents) if self.opponents > 1 else (PAST,)
        return SEATS + (past if "past" in (self.opponent, self.validation_opponent) else ())

    def longest_prompt(self, role: str) -> tuple[int, int]:
        return 1, 0

    async def run(self, task: Task, team: Team) -> Outcome:
        game = start_of(task.question)
        # The learner changes seats from session to session; in validation, with one session, from task to task.
        seat: Player = (task.session + int(task.extra_info.get("index", 0))) % 2  # type: ignore[assignment]
        moves, forfeited = 0, None
        acts: tuple[list[Reply], list[Reply]] = ([], [])
        players = self.players(task, team, seat, acts)
        while game.actions() and forfeited is None:
            action = await players[game.player](game)
            moves += 1
            if action is None:
                forfeited = game.player
            else:
                game = game.after(action)
        won = game.result() if forfeited is None else game.stake * (1 if forfeited == 1 else -1)
        for player, replies in enumerate(acts):
            for reply in replies:
                reply.team_reward = won if player == 0 else -won
        own = won if seat == 0 else -won
        ending = {"acc": float(own > 0), "draw": float(own == 0), "loss": float(own < 0)}
        illegal = {"illegal": float(forfeited == seat), "opponent_illegal": float(forfeited == 1 - seat)}
        return Outcome(answer=f"{game.name}: {won:+g}", reward=own, info={**ending, **illegal, "moves": moves})

    def players(self, task: Task, team: Team, seat: Player, acts: Sequence[list[Reply]]) -> list[ChooseMove]:
        """Player 0 and player 1, who add their replies to `acts`."""
        kind = self.validation_opponent if task.validate else self.opponent
        # In training the uid has the step; in validation every step repeats the same draws.
        rng = random.Random(f"{task.question} {'' if task.validate else task.uid} {task.session}")

        def with_llm(agent: str, player: int) -> ChooseMove:
            async def choose(game: Game) -> str | None:
                reply = await team[agent].act(self.prompt(game))
                acts[player].append(reply)
                return self.read(reply, game)

            return choose

        async def scripted(game: Game) -> str | None:
            return draw(STRATEGIES[kind], game, rng)

        players = [with_llm(agent, player) for player, agent in enumerate(SEATS)]
        if kind == "past":
            players[1 - seat] = with_llm(rng.choice(self.agents[2:]), 1 - seat)
        elif kind != "self":
            players[1 - seat] = scripted
        return players

    def prompt(self, game: Game) -> str:
        if self.text == COMPACT:
            return game.compact()
        return (
            f"{game.rules}\n\n{game.view()}\nLegal moves: {', '.join(game.actions())}\n\nChoose a move. {MOVE.prompt()}"
        )

    def read(self, reply: Reply, game: Game) -> str | None:
        """The legal action in a reply. One that cannot be read is malformed, too."""
        move: str | Malformed = reply.text
        if self.text != COMPACT:
            move = reply.parse(MOVE)
        if isinstance(move, Malformed):
            return None
        legal = {action.casefold(): action for action in game.actions()}
        return legal.get(move.strip().casefold())


def starts(name: str, split: str) -> list[Item]:
    """Of a board game every start of the split; of a card game every deal."""
    kind = GAMES[name]
    questions = [task_of(name, start) for start in kind.starts()]
    return [Item(question, "", name) for question in questions if kind.dealt or split_of(question) == split]


def lessons(name: str, *, noise: float, seed: int = 0) -> Iterator[Lesson]:
    """Endless: the moves of random games, as tiny models see them. `noise` is the share of moves that may be illegal.
    A model that knows the rules and no strategy is where self-play starts."""
    rng = random.Random(f"lessons {name} {seed}")
    kind = GAMES[name]
    words: dict[str, None] = {}
    while True:
        state = kind.start(rng.choice(kind.starts()))
        while actions := state.actions():
            words |= dict.fromkeys(actions)
            reply = rng.choice(list(words) if rng.random() < noise else actions)
            yield Lesson("player", state.compact(), reply)
            state = state.after(rng.choice(actions))


@DATA_SETS.register("self_play")
class SelfPlayData(Generated):
    """The starts of a game of two players, for workflow self_play."""

    warm_up = WarmUp(steps=600, lessons=60_000)

    def options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--game", default="tic_tac_toe", help="one that `verl-mas list games` lists")

    def generate(self, options: argparse.Namespace) -> Prepared:
        train, test = starts(options.game, TRAIN), starts(options.game, TEST)
        return Prepared(train, test, test, {options.game: {}}, keep_overlap=GAMES[options.game].dealt)

    def lessons(self, options: argparse.Namespace) -> Iterator[Lesson]:
        return lessons(options.game, noise=options.noise, seed=options.seed)
