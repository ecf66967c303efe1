"""Train teams of LLM agents with verl. The names in `__all__` are stable, see docs/api.md; nothing else is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verl_mas.util.lazy import lazy

if TYPE_CHECKING:
    from verl_mas.advantage.estimator import compute_advantages, estimator, within
    from verl_mas.advantage.kernel import to_tokens
    from verl_mas.advantage.options import AdvantageOptions
    from verl_mas.advantage.record import AdvantageInput, AdvantageOutput, RunningScores
    from verl_mas.config.mcp import McpSpec
    from verl_mas.config.schema import AgentSpec, BranchSpec, FaultSpec
    from verl_mas.config.values import Above, Range
    from verl_mas.endpoints.openai import OpenAIClient
    from verl_mas.engines.facts import register_engine
    from verl_mas.errors import (
        ConfigError,
        DataError,
        FaultKind,
        InvalidInput,
        MasError,
        SessionFault,
        WorkflowError,
    )
    from verl_mas.execution.executor import Execution, Executor, register_executor
    from verl_mas.execution.limits import Answer, Call, Limits, Result, Status
    from verl_mas.execution.problem import Problem
    from verl_mas.execution.unit_tests import Returns, Stdio, Verdict, run_tests
    from verl_mas.grading.grader import grader, register_grader
    from verl_mas.grading.math import AnswerChecker, Grade
    from verl_mas.gym.puzzles.base import Puzzle, register_puzzle
    from verl_mas.gym.puzzles.boards import board
    from verl_mas.mcp.servers import McpServers
    from verl_mas.retrieval.client import RetrieverClient, SearchResult
    from verl_mas.retrieval.corpus import Passage
    from verl_mas.serve.load import TrainedTeam, load
    from verl_mas.sessions.reader import SessionIndex, read_sessions
    from verl_mas.testing.check_workflow import check_workflow
    from verl_mas.testing.scripted_llm import ScriptedLLM, calls
    from verl_mas.workflow.base import Workflow, nested, register_workflow
    from verl_mas.workflow.client import Generation, LLMClient, Message, Request, ToolCall
    from verl_mas.workflow.codecs import ActionList, Boxed, Choice, CodeBlock, JsonBlock, Tag
    from verl_mas.workflow.codecs.base import Codec, Malformed, between, checked, only, visible
    from verl_mas.workflow.commit import register_commit_rule
    from verl_mas.workflow.members import instances
    from verl_mas.workflow.outcome import Outcome
    from verl_mas.workflow.reply import Reply
    from verl_mas.workflow.run import arun, run, run_many
    from verl_mas.workflow.session import Session, SessionResult
    from verl_mas.workflow.streaming import ActText
    from verl_mas.workflow.task import Task, with_instruction
    from verl_mas.workflow.team import Agent, Conversation, Team
    from verl_mas.workflow.tool_loop import ToolLimits
    from verl_mas.workflow.tools import CallContext, Tool, ToolResult

__version__ = "0.1.0"
__all__ = [
    "Above",
    "ActText",
    "ActionList",
    "AdvantageInput",
    "AdvantageOptions",
    "AdvantageOutput",
    "Agent",
    "AgentSpec",
    "Answer",
    "AnswerChecker",
    "Boxed",
    "BranchSpec",
    "Call",
    "CallContext",
    "Choice",
    "CodeBlock",
    "Codec",
    "ConfigError",
    "Conversation",
    "DataError",
    "Execution",
    "Executor",
    "FaultKind",
    "FaultSpec",
    "Generation",
    "Grade",
    "InvalidInput",
    "JsonBlock",
    "LLMClient",
    "Limits",
    "Malformed",
    "MasError",
    "McpServers",
    "McpSpec",
    "Message",
    "OpenAIClient",
    "Outcome",
    "Passage",
    "Problem",
    "Puzzle",
    "Range",
    "Reply",
    "Request",
    "Result",
    "RetrieverClient",
    "Returns",
    "RunningScores",
    "ScriptedLLM",
    "SearchResult",
    "Session",
    "SessionFault",
    "SessionIndex",
    "SessionResult",
    "Status",
    "Stdio",
    "Tag",
    "Task",
    "Team",
    "Tool",
    "ToolCall",
    "ToolLimits",
    "ToolResult",
    "TrainedTeam",
    "Verdict",
    "Workflow",
    "WorkflowError",
    "arun",
    "between",
    "board",
    "calls",
    "check_workflow",
    "checked",
    "compute_advantages",
    "estimator",
    "grader",
    "instances",
    "load",
    "nested",
    "only",
    "read_sessions",
    "register_commit_rule",
    "register_engine",
    "register_executor",
    "register_grader",
    "register_puzzle",
    "register_workflow",
    "run",
    "run_many",
    "run_tests",
    "to_tokens",
    "visible",
    "with_instruction",
    "within",
]

# verl imports this package in every process, so a name is imported when it is asked for.
__getattr__, __dir__ = lazy(
    __name__,
    {
        "verl_mas.advantage.kernel": ("to_tokens",),
        "verl_mas.advantage.estimator": ("compute_advantages", "estimator", "within"),
        "verl_mas.advantage.options": ("AdvantageOptions",),
        "verl_mas.advantage.record": ("AdvantageInput", "AdvantageOutput", "RunningScores"),
        "verl_mas.config.mcp": ("McpSpec",),
        "verl_mas.config.schema": ("AgentSpec", "BranchSpec", "FaultSpec"),
        "verl_mas.config.values": ("Above", "Range"),
        "verl_mas.engines.facts": ("register_engine",),
        "verl_mas.errors": (
            "ConfigError",
            "DataError",
            "FaultKind",
            "InvalidInput",
            "MasError",
            "SessionFault",
            "WorkflowError",
        ),
        "verl_mas.execution.executor": ("Execution", "Executor", "register_executor"),
        "verl_mas.execution.limits": ("Answer", "Call", "Limits", "Result", "Status"),
        "verl_mas.execution.problem": ("Problem",),
        "verl_mas.execution.unit_tests": ("Returns", "Stdio", "Verdict", "run_tests"),
        "verl_mas.grading.grader": ("grader", "register_grader"),
        "verl_mas.grading.math": ("AnswerChecker", "Grade"),
        "verl_mas.gym.puzzles.base": ("Puzzle", "register_puzzle"),
        "verl_mas.gym.puzzles.boards": ("board",),
        "verl_mas.retrieval.client": ("RetrieverClient", "SearchResult"),
        "verl_mas.retrieval.corpus": ("Passage",),
        "verl_mas.serve.load": ("TrainedTeam", "load"),
        "verl_mas.sessions.reader": ("SessionIndex", "read_sessions"),
        "verl_mas.testing.check_workflow": ("check_workflow",),
        "verl_mas.testing.scripted_llm": ("ScriptedLLM", "calls"),
        "verl_mas.workflow.base": ("Workflow", "nested", "register_workflow"),
        "verl_mas.workflow.client": ("Generation", "LLMClient", "Message", "Request", "ToolCall"),
        "verl_mas.workflow.codecs": ("ActionList", "Boxed", "Choice", "CodeBlock", "JsonBlock", "Tag"),
        "verl_mas.workflow.codecs.base": ("Codec", "Malformed", "between", "checked", "only", "visible"),
        "verl_mas.workflow.commit": ("register_commit_rule",),
        "verl_mas.mcp.servers": ("McpServers",),
        "verl_mas.workflow.members": ("instances",),
        "verl_mas.endpoints.openai": ("OpenAIClient",),
        "verl_mas.workflow.outcome": ("Outcome",),
        "verl_mas.workflow.reply": ("Reply",),
        "verl_mas.workflow.run": ("arun", "run", "run_many"),
        "verl_mas.workflow.session": ("Session", "SessionResult"),
        "verl_mas.workflow.streaming": ("ActText",),
        "verl_mas.workflow.task": ("Task", "with_instruction"),
        "verl_mas.workflow.team": ("Agent", "Conversation", "Team"),
        "verl_mas.workflow.tool_loop": ("ToolLimits",),
        "verl_mas.workflow.tools": ("CallContext", "Tool", "ToolResult"),
    },
)
