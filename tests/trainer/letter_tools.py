"""A tool that agents name, in a file for `function_tool_path`."""

from verl.tools.function_tool import function_tool


@function_tool
def repeat(letter: str) -> str:
    """Repeat a letter.

    Args:
        letter: Which one.
    """
    return letter * 8
