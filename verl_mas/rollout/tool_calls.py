"""Calls of tools in sampled tokens, read by verl's parser (`rollout.multi_turn.format`)."""

from collections.abc import Sequence
from typing import Literal, cast

from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.tools.schemas import OpenAIFunctionToolSchema
from verl.workers.config import MultiTurnConfig

from verl_mas.verl_.types import Tokenizer
from verl_mas.workflow.client import Request, ToolCall
from verl_mas.workflow.codecs import JsonObject
from verl_mas.workflow.tool_loop import ToolLimits


async def read_calls(loop: ToolAgentLoop, request: Request, ids: Sequence[int]) -> tuple[str, list[ToolCall]]:
    """Parse sampled tokens into the text without the calls, and the calls."""
    text, calls = await loop.tool_parser.extract_tool_calls(list(ids), [_model(schema) for schema in request.tools])
    # Remove special tokens. verl's parsers keep them, because some models use special tokens in the format of calls.
    for token in cast(Tokenizer, loop.tokenizer).all_special_tokens:
        text = text.replace(token, "")
    return text, [ToolCall(call.name, call.arguments, call.tool_call_id) for call in calls]


def tool_limits(multi_turn: MultiTurnConfig) -> ToolLimits:
    """Convert verl's limits. No reply is sampled beyond `max_assistant_turns`, so calls of the last reply are not
    executed."""
    rounds = [multi_turn.max_user_turns, multi_turn.max_assistant_turns and multi_turn.max_assistant_turns - 1]
    return ToolLimits(
        parallel_calls=multi_turn.max_parallel_calls,
        result_chars=multi_turn.max_tool_response_length,
        truncate_side=cast('Literal["left", "middle", "right"]', multi_turn.tool_response_truncate_side),
        rounds=min((most for most in rounds if most is not None), default=None),
    )


def _model(schema: JsonObject) -> OpenAIFunctionToolSchema:
    """Convert a schema to verl's pydantic model. Only fields that verl's parsers read are kept, because the model
    refuses much that OpenAI's schemas allow."""
    function = schema["function"]
    parameters = function.get("parameters") or {}
    given = (parameters.get("properties") or {}).items()
    # A parameter without a type is declared as an object, which parsers read as JSON or, if that fails, as a string.
    properties = {name: {"type": wanted.get("type") or "object"} for name, wanted in given}
    read = {"type": "object", "properties": properties, "required": parameters.get("required") or []}
    known = {"name": function["name"], "description": function.get("description") or "", "parameters": read}
    return OpenAIFunctionToolSchema.model_validate({"type": "function", "function": known})
