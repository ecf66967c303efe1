"""A world of another library as a team: each player is an agent, or one player learns and the others play against
it."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Annotated, ClassVar, Literal, TypeAlias

from verl_mas.config.values import Count, Positive, Range, Text
from verl_mas.environment.worlds.hosts import POOL, Draw, Place, Stages, rehearse
from verl_mas.environment.worlds.world import NAME, OPTIONS, SEED, Observation, Script, Setup, View, find
from verl_mas.errors import ConfigError, DataError
from verl_mas.util.loops import together
from verl_mas.workflow import Malformed, Message, Outcome, Reply, Tag, Task, Team, Workflow, register_workflow
from verl_mas.workflow.agents import instances
from verl_mas.workflow.codecs import visible
from verl_mas.workflow.task import with_instruction
from verl_mas.workflow.team import Conversation

ACTION = Tag("action")
PAST = "opponent"
SCRIPTS: Sequence[Script] = ("random", "optimal")
Opponent: TypeAlias = Literal["self", "past", "random", "optimal"]


@dataclass(frozen=True)
class Cast:
    """Maps each player to an agent, or to a strategy that needs no LLM."""

    agents: Mapping[str, str]  # player -> agent
    drawn: Mapping[str, Draw]
    learners: Sequence[str]  # players whose mean reward is the reward of the session


@register_workflow("world")
class WorldTeam(Workflow):
    """Each player is an agent. The reward of an act is the sum of its player's rewards from this act to the end of the
    episode."""

    # Values that match these patterns run no code. A `world` with a colon would name code, and other strings in
    # `options` could name a function or an address.
    safe_arguments: ClassVar = {"world": r"\w+/[^:]+", "options": r"[\w ,()=-]*"}

    world: Text = "open_spiel/tic_tac_toe"
    """`<hub>/<name>`, or a class in a file, such as `my_world.py:MyWorld`. `verl-mas list worlds` lists the hubs."""

    options: Mapping[str, object] = field(default_factory=dict)
    """Options of the hub for the world."""

    opponent: Opponent = "self"
    """The other players. self: agents that also learn. past: an agent `opponent`, whose policy should be a snapshot of
    the learner's policy. random or optimal: a player without an LLM. Except with self, the learner changes seats from
    session to session."""

    validation_opponent: Opponent = "self"
    """The other players in validation."""

    opponents: Count = 1
    """Number of agents for the opponent `past`. Several agents are named `opponent_0`, `opponent_1`, ..., each with its
    own policy, and each session samples one of these agents."""

    text: Literal["words", "compact"] = "words"
    """words: prompts for language models. compact: prompts of a few tokens, for tiny models."""

    memory: Literal["none", "conversation"] = "none"
    """none: an act is a row, and its prompt is the player's current observation. conversation: the acts of a player are
    one row, and each prompt adds the new observation."""

    continuations: Annotated[int, Range(0, 64)] = 0
    """Number of continuations of each candidate to the end of the episode. The candidate's reward is the mean return of
    its player. 0: the candidate's reward is the reward of its own step."""

    runs_in: Literal["thread", "process"] = "thread"
    """The host of an episode. thread: a thread of the rollout worker. process: another process, so a world that hangs
    can be killed and blocks no other session, but each step takes longer."""

    step_timeout_s: Positive = 60.0
    """Timeout of a step. A step that takes longer is a fault of the session."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.address, self.kind, self.name = find(self.world)
        if self.continuations and (reason := self.fixed):
            value = f"mas.workflow.args.continuations={self.continuations} with {self.world}"
            raise ConfigError(value, rule=f"candidates continue from copies, and {reason}", fix="set it to 0")

    @property
    def fixed(self) -> str | None:
        """The reason why an episode cannot be copied; None if it can be copied."""
        if self.memory == "conversation":
            return "a conversation has no copies (mas.workflow.args.memory)"
        return self.kind.fixed(self.setup())

    @property
    def players(self) -> Sequence[str]:
        return self.kind.players(self.setup())

    @property
    def agents(self) -> Sequence[str]:
        past = instances(PAST, self.opponents) if self.opponents > 1 else (PAST,)
        return (*self.players, *(past if "past" in (self.opponent, self.validation_opponent) else ()))

    @property
    def branches(self) -> bool:
        return self.fixed is None

    def check(self) -> None:
        setup = self.setup()
        self.kind.check(setup)
        rehearse(self.address, setup, [one for one in SCRIPTS if one in (self.opponent, self.validation_opponent)])

    def setup(self, task: Task | None = None) -> Setup:
        """Make the setup of an episode. A dataset row may name another world of the hub, and options of its own."""
        row = task.extra_info if task else {}
        if row and SEED not in row:
            rule = f"a row of a world has {SEED} in its extra_info: without it all episodes begin the same"
            raise DataError(f"a row with {', '.join(row)}", rule=rule, fix="write rows with verl-mas data world")
        options = {**self.options, **json.loads(row.get(OPTIONS) or "{}")}
        return Setup(row.get(NAME) or self.name, int(row.get(SEED) or 0), options, self.text == "compact")

    async def run(self, task: Task, team: Team) -> Outcome:
        setup = self.setup(task)
        if tuple(players := self.kind.players(setup)) != tuple(self.players):
            value, rule = f"a row of {setup.name} for {', '.join(players)}", f"the team has {', '.join(self.players)}"
            raise DataError(value, rule=rule, fix="give all rows the players of the team")
        async with POOL.stage(self.address, self.runs_in, self.step_timeout_s) as stages:
            start = await stages.open(setup)
            episode = Episode(self, stages, self.cast(task), team)
            end = (await episode.play(start)).view
        episode.reward(end)
        own = fmean(end.rewards[player] for player in episode.cast.learners)
        earned = {f"reward_{player}": reward for player, reward in end.rewards.items()}
        illegal = {f"illegal_{player}": float(end.illegal.get(player, 0)) for player in end.rewards}
        info: dict[str, object] = {"steps": episode.steps, **earned, **illegal}
        if len(episode.cast.learners) == 1:
            info |= {"acc": float(own > 0), "draw": float(own == 0), "loss": float(own < 0)}
        listed = ", ".join(f"{player} {reward:+g}" for player, reward in end.rewards.items())
        return Outcome(answer=f"{self.world}: {listed}", reward=own, info={**info, **end.info})

    def cast(self, task: Task) -> Cast:
        players = self.players
        opponent = self.validation_opponent if task.validate else self.opponent
        if opponent == "self":
            return Cast({player: player for player in players}, {}, players)
        # The learner changes players from session to session or, in validation with one session, from task to task.
        learner = players[(task.session + int(task.extra_info.get("index", 0))) % len(players)]
        others = [player for player in players if player != learner]
        # The uid depends on the step. The seed of a validation excludes the uid, so all validations sample the same
        # opponents and the same moves of players without an LLM.
        seed = f"{task.question} {'' if task.validate else task.uid} {task.session}"
        if opponent == "past":
            past = random.Random(seed).choice(self.agents[len(players) :])
            return Cast({learner: learner, **dict.fromkeys(others, past)}, {}, [learner])
        return Cast({learner: learner}, {player: Draw(opponent, f"{seed} {player}") for player in others}, [learner])

    def prompt(self, seen: Observation, *, news: bool = False) -> Sequence[Message]:
        """Make the prompt of an observation. `news`: whether the conversation has already begun."""
        content = seen.news if news and seen.news is not None else seen.content
        messages: list[Message] = [{"role": "user", "content": content}]
        if self.text == "compact":
            return messages
        legal = f"Legal actions: {', '.join(seen.legal)}\n\n" if seen.legal else ""
        return with_instruction(messages, f"{legal}{seen.form or ACTION.prompt()}")

    def read(self, reply: Reply, seen: Observation) -> str | None:
        """Read the action in a reply. A legal action is returned in the world's own spelling."""
        action: str | Malformed
        if self.text == "compact":
            action = reply.text
        elif seen.form:
            action = visible(reply.text)
        else:
            action = reply.parse(ACTION)
        if isinstance(action, Malformed):
            return None
        text, legal = action.strip(), seen.legal or ()
        # Case counts only if it distinguishes actions: in chess, bxc3 and Bxc3 are two moves.
        return text if text in legal else {name.casefold(): name for name in legal}.get(text.casefold(), text)


