"""One session: its paths, its acts and their limits."""

from __future__ import annotations

import asyncio
import copy
import html
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from verl_mas.config.schema import BranchSpec, FaultSpec, RewardSpec
from verl_mas.errors import FaultKind, SessionFault, WorkflowError, failures
from verl_mas.run_folder.records import SCHEMA, Record
from verl_mas.util.loops import together
from verl_mas.util.text import all_encodable
from verl_mas.verl_.row import VERDICTS, Act
from verl_mas.workflow.agents import DECODING, ResolvedAgent
from verl_mas.workflow.client import Continuation, Generation, LLMClient, Message, Request, message_of
from verl_mas.workflow.clock import Clock, ended, now, start
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.commit import COMMIT_RULES
from verl_mas.workflow.record import Clip, Recording, act_record, as_text, fault_record
from verl_mas.workflow.reply import Outcome, Reply
from verl_mas.workflow.rewards import Row, Score, row_rewards, rows_of
from verl_mas.workflow.task import Task
from verl_mas.workflow.tool_loop import ToolLimits, ToolLoop
from verl_mas.workflow.tool_sources import toolsets
from verl_mas.workflow.tools import Tool, Tools


@dataclass(frozen=True)
class SessionConfig:
    """Settings and clients that all sessions of a run share."""

    agents: Mapping[str, ResolvedAgent]
    clients: Mapping[str, LLMClient]
    branch: BranchSpec = field(default_factory=BranchSpec)
    reward: RewardSpec = field(default_factory=RewardSpec)
    faults: FaultSpec = field(default_factory=FaultSpec)
    tools: Mapping[str, Tool] = field(default_factory=dict)  # tools by the names in `mas.agents.<name>.tools`
    tool_limits: ToolLimits = field(default_factory=ToolLimits)


@dataclass
class Line:
    """A path through a session. Each line counts the acts and instances of its agents, so that parallel lines do not
    change the numbers of each other."""

    # Seed of the session. Each line draws its own random numbers, so acts of other lines do not change them.
    seed: str = ""
    name: str = ""  # empty for the main path; unique in the session
    # Index of the forked candidate that this line continues. Acts of the line have this index as their branch. They
    # are trained on, unless the line is a probe.
    fork: int | None = None
    probe: bool = False  # True if the acts of this line are probes, which are neither stored nor trained on
    replies: list[Reply] = field(default_factory=list)  # acts of this line so far, without acts from before its start
    # True after candidates of this line were forked. The session then continues on the forks, whose acts continue the
    # numbering of this line.
    over: bool = False
    _turns: Counter[tuple[str, int]] = field(default_factory=Counter)
    _instances: Counter[str] = field(default_factory=Counter)

    @property
    def alone(self) -> bool:
        """Whether each act of this line has a single candidate, as in probes and in continuations of forked
        candidates."""
        return self.probe or self.fork is not None

    @property
    def spawned(self) -> int:
        return sum(self._instances.values())

    def next_turn(self, agent: str, instance: int) -> int:
        turn = self._turns[agent, instance]
        self._turns[agent, instance] += 1
        return turn

    def new_instance(self, agent: str) -> int:
        """Return the number of a new instance. Numbers start at 1, since the agent itself is instance 0."""
        self._instances[agent] += 1
        return self._instances[agent]

    def random(self, name: str) -> random.Random:
        """Return a generator of random numbers for one purpose, with the same seed whenever the session is repeated."""
        return random.Random(f"{self.seed}/{self.name}/{name}")

    def probing(self, name: str = "probe") -> Line:
        """Copy this line for acts that are not trained on. `name` distinguishes the copy from other lines."""
        return self._copy(name, self.fork, probe=True)

    def forked(self, candidate: int, name: str = "fork") -> Line:
        """Copy this line to continue a forked candidate. The acts are trained on, unless this line is a probe."""
        return self._copy(f"{name}/{candidate}", candidate, probe=self.probe)

    def _copy(self, name: str, fork: int | None, *, probe: bool) -> Line:
        turns, instances = Counter(self._turns), Counter(self._instances)
        return Line(self.seed, f"{self.name}/{name}", fork, probe, _turns=turns, _instances=instances)


