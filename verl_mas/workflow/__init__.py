"""What users write a workflow with: plain async Python in which agents act."""

from verl_mas.workflow.base import Workflow, nested, register_workflow
from verl_mas.workflow.client import Continuation, Generation, LLMClient, Message, Request, ToolCall
from verl_mas.workflow.codecs import ActionList, Boxed, Choice, CodeBlock, Codec, JsonBlock, Malformed, Tag
from verl_mas.workflow.members import instances
from verl_mas.workflow.outcome import Outcome
from verl_mas.workflow.reply import Reply
from verl_mas.workflow.task import Task, with_instruction
from verl_mas.workflow.team import Agent, Conversation, Team, restored
from verl_mas.workflow.tool_loop import ToolLimits
from verl_mas.workflow.tools import Tool, ToolResult

__all__ = [
    "ActionList",
    "Agent",
    "Boxed",
    "Choice",
    "CodeBlock",
    "Codec",
    "Continuation",
    "Conversation",
    "Generation",
    "JsonBlock",
    "LLMClient",
    "Malformed",
    "Message",
    "Outcome",
    "Reply",
    "Request",
    "Tag",
    "Task",
    "Team",
    "Tool",
    "ToolCall",
    "ToolLimits",
    "ToolResult",
    "Workflow",
    "instances",
    "nested",
    "register_workflow",
    "restored",
    "with_instruction",
]
