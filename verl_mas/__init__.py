"""Train teams of LLM agents with verl. Only the names in `__all__` are stable: docs/write/api.md describes them.

Entry points:
- `plugin.py`: verl imports it in every process; it registers everything else with verl.
- `cli/`: the command `verl-mas`.
- `__main__.py`: the same command as `python -m verl_mas`.

Teams and their environments:
- `workflow/`: the interface that teams are written against: agents, acts, sessions, tools.
- `workflows/`: teams that we ship, one file per team.
- `gateway/`: programs of other frameworks as teams, and clients of models on other servers.
- `environment/`: worlds, sandboxes, search, MCP servers, graders, and the tests and rewards of coding teams.
- `data/`: data sets for verl.
- `gym/`: toy tasks with their generators, teams and demos.
- `testing/`: checks of a team without a model, scripted replies, tiny models.

A run:
- `config/`: the `mas:` block, its schema, and names that extensions register.
- `planning/`: memory, time and disk of a run, estimated before it starts.
- `checks/`: errors and warnings before Ray starts.
- `rollout/`: sessions inside verl's agent-loop workers.
- `engines/`: inference engines of policies, and the CPU as a platform of verl.
- `advantage/`: advantages per agent, one file per estimator.
- `trainer/`: the trainer of a team: steps, credit, validation, checkpoints, lost processes.
- `run_folder/`: files that a run writes, its metrics among them.
- `results/`: reports, the viewer and exports of sessions; trained policies to chat with and to serve.

Below everything:
- `verl_/`: the contract with verl: types, registries, rows, and the traffic with TransferQueue.
- `util/`: small helpers that several packages need.
- `errors.py`: every exception that a user can meet.
- `py.typed`: tells type checkers that the package has types.
- `__init__.py`: this page, and the public names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from verl_mas.util.later import lazy

if TYPE_CHECKING:
    from verl_mas.advantage.estimator import compute_advantages as compute_advantages
    from verl_mas.advantage.estimator import estimator as estimator
    from verl_mas.advantage.estimator import within as within
    from verl_mas.advantage.kernel import to_tokens as to_tokens
    from verl_mas.advantage.options import AdvantageOptions as AdvantageOptions
    from verl_mas.advantage.record import AdvantageInput as AdvantageInput
    from verl_mas.advantage.record import AdvantageOutput as AdvantageOutput
    from verl_mas.advantage.record import RunningScores as RunningScores
    from verl_mas.config.mcp import McpSpec as McpSpec
    from verl_mas.config.schema import AgentSpec as AgentSpec
    from verl_mas.config.schema import BranchSpec as BranchSpec
    from verl_mas.config.schema import FaultSpec as FaultSpec
    from verl_mas.config.values import Above as Above
    from verl_mas.config.values import Range as Range
    from verl_mas.engines.facts import register_engine as register_engine
    from verl_mas.environment.execution.executor import Answer as Answer
    from verl_mas.environment.execution.executor import Call as Call
    from verl_mas.environment.execution.executor import Execution as Execution
    from verl_mas.environment.execution.executor import Executor as Executor
    from verl_mas.environment.execution.executor import Limits as Limits
    from verl_mas.environment.execution.executor import Result as Result
    from verl_mas.environment.execution.executor import Status as Status
    from verl_mas.environment.execution.executor import register_executor as register_executor
    from verl_mas.environment.execution.problem import Problem as Problem
    from verl_mas.environment.execution.problem import Returns as Returns
    from verl_mas.environment.execution.problem import Stdio as Stdio
    from verl_mas.environment.execution.problem import Verdict as Verdict
    from verl_mas.environment.execution.problem import run_tests as run_tests
    from verl_mas.environment.grading.grader import grader as grader
    from verl_mas.environment.grading.grader import register_grader as register_grader
    from verl_mas.environment.grading.math import AnswerChecker as AnswerChecker
    from verl_mas.environment.grading.math import Grade as Grade
    from verl_mas.environment.mcp.servers import McpServers as McpServers
    from verl_mas.environment.retrieval.client import RetrieverClient as RetrieverClient
    from verl_mas.environment.retrieval.client import SearchResult as SearchResult
    from verl_mas.environment.retrieval.corpus import Passage as Passage
    from verl_mas.environment.worlds.world import Observation as Observation
    from verl_mas.environment.worlds.world import View as View
    from verl_mas.environment.worlds.world import World as World
    from verl_mas.environment.worlds.world import register_world as register_world
    from verl_mas.errors import ConfigError as ConfigError
    from verl_mas.errors import DataError as DataError
    from verl_mas.errors import FaultKind as FaultKind
    from verl_mas.errors import InvalidInput as InvalidInput
    from verl_mas.errors import MasError as MasError
    from verl_mas.errors import SessionFault as SessionFault
    from verl_mas.errors import WorkflowError as WorkflowError
    from verl_mas.gateway.endpoints.openai import OpenAIClient as OpenAIClient
    from verl_mas.gateway.program import program as program
    from verl_mas.gateway.streaming import ActText as ActText
    from verl_mas.gym.puzzles.puzzle import Puzzle as Puzzle
    from verl_mas.gym.puzzles.puzzle import board as board
    from verl_mas.gym.puzzles.puzzle import register_puzzle as register_puzzle
    from verl_mas.results.serve.load import TrainedTeam as TrainedTeam
    from verl_mas.results.serve.load import load as load
    from verl_mas.results.sessions.reader import SessionIndex as SessionIndex
    from verl_mas.results.sessions.reader import read_sessions as read_sessions
    from verl_mas.testing.check_workflow import check_workflow as check_workflow
    from verl_mas.testing.scripted_llm import ScriptedLLM as ScriptedLLM
    from verl_mas.testing.scripted_llm import calls as calls
    from verl_mas.workflow.agents import instances as instances
    from verl_mas.workflow.base import Workflow as Workflow
    from verl_mas.workflow.base import nested as nested
    from verl_mas.workflow.base import register_workflow as register_workflow
    from verl_mas.workflow.client import Generation as Generation
    from verl_mas.workflow.client import LLMClient as LLMClient
    from verl_mas.workflow.client import Message as Message
    from verl_mas.workflow.client import Request as Request
    from verl_mas.workflow.client import ToolCall as ToolCall
    from verl_mas.workflow.codecs import ActionList as ActionList
    from verl_mas.workflow.codecs import Boxed as Boxed
    from verl_mas.workflow.codecs import Choice as Choice
    from verl_mas.workflow.codecs import CodeBlock as CodeBlock
    from verl_mas.workflow.codecs import Codec as Codec
    from verl_mas.workflow.codecs import JsonBlock as JsonBlock
    from verl_mas.workflow.codecs import Malformed as Malformed
    from verl_mas.workflow.codecs import Tag as Tag
    from verl_mas.workflow.codecs import between as between
    from verl_mas.workflow.codecs import checked as checked
    from verl_mas.workflow.codecs import only as only
    from verl_mas.workflow.codecs import visible as visible
    from verl_mas.workflow.commit import register_commit_rule as register_commit_rule
    from verl_mas.workflow.reply import Outcome as Outcome
    from verl_mas.workflow.reply import Reply as Reply
    from verl_mas.workflow.run import arun as arun
    from verl_mas.workflow.run import run as run
    from verl_mas.workflow.run import run_many as run_many
    from verl_mas.workflow.session import Session as Session
    from verl_mas.workflow.session import SessionResult as SessionResult
    from verl_mas.workflow.task import Task as Task
    from verl_mas.workflow.task import with_instruction as with_instruction
    from verl_mas.workflow.team import Agent as Agent
    from verl_mas.workflow.team import Conversation as Conversation
    from verl_mas.workflow.team import Team as Team
    from verl_mas.workflow.tool_loop import ToolLimits as ToolLimits
    from verl_mas.workflow.tools import CallContext as CallContext
    from verl_mas.workflow.tools import Tool as Tool
    from verl_mas.workflow.tools import ToolResult as ToolResult
    from verl_mas.workflows.folded import Folding as Folding
    from verl_mas.workflows.folded import FoldingRules as FoldingRules

__version__ = "0.2.0"
# verl imports this package in every process, so each public name is imported only when it is first used.
__getattr__, __dir__, __all__ = lazy(__name__, __file__)
