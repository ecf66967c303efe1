"""`team.yaml`: everything that a team needs to act, except weights. A run writes it into every checkpoint, and
`verl-mas export` writes it next to the weights.

The file has no keys or passwords. Keys of endpoints and the `env` of MCP servers are stored as names of environment
variables, and URLs are stored without user and query.
"""

import os
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, cast

import yaml
from omegaconf import DictConfig, OmegaConf

from verl_mas.config.mcp import McpSpec
from verl_mas.config.merge import snapshots
from verl_mas.config.registry import nearest
from verl_mas.config.run import Run, View
from verl_mas.config.sampling import Sampling
from verl_mas.config.schema import AgentSpec, BranchSpec, FaultSpec, FreeSettings, RemoteSpec, RewardSpec
from verl_mas.config.values import Count, Length, Text, load_dataclass, settable
from verl_mas.errors import ConfigError, raise_all
from verl_mas.run_folder.disk import write_whole
from verl_mas.util.text import bare_address, in_texts
from verl_mas.workflow.agents import DECODING, ResolvedAgent, wrong_names
from verl_mas.workflow.base import agents_of
from verl_mas.workflow.task import Task

TEAM_FILE = "team.yaml"
# Version of the file format. It is increased when earlier versions of verl-mas would misread the file.
FORMAT = 1
Dtype = Literal["bfloat16", "float16", "float32"]


@dataclass
class TeamWorkflow:
    """Workflow of the team, as in `mas.workflow`."""

    name: Text
    path: str | None = None  # file or module; the path of a file is absolute
    args: FreeSettings = field(default_factory=dict)


@dataclass
class TeamPolicy:
    """A policy of the team. Its weights are in `folder`, or in `model` if `folder` is not set. A remote policy has
    neither of the two."""

    model: str | None = None  # folder or hub name of the policy's model, or of the model from which training started
    folder: str | None = None  # folder next to this file with the weights of the policy, or with an adapter for `model`
    adapter_of: str | None = None  # policy with the base model of the adapter; its adapters can share an engine
    snapshot_of: str | None = None  # the policy of which this policy is an earlier state
    remote: RemoteSpec | None = None
    dtype: Dtype | None = None  # dtype of the weights in the engines of the run
    prompt_length: Count | None = None  # limit of the tokens of a prompt
    response_length: Count | None = None  # limit of the tokens after the prompt, in a reply or in a conversation
    tokenizer: str | None = None  # set only if it differs from the tokenizer of `model`
    chat_template: str | None = None  # set only if it differs from the template of the tokenizer
    start_adapter: str | None = None  # folder of the adapter from which training started


@dataclass
class TeamTools:
    """Files of the tools in `agents.<name>.tools`, in addition to the servers of `mcp`."""

    tool_config_path: str | None = None
    function_tool_path: str | None = None


@dataclass
class TeamFile:
    """Content of `team.yaml`."""

    format: int
    workflow: TeamWorkflow
    # Every agent of the workflow, by name. `sampling` and `validation_sampling` include the defaults of the run.
    agents: Annotated[dict[str, AgentSpec], Length(1)]
    policies: dict[str, TeamPolicy]
    step: Count | None = None  # the training step after which the team was saved
    plugins: list[str] = field(default_factory=list)
    branch: BranchSpec = field(default_factory=BranchSpec)
    faults: FaultSpec = field(default_factory=FaultSpec)
    tools: TeamTools = field(default_factory=TeamTools)
    mcp: dict[str, McpSpec] = field(default_factory=dict)
    reward: RewardSpec = field(default_factory=RewardSpec)
    # Settings of verl for the parsing of tool calls and the scoring of answers, by their dotted names.
    verl: FreeSettings = field(default_factory=dict)

    def text(self) -> str:
        """Format the team as YAML, without fields that have their default values."""
        return str(yaml.safe_dump(_plain(self), sort_keys=False, allow_unicode=True, width=120))

    def write(self, folder: Path) -> None:
        write_whole(folder / TEAM_FILE, self.text())


