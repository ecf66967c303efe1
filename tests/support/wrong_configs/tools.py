"""Tools that do not exist, and files of tools that verl cannot load."""

from __future__ import annotations

from wrong_configs.case import wrong
from wrong_configs.files import text

TOOLS = "++mas.agents.solver.tools"
NATIVE = "actor_rollout_ref.rollout.multi_turn.tool_config_path"
FUNCTIONS = "actor_rollout_ref.rollout.multi_turn.function_tool_path"
RING = '''
from verl.tools.function_tool import function_tool


@function_tool
def ring(button: str) -> str:
    """Press a button.

    Args:
        button: Its name.
    """
    return button
'''
REMOTE = (
    "++mas.policies.main={} ++mas.policies.far.remote.base_url=http://localhost:1/v1 ++mas.policies.far.remote.model=m"
)

CASES = (
    wrong(f"{TOOLS}=[calculator]", "mas.agents.solver.tools has 'calculator'"),
    wrong(f"{NATIVE}=/nowhere/tools.yaml", "tool_config_path=/nowhere/tools.yaml does not exist"),
    wrong(f"{NATIVE}=no_such_tools.yaml", "tool_config_path=no_such_tools.yaml does not exist"),
    wrong(f"{FUNCTIONS}=does_not_exist.py", "function_tool_path=does_not_exist.py does not exist"),
    wrong(f"{FUNCTIONS}={{folder}}/tools.py {TOOLS}=[rin]", "did you mean 'ring'", prepare=text("tools.py", RING)),
    wrong(f"{FUNCTIONS}={{folder}}/tools.py", "no function has the decorator", prepare=text("tools.py", "x = 1\n")),
    wrong(f"{FUNCTIONS}={{folder}}/tools.py", "tools.py: line 1", prepare=text("tools.py", "def broken(:\n")),
    wrong(f"{FUNCTIONS}={{folder}}/tools.py", "tools.py: line 2", prepare=text("tools.py", "\nraise ValueError()\n")),
    wrong(f"{NATIVE}={{folder}}/tools.yaml", "tools.yaml:", prepare=text("tools.yaml", "tools: [{")),
    wrong(f"{NATIVE}={{folder}}/tools.yaml", "it lists no tools", prepare=text("tools.yaml", "tools: []")),
    wrong(
        f"{NATIVE}={{folder}}/tools.yaml",
        "class_name nowhere.Tool of type native cannot be imported",
        prepare=text("tools.yaml", "tools: [{class_name: nowhere.Tool, config: {type: native}}]"),
    ),
    wrong(f"{REMOTE} ++mas.agents.verifier.policy=far ++mas.agents.verifier.tools=[calculator]", "on a remote policy"),
)
