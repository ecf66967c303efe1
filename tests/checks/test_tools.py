import sys
from pathlib import Path

import psutil
import pytest
from verl_contract.sources import file_of

from verl_mas.checks.examined import ExaminedRun
from verl_mas.checks.tools import FORMATS, check_tool_prompts, configured_tools

SERVER = str(Path(__file__).parents[1] / "support/mcp_server.py")
NATIVE = "actor_rollout_ref.rollout.multi_turn.tool_config_path"
FUNCTIONS = "actor_rollout_ref.rollout.multi_turn.function_tool_path"
PRESS = """
from verl.tools.function_tool import function_tool


@function_tool
def press(button: str) -> str:
    '''Press a button.

    Args:
        button: Its name.
    '''
    return button
"""
SCHEMA = "{type: function, function: {name: press, description: d, parameters: {type: object, properties: {}}}}"
CLASS = "class_name: verl.tools.base_tool.BaseTool, config: {type: native}"


@pytest.fixture
def find(make):
    def find(**settings):
        settings = {"mas__agents__solver__tools": ["press"], **settings}
        config = make(**{key.replace(".", "__"): value for key, value in settings.items()})
        return configured_tools(ExaminedRun.of(config))

    return find


def test_tools_are_known_by_the_names_that_verl_gives_them(find, tmp_path):
    assert len(find()[1]) == 1
    # In one process, verl refuses a second function with the name of a tool that is registered already.
    (tmp_path / "press.py").write_text(PRESS)
    tools, problems = find(**{FUNCTIONS: f"{tmp_path}/press.py"})
    assert problems == [] and tools["press"].schema["function"]["parameters"]["required"] == ["button"]
    (tmp_path / "named.yaml").write_text(f"tools: [{{{CLASS}, tool_schema: {SCHEMA}}}]")
    assert find(**{NATIVE: f"{tmp_path}/named.yaml"})[1] == []
    # Without a schema in the file, only an object of the class knows the name of the tool.
    (tmp_path / "unnamed.yaml").write_text(f"tools: [{{{CLASS}}}]")
    assert find(**{NATIVE: f"{tmp_path}/unnamed.yaml"})[1] == []


def children(file):
    """Processes below this one whose command names the file."""
    below = psutil.Process().children(recursive=True)
    return [process for process in below if file in process.cmdline()]


def test_the_tools_of_a_server_are_known_and_the_server_is_stopped(find):
    server = {"command": [sys.executable, "-I", "-S", SERVER, "good"]}
    tools, problems = find(mas__mcp={"files": server}, mas__agents__solver__tools=["files_echo"])
    assert problems == [] and list(tools) == ["files_echo"]
    assert not children(SERVER), "the server runs after the check"


HERMES = (
    "{% if tools %}Call them as <tool_call>\n{...}</tool_call>. {{ tools | tojson }}{% endif %}"
    "{% for message in messages %}{{ message.content }}{% endfor %}"
)
BLIND = "{% for message in messages %}{{ message.content }}{% endfor %}"
KIMI = HERMES.replace("<tool_call>\n{...}</tool_call>", "<|tool_call_begin|>")
NO_RESULTS = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "settings", "says"),
    [
        (HERMES, {}, None),
        (BLIND, {}, "the same prompt with and without tools"),
        (NO_RESULTS, {}, "no tools"),
        (KIMI, {}, "multi_turn.format=kimi"),
        (KIMI, {"actor_rollout_ref__rollout__multi_turn__format": "kimi"}, None),
    ],
)
def test_a_template_that_hides_tools_or_writes_calls_in_another_format_is_found(
    make, find, letters, tmp_path, template, settings, says
):
    (tmp_path / "schema.yaml").write_text(f"tools: [{{{CLASS}, tool_schema: {SCHEMA}}}]")
    settings = {
        "actor_rollout_ref__model__path": str(letters / "model"),
        "actor_rollout_ref__model__custom_chat_template": template,
        "mas__agents__solver__tools": ["press"],
        **settings,
    }
    tools, _ = find(**{NATIVE: f"{tmp_path}/schema.yaml"})
    config = make(**settings)
    found = [str(problem) for problem in check_tool_prompts(ExaminedRun.of(config), tools)]
    assert len(found) == (says is not None) and all(says in problem for problem in found)


def test_the_formats_are_those_of_verl():
    source = file_of("verl.experimental.agent_loop.tool_parser").read_text()
    registered = {line.split('"')[1] for line in source.splitlines() if line.startswith("@ToolParser.register(")}
    assert set(FORMATS) == registered