def read_team(folder: Path) -> TeamFile:
    """Read the `team.yaml` in a folder."""
    path = folder / TEAM_FILE
    try:
        content = yaml.safe_load(path.read_bytes())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        value = f"{path} cannot be read: {str(error).splitlines()[0]}"
        rule = "it describes the team, as a run or verl-mas export writes it"
        raise ConfigError(value, rule=rule, fix="give a checkpoint of a run, or the folder of an export") from error
    if isinstance(content, dict) and content.get("format") not in (None, FORMAT):
        value = f"{path}: format {content['format']}"
        rule = f"this version of verl-mas reads format {FORMAT}"
        raise ConfigError(value, rule=rule, fix="use the version of verl-mas that wrote it, or a later one")
    team = load_dataclass(TeamFile, content, str(path))
    # Names of policies are names of folders, so a foreign file could use a name to reach another folder.
    raise_all(wrong_names("policy", team.policies))
    references: dict[str, str | None] = {}
    for name, policy in team.policies.items():
        if policy.folder not in (None, name):
            value = f"{path}: policies.{name}.folder={policy.folder}"
            raise ConfigError(value, rule="the folder of a policy has its name", fix=f"set it to {name}")
        references[f"policies.{name}.adapter_of"] = policy.adapter_of
        references[f"policies.{name}.snapshot_of"] = policy.snapshot_of
    references |= {f"agents.{name}.policy": agent.policy for name, agent in team.agents.items()}
    for where, named in references.items():
        if named is not None and named not in team.policies:
            value = f"{path}: {where}={named}"
            raise ConfigError(value, rule="it names a policy of the file", fix=nearest(named, list(team.policies)))
    return team


def describe(run: Run) -> TeamFile:
    """Describe the team of a run, and load its user code."""
    rollout, workflow = run.config.actor_rollout_ref.rollout.get("multi_turn") or {}, run.mas.workflow
    return TeamFile(
        format=FORMAT,
        workflow=TeamWorkflow(workflow.name, _code(workflow.path), in_texts(_found_again, workflow.args)),
        agents={name: _agent(run, agent) for name, agent in agents_of(run.mas).items()},
        policies={name: _policy(run, name) for name in run.mas.policies},
        plugins=[str(_code(plugin)) for plugin in run.mas.plugins],
        branch=run.mas.branch,
        faults=run.mas.faults,
        tools=TeamTools(_placed(rollout.get("tool_config_path")), _placed(rollout.get("function_tool_path"))),
        # Leave out secrets.
        mcp={
            name: replace(spec, url=spec.url and bare_address(spec.url), env={}, pass_env=[*spec.pass_env, *spec.env])
            for name, spec in run.mas.mcp.items()
        },
        reward=run.mas.reward,
        verl=settings_of(run.config),
    )


def _agent(run: Run, agent: ResolvedAgent) -> AgentSpec:
    spec, policy = agent.spec, run.mas.policies[agent.spec.policy]
    training, validation = (_sampling(run.view(spec.policy), agent, validate=validate) for validate in (False, True))
    spec = replace(spec, sampling=training, validation_sampling=validation, trainable=True)
    if policy.remote:
        return spec
    longest = int(run.view(spec.policy).value("rollout.prompt_length"))
    kwargs = run.config.data.get("apply_chat_template_kwargs") or OmegaConf.create()
    given = cast(FreeSettings, OmegaConf.to_container(kwargs, resolve=True))
    return replace(
        spec,
        max_prompt_length=min(longest, spec.max_prompt_length or longest),
        chat_template_kwargs={**given, **spec.chat_template_kwargs},
    )


def _sampling(view: View, agent: ResolvedAgent, *, validate: bool) -> Sampling:
    """Compute the sampling settings that an act has in training or validation, if it overrides nothing."""
    settings = agent.sampling(Task([], validate=validate), {})
    if view.spec.remote is None:
        section = "rollout.val_kwargs" if validate else "rollout"
        rollout = {name: view.get(f"{section}.{name}") for name in DECODING}
        longest = int(view.value("rollout.response_length"))
        wanted = settings.get("max_tokens")
        settings = {**rollout, **settings, "max_tokens": min(wanted, longest) if isinstance(wanted, int) else longest}
    known = settable(Sampling)
    sampling = {name: value for name, value in settings.items() if name in known and value is not None}
    if extra := {name: value for name, value in settings.items() if name not in known}:
        sampling["extra"] = extra
    return load_dataclass(Sampling, sampling, f"sampling of agent {agent.name}")


