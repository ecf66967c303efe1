"""Write a folder with a team of your own: a workflow, its settings, tasks, a test and a README.

The files pass `verl-mas check` and their own test, and the team trains. Then change the files.
"""

import keyword
import os
import re
import shutil
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from verl_mas.cli._arguments import add_json, add_out, free
from verl_mas.cli._output import show
from verl_mas.cli._parser import Parser
from verl_mas.config.hydra import group_files
from verl_mas.errors import ConfigError
from verl_mas.run_folder.disk import write_whole, writing
from verl_mas.workflow.base import WORKFLOWS

TEMPLATES = Path(__file__).parent / "_new_team"
# Templates of a team that another framework runs, and the packages to install for each framework.
PROGRAM = TEMPLATES.with_name("_new_program")
FRAMEWORKS = {
    "langgraph": "langgraph langchain-openai",
    "agents-sdk": "openai-agents",
    "autogen": "autogen-agentchat 'autogen-ext[openai]'",
    "smolagents": "'smolagents[openai]'",
    "pydantic-ai": "'pydantic-ai-slim[openai]'",
    "openai": "openai",
}
TEXTS = Environment(loader=FileSystemLoader(PROGRAM), trim_blocks=True, keep_trailing_newline=True)
# The team's name in the templates and their file names, as a module and as a class.
MODULE, CLASS = "my_team", "MyTeam"
FOLDERS = {".yaml": "mas"}  # suffix of a file -> its folder; Hydra searches for `+mas=NAME` in `mas`


def parser() -> Parser:
    command = Parser("verl-mas new", __doc__)
    command.add_argument("name", metavar="NAME", help="of the team, in lower case with underscores: my_team")
    written = f"a team that talks to an endpoint of the run, with {', '.join(FRAMEWORKS)}"
    command.add_argument("--framework", choices=FRAMEWORKS, metavar="NAME", help=written)
    add_out(command, "the folder to write; without it one of that name, here")
    tiny = "also write model/, a tiny model with random weights, for a CPU"
    command.add_argument("--tiny-model", action="store_true", help=tiny)
    add_json(command)
    return command


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    name = _checked(options.name)
    folder = options.out or Path(name)
    # In the texts and the file names of the templates, replace the placeholders by the name of the team.
    kind = _class_name(name)
    framework = options.framework or ""
    names = {MODULE: name, CLASS: kind, "FRAMEWORK": framework, "PACKAGES": FRAMEWORKS.get(framework, "")}
    files = {}
    for stem, template in sorted(_templates(framework).items()):
        text = template.read_text(encoding="utf-8")
        for placeholder, value in names.items():
            text = text.replace(placeholder, value)
        text = TEXTS.from_string(text).render()
        file = Path(stem.replace(MODULE, name))
        files[str(Path(FOLDERS.get(file.suffix, "")) / file)] = text
    free(folder, options.force, *files, *(path.name for path in folder.glob("*")))
    written = write_team(folder, files)
    if options.tiny_model:
        from verl_mas.testing.tiny_model import tiny_model

        shutil.rmtree(folder / "model", ignore_errors=True)
        tiny_model(folder / "model")
    show(options, {"written": written}, "\n".join([*written, f"next: cd {folder}, and see README.md\n"]))
    return 0


def write_team(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Write the files that are not empty into the folder, and return their paths."""
    files = {name: text for name, text in files.items() if text.strip()}
    with writing(folder, "a team is a folder of files"):
        for target, text in files.items():
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            write_whole(folder / target, text)
    return [str(folder / name) for name in files]


def _templates(framework: str) -> dict[str, Path]:
    """Map each template to the name of the file that it becomes."""
    team = {path.stem: path for path in TEMPLATES.glob("*.txt")}
    program = {path.stem: path for path in PROGRAM.glob("*.txt")}
    written = {f"{MODULE}.py": PROGRAM / "frameworks" / f"{framework}.py.txt"}
    return team | program | written if framework else team


def _class_name(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _checked(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", name) or keyword.iskeyword(name):
        words = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")
        rule = "it names a Python module: lower-case letters, digits and underscores, and no keyword"
        fix = f"use {words if words[:1].isalpha() and not keyword.iskeyword(words) else 'my_team'}"
        raise ConfigError(f"NAME {name}", rule=rule, fix=fix)
    # Search for an installed module or package of this name, outside the current folder. A folder without code does not
    # count. The spec of such a folder has no origin.
    spec = PathFinder.find_spec(name, [path for path in sys.path if path not in ("", os.getcwd())])
    installed = spec is not None and spec.origin is not None
    ours = (*group_files("mas"), *WORKFLOWS)
    known = name in ours or _class_name(name) in ("Outcome", "Tag", "Task", "Team", "Workflow")
    if name in sys.stdlib_module_names or known or installed:
        rule = "no module that is installed, no team that is shipped and no class that its file imports has it"
        raise ConfigError(f"NAME {name}", rule=rule, fix=f"use my_{name}")
    return name