class Episode:
    """Plays an episode to the end, and continues its candidates, each in its own copy of the episode."""

    def __init__(self, world: WorldTeam, stages: Stages, cast: Cast, team: Team, steps: int = 0):
        self.world, self.stages, self.cast, self.team, self.steps = world, stages, cast, team, steps
        self._acts: list[tuple[Reply, str, float]] = []  # reply, its player, the player's total reward before the act
        self._conversations: dict[str, Conversation] = {}

    async def play(self, place: Place) -> Place:
        while place.view.observations:
            self.team.draw(place.view.board)
            place = await self._turn(place)
            self.steps += 1
        self.team.draw(place.view.board)
        return place

    def reward(self, end: View) -> None:
        for reply, player, before in self._acts:
            if reply.team_reward is None:
                reply.team_reward = end.rewards[player] - before

    async def _turn(self, place: Place) -> Place:
        seen = place.view.observations
        acting = [player for player in seen if player in self.cast.agents]
        if len(acting) == 1 and self.world.branches:
            return await self._branch(place, acting[0])
        replies = await together([partial(self._act, player, seen[player]) for player in acting])
        return await self._step(place, dict(zip(acting, replies, strict=True)))

    async def _act(self, player: str, seen: Observation) -> Reply:
        agent = self.team[self.cast.agents[player]]
        if self.world.memory == "none":
            return await agent.act(self.world.prompt(seen))
        begun = player in self._conversations
        if not begun:
            self._conversations[player] = agent.conversation()
        return await self._conversations[player].act(self.world.prompt(seen, news=begun))

    async def _branch(self, place: Place, player: str) -> Place:
        """Sample candidates. Each candidate makes its step in a copy, and all copies have the same random events."""
        agent = self.team[self.cast.agents[player]]
        replies = await agent.branch(self.world.prompt(place.view.observations[player]))
        if len(replies) == 1:
            return await self._step(place, {player: replies[0]})
        copied = place.copy()
        copied.reseed(self.team.random("candidates"))
        reached = {reply: await self._step(copied, {player: reply}) for reply in replies}
        before = place.view.rewards[player]
        await together([partial(self._score, reply, player, before, after) for reply, after in reached.items()])
        return reached[self.team.commit(replies)]

    async def _score(self, reply: Reply, player: str, before: float, after: Place) -> None:
        async def play_on(team: Team, _: Reply, place: Place) -> float:
            rest = Episode(self.world, self.stages, self.cast, team, self.steps + 1)
            return (await rest.play(place)).view.rewards[player] - before

        if after.view.observations and self.world.continuations:
            await self.team.continue_from(reply, play_on, after, self.world.continuations)
        else:
            reply.team_reward = after.view.rewards[player] - before

    async def _step(self, place: Place, replies: Mapping[str, Reply]) -> Place:
        seen, earned = place.view.observations, place.view.rewards
        self._acts += [(reply, player, earned[player]) for player, reply in replies.items()]
        read = {player: self.world.read(reply, seen[player]) for player, reply in replies.items()}
        drawn = {player: self.cast.drawn[player].at(self.steps) for player in seen if player not in replies}
        return await self.stages.step(place, {**read, **drawn})
