from __future__ import annotations

import json
import sys

import psutil
import pytest
from wrong_configs import WORDS
from wrong_configs.prepare import ROW, files

from verl_mas.checks.tools import FORMATS, check_tool_prompts, configured_tools
from verl_mas.config.run import Run
from verl_mas.errors import ConfigWarning
from verl_mas.verl_.sources import file_of

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
SERVER = WORDS["SERVER"]
SCHEMA = "{type: function, function: {name: press, description: d, parameters: {type: object, properties: {}}}}"
CLASS = "class_name: verl.tools.base_tool.BaseTool, config: {type: native}"


@pytest.fixture
def find(make):
    def find(**settings):
        settings = {"mas__agents__solver__tools": ["press"], **settings}
        config = make(**{key.replace(".", "__"): value for key, value in settings.items()})
        return configured_tools(Run.of(config))

    return find


def test_tools_are_known_by_the_names_that_verl_gives_them(find, tmp_path):
    assert len(find().problems) == 1
    # verl takes a name once per process.
    files(tmp_path, {"press.py": PRESS})
    found = find(**{FUNCTIONS: f"{tmp_path}/press.py"})
    assert found.problems == [] and found.tools["press"].schema["function"]["parameters"]["required"] == ["button"]
    files(tmp_path, {"named.yaml": f"tools: [{{{CLASS}, tool_schema: {SCHEMA}}}]"})
    assert find(**{NATIVE: f"{tmp_path}/named.yaml"}).problems == []
    # Only an object of the class knows its name.
    files(tmp_path, {"unnamed.yaml": f"tools: [{{{CLASS}}}]"})
    assert find(**{NATIVE: f"{tmp_path}/unnamed.yaml"}).problems == []


def test_rows_that_select_tools_which_no_agent_has_are_warned_of(find, tmp_path):
    files(tmp_path, {"named.yaml": f"tools: [{{{CLASS}, tool_schema: {SCHEMA}}}]"})
    for selected, count in ((["ring"], 1), (["ring", "press"], 0), ([], 0)):
        files(tmp_path, {"rows.parquet": [{**ROW, "extra_info": {"tool_selection": selected}}]})
        settings = {NATIVE: f"{tmp_path}/named.yaml", "data.train_files": f"{tmp_path}/rows.parquet"}
        found = [problem.value for problem in find(**settings).problems]
        assert len(found) == count and all("tool_selection=['ring']" in value for value in found)


def children(file):
    """Processes below this one whose command names the file."""
    below = psutil.Process().children(recursive=True)
    return [process for process in below if file in process.cmdline()]


def test_the_tools_of_a_server_are_known_and_the_server_is_stopped(find):
    server = {"command": [sys.executable, "-I", "-S", SERVER, "good"]}
    found = find(mas__mcp={"files": server}, mas__agents__solver__tools=["files_echo"])
    assert found.problems == [] and list(found.tools) == ["files_echo"]
    assert not children(SERVER), "the server runs after the check"
    unused = find(mas__mcp={"files": server}, mas__agents__solver__tools=[])
    assert [type(problem) for problem in unused.problems] == [ConfigWarning]
    assert "files_echo" in unused.problems[0].fix


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
        (HERMES, {"actor_rollout_ref__rollout__multi_turn__format": "hermess"}, "did you mean 'hermes'"),
    ],
)
def test_a_template_that_hides_tools_or_writes_calls_in_another_format_is_found(
    make, find, tmp_path, template, settings, says
):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    files(tmp_path, {"schema.yaml": f"tools: [{{{CLASS}, tool_schema: {SCHEMA}}}]"})
    settings = {"actor_rollout_ref__model__path": str(tmp_path), "mas__agents__solver__tools": ["press"], **settings}
    tools = find(**{NATIVE: f"{tmp_path}/schema.yaml"}).tools
    config = make(**settings)
    found = [str(problem) for problem in check_tool_prompts(Run.of(config), tools)]
    assert len(found) == (says is not None) and all(says in problem for problem in found)


def test_the_formats_are_those_of_verl():
    source = file_of("verl.experimental.agent_loop.tool_parser").read_text()
    registered = {line.split('"')[1] for line in source.splitlines() if line.startswith("@ToolParser.register(")}
    assert set(FORMATS) == registered
