"""The base class of workflows, and functions that find a workflow by its name or file."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeVar

from verl_mas.config.registry import Registry, nearest
from verl_mas.config.schema import DEFAULT_POLICY, MasConfig, WorkflowSpec
from verl_mas.config.user_code import load_module
from verl_mas.config.values import check_fields, load_dataclass
from verl_mas.errors import ConfigError, ForeignError, foreign
from verl_mas.workflow.agents import ResolvedAgent, resolve_agents, role_of
from verl_mas.workflow.codecs import Codec
from verl_mas.workflow.reply import Outcome
from verl_mas.workflow.task import Task
from verl_mas.workflow.team import Team

# Patterns for `safe_arguments`: any string, and the name of an entry in a registry.
ANY_TEXT, REGISTERED = r"(?s).*", r"[A-Za-z]\w*"


class Workflow:
    """A team's program: its `agents` and an async `run`. One object runs one session.

    Override `agents` and `run`, and where needed `branches`, `forks`, `answered_by`, `answer_form`, `most_acts` and
    `check`. Annotated fields are set by `mas.workflow.args` (subclasses are dataclasses); a value that does not fit its
    field's type is refused. This base class only sets and checks these fields.
    """

    safe_arguments: ClassVar[Mapping[str, str]] = {}
    """String arguments that are only data, each with a regular expression for its safe values. A team from someone else
    may set these arguments to safe values. Any other string could name a file, a module, a command or an address, so
    the user is asked about it when the team is loaded."""

    @property
    def agents(self) -> Sequence[str]:
        """The names of the team's agents. Most workflows set a plain tuple instead of a property."""
        return ()

    @property
    def branches(self) -> bool:
        """Whether `run` samples several candidates of one act, so that they can be compared. Most workflows set a plain
        bool instead of a property."""
        return False

    @property
    def forks(self) -> bool:
        """Whether `run` uses `team.fork`, which continues every candidate to the end with acts that are trained on."""
        return False

    @property
    def start_s(self) -> float:
        """Seconds that may pass before the first act. The time limits of the session are paused during this time."""
        return 0.0

    @property
    def answered_by(self) -> str | None:
        """Name of the agent whose only act is the answer. A server can stream this act while it is sampled. None: the
        answer is known only when the session has ended. A subclass with its own `run` does not inherit this name."""
        return None

    def __init_subclass__(cls, **kwargs: object):
        super().__init_subclass__(**kwargs)
        base = cls.__mro__[1]
        if "run" in vars(cls) and issubclass(base, Workflow) and base.run is not Workflow.run:
            # A subclass with its own `run` does not inherit these declarations.
            for name in {"answered_by", "answer_form"} - vars(cls).keys():
                setattr(cls, name, vars(Workflow)[name])
        dataclasses.dataclass(kw_only=True, eq=False)(cls)

    def __post_init__(self) -> None:
        """Check the types of the fields. A subclass can override this method to check further rules; it must call
        `super().__post_init__()` first."""
        check_fields(self, type(self).__name__)

    def most_acts(self, k: int) -> int | None:
        """Return the number of acts of the longest session if a branch has `k` candidates; None if it is not known.
        Acts beyond `mas.faults.max_acts` are refused."""
        return None

    def answer_form(self, data_source: str | None) -> Codec[str] | None:
        """Return the format of the answer in the scored reply. A check renders the ground truth in this format and
        scores it. None: the format is not known, and nothing is checked."""
        return None

    async def run(self, task: Task, team: Team) -> Outcome:
        raise NotImplementedError

    def check(self) -> None:
        """Raise an error before a run starts if every session would fail. Examples are a server that is down and a
        missing package."""


def nested(name: str, team: Workflow | type[Workflow] | Sequence[str]) -> tuple[str, ...]:
    """Return the names of a sub-team's agents in the outer team, where `team.sub(name)` is the sub-team.

    `team` is the workflow of the sub-team, its class if it needs no arguments, or the names of its agents.
    """
    workflow = team() if isinstance(team, type) else team
    agents = workflow if isinstance(workflow, Sequence) else workflow.agents
    return tuple(f"{name}_{agent}" for agent in agents)


W = TypeVar("W", bound=type[Workflow])
WORKFLOWS: Registry[type[Workflow]] = Registry("workflow", package="verl_mas.workflows", group="verl_mas.workflows")


def register_workflow(name: str) -> Callable[[W], W]:
    """Register a workflow class under the name that `mas.workflow.name` uses."""
    return WORKFLOWS.register(name)  # type: ignore[return-value]


def resolve(spec: WorkflowSpec) -> Workflow:
    """Make the workflow object of one session. Raises ConfigError for a wrong name or argument."""
    return load_dataclass(find(spec.name, spec.path), spec.args, "mas.workflow.args")


def agents_of(mas: MasConfig) -> dict[str, ResolvedAgent]:
    """Return all agents of the configured workflow by name, with their settings."""
    return resolve_agents(resolve(mas.workflow).agents, mas.agents, mas.policies, mas.swap)


def team_file(name: str) -> dict[str, object]:
    """Return the content of the group file `mas/<name>` of a registered workflow, so that no YAML file is needed.

    It lists the agents, so that `mas.agents.<agent>.policy=...` needs no plus sign. Agents that depend on arguments
    without a default are not listed.
    """
    try:
        with foreign():
            roles = dict.fromkeys(map(role_of, resolve(WorkflowSpec(name)).agents))
    except ForeignError:  # the checks report errors of user code
        roles = {}
    agents = {role: {"policy": DEFAULT_POLICY} for role in roles}
    return {"defaults": ["team", "_self_"], "mas": {"workflow": {"name": name}, "agents": agents or None}}


def find(name: str, path: str | None = None) -> type[Workflow]:
    """Find a workflow class by its registered name or, if `path` is set, by its name in that file or module."""
    names = vars(load_module(path, "mas.workflow.path")) if path is not None else {}
    in_file = {n: c for n, c in names.items() if inspect.isclass(c) and issubclass(c, Workflow) and c is not Workflow}
    if name not in in_file and name not in WORKFLOWS:
        value, fix = f"mas.workflow.name={name}", nearest(name, [*in_file, *WORKFLOWS])
        if path:
            value += f", mas.workflow.path={path}"
            fix += f"; classes of that file: {', '.join(in_file) or 'none'}"
        rule = "a workflow is shipped, registered by an installed package or by mas.plugins, or a class of the file or "
        raise ConfigError(value, rule=f"{rule}module at mas.workflow.path", fix=fix)
    workflow = in_file[name] if name in in_file else WORKFLOWS[name]
    if not inspect.iscoroutinefunction(workflow.run):
        problem, fix = "has a `run` that is not async", "write `async def run`"
    elif workflow.run is Workflow.run:
        problem, fix = "has no `run`", "write `async def run(self, task, team)`"
    else:
        return workflow
    rule = "a workflow's `run` is an async function"
    raise ConfigError(f"workflow {workflow.__name__} {problem}", rule=rule, fix=fix)
