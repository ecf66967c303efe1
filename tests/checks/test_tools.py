from __future__ import annotations

from wrong_configs.files import text
from wrong_configs.tools import FUNCTIONS, NATIVE, RING

from verl_mas.checks.tools import check_tools
from verl_mas.config.load import load

SCHEMA = "{type: function, function: {name: press, description: d, parameters: {type: object, properties: {}}}}"
CLASS = "class_name: verl.tools.base_tool.BaseTool, config: {type: native}"


def test_tools_are_known_by_the_names_that_verl_gives_them(make, tmp_path):
    def problems(**files: str):
        config = make(mas__agents__solver__tools=["press"], **{k.replace(".", "__"): v for k, v in files.items()})
        return list(check_tools(config, load(config.mas)))

    assert len(problems()) == 1
    # verl takes a name once per process.
    text("press.py", RING.replace("def ring", "def press"))(tmp_path)
    assert problems(**{FUNCTIONS: f"{tmp_path}/press.py"}) == []
    text("named.yaml", f"tools: [{{{CLASS}, tool_schema: {SCHEMA}}}]")(tmp_path)
    assert problems(**{NATIVE: f"{tmp_path}/named.yaml"}) == []
    # Only an object of the class knows its name.
    text("unnamed.yaml", f"tools: [{{{CLASS}}}]")(tmp_path)
    assert problems(**{NATIVE: f"{tmp_path}/unnamed.yaml"}) == []