@dataclass(frozen=True)
class Ask:
    """Parameters of `Session.act`: an instance of an agent requests `n` replies to one prompt, on one path of the
    session (`line`)."""

    agent: ResolvedAgent
    line: Line
    messages: Sequence[Message] = ()
    sampling: Mapping[str, object] = field(default_factory=dict)
    n: int = 1
    instance: int = 0
    tools: Tools = ()
    continues: Continuation | None = None  # the conversation that the act continues
    calls_open: bool = False  # the caller of `act` answers all tool calls, and the agent's own tools are not offered
    origin: str = ""


class Session:
    """One attempt at a task, with its `replies`, `outcome`, `answer`, `team_reward` and `info`."""

    def __init__(self, task: Task, config: SessionConfig, attempt: int = 0):
        self.task, self.config, self.attempt = task, config, attempt
        self.replies: list[Reply] = []
        self.boards: list[Record] = []
        self.outcome: Outcome | None = None
        self.score: Score | None = None
        self.started, self.seconds = now(), 0.0
        # The seed is made from the task and the attempt, so that a run can be repeated.
        seed = f"{task.extra_info.get('index')}/{task.step}/{task.session}/{attempt}"
        self.rng = random.Random(seed)
        self.line = Line(seed)
        self.scorer: Scorer | None = None  # verl's reward function, for outcomes without a reward
        self._new_row = count()
        self._acts = {False: 0, True: 0}  # number of acts; the acts of probes are counted under True
        self._pending: set[asyncio.Future[list[Reply]]] = set()
        self._over = False

    async def act(self, ask: Ask) -> list[Reply]:
        """Generate and record the replies to one prompt. For each reply, tools are called and the model generates
        again, until a reply has no tool calls."""
        agent, line = ask.agent, ask.line
        # As in verl, `tool_selection` in a dataset row may select some of the agent's tools.
        named, selected = agent.spec.tools, self.task.extra_info.get("tool_selection")
        configured = [self.config.tools[name] for name in selected or named if name in named and not ask.calls_open]
        usable = toolsets(configured, ask.tools, ask.n)
        await self._admit(ask.n, line)
        turn = line.next_turn(agent.name, ask.instance)
        act = Act(agent.name, agent.role, agent.policy(self.task), ask.instance, turn)
        request = self._request(ask, turn, [tool.schema for tool in usable[0].values()])
        row = ask.continues.row if ask.continues else None
        rows = [next(self._new_row) if row is None else row for _ in range(ask.n)]
        started = now()
        with failures(agent=act.agent, turn=act.turn):
            replies = await self._timed(self._perform(ask, request, act, usable, rows))
        seconds = now() - started
        for reply in replies:
            reply.started, reply.seconds = started - self.started, seconds
        self.replies.extend(replies)
        line.replies.extend(replies)
        return replies

    def commit(self, replies: Sequence[Reply]) -> Reply:
        """Choose the candidate with which the session continues, by the configured commit rule."""
        if len(replies) == 1:
            return replies[0]
        spec = self.config.branch
        rule = COMMIT_RULES[spec.commit]
        if rule.needs_scores and any(reply.reward is None and reply.team_reward is None for reply in replies):
            value = f"commit of {len(replies)} replies of {replies[0].agent}, and not all have a reward"
            fix = "set reply.reward or reply.team_reward on each, or use mas.branch.commit=uniform"
            raise WorkflowError(value, rule=f"the rule {spec.commit!r} compares rewards", fix=fix)
        agents, weights = self.config.agents, self.config.reward
        # Score each candidate alone, because together with other candidates it could share their penalties.
        scores = [row_rewards([[reply]], 0.0, agents, weights)[0].score for reply in replies]
        chosen = replies[rule.choose(scores, spec.temperature, self.rng)]
        for reply in replies:
            reply.committed = reply is chosen
        return chosen

    def candidates(self, k: int | None, line: Line) -> int:
        """Return the number of candidates of a branch for which the workflow requests `k`."""
        spec = self.config.branch
        if line.alone:
            return 1
        if self.task.validate:
            return spec.validation_k
        return spec.k if k is None else k

    async def score_of(self, outcome: Outcome) -> Score:
        """Return the reward of an outcome. If the outcome has no reward, verl's reward function scores its answer."""
        if outcome.reward is not None:
            return Score(outcome.reward)
        if self.scorer is None:
            value = "a continued candidate ended in an outcome without a reward"
            rule = "the outcome of a continued candidate has a reward, or verl's reward function scores it"
            raise WorkflowError(value, rule=rule, fix="return Outcome(reward=...) or a number")
        # The scorer reads the outcome from a session. This session has no outcome yet, so the scorer gets a copy that
        # has this outcome.
        ended = copy.copy(self)
        ended.outcome = outcome
        return await asyncio.wait_for(self.scorer(ended), self.config.faults.session_timeout_s)

    @property
    def team_reward(self) -> float | None:
        """The reward from the workflow, or else from verl's reward function; None if neither scored the session."""
        if self.outcome is not None and self.outcome.reward is not None:
            return self.outcome.reward
        return self.score.reward if self.score else None

    @property
    def info(self) -> dict[str, object]:
        """The `info` of the scorer and of the outcome, merged. Its strings are encodable, because they are written to
        metrics and files."""
        return all_encodable({**(self.score.info if self.score else {}), **(self.outcome.info if self.outcome else {})})

    @property
    def reported(self) -> dict[str, object]:
        """The part of the outcome that rows and records store: `info` and the verdicts."""
        verdicts = self.outcome.verdicts if self.outcome else {}
        return {**self.info, VERDICTS: verdicts} if verdicts else self.info

    @property
    def answer(self) -> str | None:
        return self.outcome.text if self.outcome else None

    def __repr__(self) -> str:
        return f"<Session of task {self.task.key}: {len(self.replies)} acts, answer {self.answer!r:.60}>"

    def __str__(self) -> str:
        return as_text(self.record())

    def _repr_html_(self) -> str:
        """Return the transcript as HTML, for notebooks."""
        return f'<pre style="white-space:pre-wrap">{html.escape(str(self))}</pre>'

    def rows(self) -> list[Row]:
        return rows_of(self.task, self.replies, self.team_reward or 0.0, self.config.agents, self.config.reward)

    def record(
        self, status: str | None = None, faults: Sequence[SessionFault] = (), how: Recording | None = None
    ) -> Record:
        """Return the session as plain data, for files and transcripts.

        `status` is finished, dropped or cancelled, or None while the session runs.
        """
        task, clip = self.task, Clip(how or Recording())
        by_act = {id(reply): row for row in self.rows() for reply in row.replies}
        return {
            "schema": SCHEMA,
            "uid": task.uid,
            "group": task.uid,
            "session": task.session,
            "step": task.step,
            "partition": "val" if task.validate else "train",
            "status": status,
            "task": {
                "messages": clip.messages(task.messages),
                "ground_truth": task.ground_truth,
                "data_source": task.data_source,
                "index": task.extra_info.get("index"),
            },
            "boards": list(self.boards),
            "acts": [act_record(reply, by_act[id(reply)], clip) for reply in self.replies],
            "outcome": {"answer": clip.text(self.answer), "reward": self.team_reward, "info": self.reported},
            "faults": [fault_record(attempt, fault) for attempt, fault in enumerate(faults)],
            "started": round(self.started, 3),
            "seconds": round(self.seconds, 4),
            "uniform": None,
        }

    async def close(self) -> None:
        """End the session, and cancel its running acts, whose replies are not needed any more."""
        self._over = True
        self.seconds = now() - self.started
        pending = list(self._pending)
        for act in pending:
            act.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    async def _admit(self, n: int, line: Line) -> None:
        faults = self.config.faults
        limit = faults.max_probe_acts if line.probe else faults.max_acts
        if not self._over and not line.over and self._acts[line.probe] + n <= limit:
            self._acts[line.probe] += n
            return
        # Yield to the event loop before raising. Otherwise a workflow that catches the error and retries would block
        # the loop and could not be cancelled.
        await asyncio.sleep(0)
        if line.over and not self._over:
            rule = "a fork continues every candidate to the end of the session, so no act follows it"
            fix = "act in the `play` that is given to `fork`, with the team that it is given"
            raise WorkflowError("an act after a fork", rule=rule, fix=fix)
        if line.probe and not self._over:
            raise SessionFault(
                FaultKind.LIMIT,
                f"more than {limit} acts of continued candidates; rule: a session has at most "
                f"mas.faults.max_probe_acts={limit} of them; fix: continue fewer candidates, fewer times "
                "(mas.branch.k, the continuations of the workflow), or raise mas.faults.max_probe_acts",
            )
        raise SessionFault(FaultKind.LIMIT, "the session is over" if self._over else f"more than {limit} acts")

    def _request(self, ask: Ask, turn: int, tools: Sequence[JsonObject]) -> Request:
        task, spec = self.task, ask.agent.spec
        settings = ask.agent.sampling(task, ask.sampling)
        if task.greedy:
            settings = {name: value for name, value in settings.items() if name not in DECODING}
        return Request(
            agent=ask.agent.name,
            session=task.key,
            instance=ask.instance,
            line=ask.line.name,
            turn=turn,
            messages=ask.messages,
            sampling=settings,
            validate=task.validate,
            greedy=task.greedy,
            chat_template_kwargs=spec.chat_template_kwargs,
            tools=tools,
            max_prompt_length=spec.max_prompt_length,
            truncation=spec.truncation,
            opening=task.opening(ask.messages),
            continues=ask.continues,
            fields=task.fields,
        )

    async def _perform(
        self, ask: Ask, request: Request, act: Act, tools: Sequence[Mapping[str, Tool]], rows: Sequence[int]
    ) -> list[Reply]:
        """Generate all candidates with one call of the client, then run the tool loop of each candidate
        concurrently."""
        client = self.config.clients[act.policy]
        generations = await client.generate(request, len(rows))
        candidates = enumerate(zip(rows, generations, strict=True))
        replies = [self._reply(ask, request, replace(act, branch=branch), *made) for branch, made in candidates]

        if ask.calls_open:
            return replies

        async def generate(continued: Request) -> Generation:
            return (await client.generate(continued))[0]

        runs = []
        for branch, (reply, usable) in enumerate(zip(replies, tools, strict=True)):
            continued = replace(request, branch=branch)
            runs.append(ToolLoop(generate, continued, reply, usable, ask.agent.spec, self.config.tool_limits).run)
        await together(runs)
        return replies

    def _reply(self, ask: Ask, request: Request, act: Act, row: int, generation: Generation) -> Reply:
        line = ask.line
        return Reply(
            act if line.fork is None else replace(act, branch=line.fork),
            messages=request.messages,
            generation=generation,
            among=ask.n,
            probe=line.probe,
            line=line.name,
            trainable=ask.agent.trainable and not line.probe,
            committed=ask.n == 1 and not line.probe,
            row=row,
            tool_calls=generation.tool_calls,
            steps=[message_of(generation, generation.tool_calls)],
            sampled=[generation.sampled],
            origin=ask.origin,
        )

    async def _timed(self, work: Awaitable[list[Reply]]) -> list[Reply]:
        limit = self.config.faults.act_timeout_s
        clock = Clock(limit)
        act = start(work, clock)
        self._pending.add(act)
        act.add_done_callback(self._pending.discard)
        if not await ended(act, clock):
            raise SessionFault(FaultKind.TIMEOUT, f"the act took more than {limit:g} s")
        return act.result()


@dataclass(frozen=True)
class SessionResult:
    """The result of a session: its last attempt, and the failure of every attempt that failed."""

    session: Session
    faults: Sequence[SessionFault] = ()
    failed: bool = False


Scorer = Callable[[Session], Awaitable[Score]]
