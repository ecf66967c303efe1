"""Whether a policy that is served here sees its tools in its prompts, and whether verl finds its calls."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from verl_mas.checks.chat_template import ChatTemplate
from verl_mas.checks.model_folder import local_folder
from verl_mas.checks.refusals import Problem
from verl_mas.config.merge import SECTION
from verl_mas.config.run import Run
from verl_mas.config.schema import AgentSpec
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.registry import nearest
from verl_mas.workflow.base import agents_of
from verl_mas.workflow.client import Message
from verl_mas.workflow.codecs.json_block import JsonObject
from verl_mas.workflow.tools import Tool

FORMAT = f"{SECTION}.rollout.multi_turn.format"
# verl's formats of calls -> what their parser looks for, as it stands in a chat template that asks for such calls.
FORMATS = {
    "hermes": r"<tool_call>\s*\{",
    "gpt-oss": r"to=functions\.",
    "qwen3_coder": r"<tool_call>\s*<function=",
    "glm": r"<arg_key>",
    "seed": r"<seed:tool_call>",
    "minimax": r"<minimax:tool_call>",
    "kimi": r"<\|tool_call_begin\|>",
    "deepseek_v4": r"DSML",
    "gemma4": r"<\|tool_call>call:",
}


def check_tool_prompts(run: Run, tools: Mapping[str, Tool]) -> Iterator[Problem]:
    """For the tools that agents name."""
    for member in agents_of(run.mas).values():
        schemas = [tools[name].schema for name in member.spec.tools if name in tools]
        if schemas and run.mas.policies[member.spec.policy].remote is None:
            yield from rendered_tools(run, member.spec, schemas)


def rendered_tools(run: Run, agent: AgentSpec, schemas: Sequence[JsonObject]) -> Iterator[Problem]:
    value = run.view(agent.policy).get
    parser = str(value("rollout.multi_turn.format"))
    if parser not in _known(parser):
        yield ConfigError(
            f"{FORMAT}={parser}",
            rule="it is the format of calls that verl finds in the replies of a model",
            fix=nearest(parser, list(FORMATS)),
        )
        return
    folder = local_folder(str(value("model.tokenizer_path") or value("model.path")))
    chat = ChatTemplate.of(folder, value("model.custom_chat_template")) if folder else None
    if chat is None:
        return  # check_model says what is missing.
    settings = {**(run.config.data.get("apply_chat_template_kwargs") or {}), **agent.chat_template_kwargs}
    try:
        without, given = (chat.render(PLAIN, {**settings, "tools": tools}) for tools in (None, list(schemas)))
        whole = chat.render([*PLAIN, *_called(schemas[0])], {**settings, "tools": list(schemas)})
    except ValueError as error:
        yield ConfigWarning(
            f"the chat template of {folder} with a call of a tool: {error}",
            reason="an act that calls a tool fails if its template cannot render the call and its result",
            fix=f"set {SECTION}.model.custom_chat_template to a template that takes tools",
        )
        return
    if without == given:
        yield ConfigWarning(
            f"the chat template of {folder} renders the same prompt with and without tools",
            reason="the model does not see which tools it has",
            fix=f"describe them in the prompt, or set {SECTION}.model.custom_chat_template to a template that takes "
            "tools",
        )
    elif parser in FORMATS and not re.search(FORMATS[parser], whole):
        fitting = [name for name, pattern in FORMATS.items() if re.search(pattern, whole)]
        yield ConfigWarning(
            f"{FORMAT}={parser} with the chat template of {folder}",
            reason=f"a call in this template has nothing that {parser} looks for, so no call would be found",
            fix=f"set {FORMAT}={' or '.join(fitting)}" if fitting else "use a model whose calls verl can read",
        )


PLAIN: Sequence[Message] = ({"role": "user", "content": "?"},)


def _called(schema: JsonObject) -> list[Message]:
    function = {"name": schema["function"]["name"], "arguments": {}}
    calls = [{"type": "function", "id": "call00000", "function": function}]
    return [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "!", "name": function["name"], "tool_call_id": "call00000"},
    ]


def _known(parser: str) -> Sequence[str]:
    """The formats of verl; those of its registry, which plugins may add to, if it is none that we know."""
    if parser in FORMATS:
        return list(FORMATS)
    from verl.experimental.agent_loop.tool_parser import ToolParser

    return list(ToolParser._registry)  # noqa: SLF001