def _policy(run: Run, name: str) -> TeamPolicy:
    view, spec = run.view(name), run.mas.policies[name]
    if spec.remote:
        return TeamPolicy(remote=spec.remote)
    dtype = view.get("rollout.dtype")
    return TeamPolicy(
        model=_placed(str(view.value("model.path"))),
        folder=name if name in (*run.trained, *snapshots(run.mas)) else None,
        adapter_of=spec.adapter_of,
        snapshot_of=spec.snapshot.of if spec.snapshot else None,
        dtype=dtype if dtype in ("bfloat16", "float16", "float32") else None,
        prompt_length=int(view.value("rollout.prompt_length")),
        response_length=int(view.value("rollout.response_length")),
        tokenizer=_placed(view.get("model.tokenizer_path")),
        chat_template=view.get("model.custom_chat_template"),
        start_adapter=_placed(view.get("model.lora_adapter_path")),
    )


def _found_again(text: str) -> str:
    """Prepare a string argument for `team.yaml`, which is in another folder. The path of an existing file, with or
    without `:name` after it, becomes absolute. A URL loses its user and query. A string with spaces, such as a prompt,
    is not changed."""
    file, colon, name = text.partition(":")
    if (os.sep in file or Path(file).suffix) and os.path.isfile(file):
        return f"{Path(file).absolute()}{colon}{name}"
    return text if any(map(str.isspace, text)) else bare_address(text)


def _placed(path: str | None) -> str | None:
    """Return the absolute path of an existing file or folder. Other values, such as names on the hub, are not
    changed."""
    return str(Path(path).absolute()) if path is not None and Path(path).exists() else path


def _code(where: str | None) -> str | None:
    """Return the absolute path of a Python file. The name of a module is not changed."""
    return _placed(where) if where is not None and where.endswith(".py") else where


def _plain(value: object) -> object:
    """Convert a value to plain YAML types; a dataclass becomes the fields that differ from their defaults."""
    if is_dataclass(value):
        return {
            item.name: _plain(own) for item in fields(value) if (own := getattr(value, item.name)) != _default(item)
        }
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _default(item: Field[object]) -> object:
    return item.default if item.default_factory is MISSING else item.default_factory()


_MULTI_TURN, _REWARD = "actor_rollout_ref.rollout.multi_turn", "reward"
CUSTOM, SANDBOX = f"{_REWARD}.custom_reward_function", f"{_REWARD}.sandbox_fusion"
REWARD_MODEL = f"{_REWARD}.reward_model.enable"
SETTINGS = (
    f"{_MULTI_TURN}.format",
    f"{_MULTI_TURN}.max_user_turns",
    f"{_MULTI_TURN}.max_assistant_turns",
    f"{_MULTI_TURN}.max_parallel_calls",
    f"{_MULTI_TURN}.max_tool_response_length",
    f"{_MULTI_TURN}.tool_response_truncate_side",
    "data.prompt_key",
    f"{CUSTOM}.path",
    f"{CUSTOM}.name",
    f"{CUSTOM}.reward_kwargs",
    f"{_REWARD}.reward_manager.source",
    f"{_REWARD}.reward_manager.name",
    f"{_REWARD}.reward_manager.module.path",
    f"{_REWARD}.reward_manager.module.name",
    f"{_REWARD}.reward_kwargs",
    f"{SANDBOX}.url",
    f"{SANDBOX}.memory_limit_mb",
    REWARD_MODEL,
)


def settings_of(config: DictConfig) -> FreeSettings:
    """Collect the values of SETTINGS by dotted name, without null values."""
    settings: FreeSettings = {}
    for name in SETTINGS:
        value = OmegaConf.select(config, name)
        if OmegaConf.is_config(value):
            settings[name] = OmegaConf.to_container(value, resolve=True)
        elif value is not None:
            written = {"url": bare_address, "path": _placed}.get(name.rpartition(".")[2])
            settings[name] = written(str(value)) if written else value
    return settings
