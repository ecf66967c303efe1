"""A program of another framework, or in another language, whose models are the agents."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, field

from verl_mas.errors import ConfigError
from verl_mas.gateway import runner
from verl_mas.gateway.commands import Command
from verl_mas.gateway.host import environment, host_of
from verl_mas.gateway.program import Program
from verl_mas.gateway.runner import Gateway, ProgramTask
from verl_mas.workflow import register_workflow
from verl_mas.workflow.codecs import JsonObject

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "AZURE_OPENAI_API_KEY")
# Client libraries that read each variable, in order: openai; LlamaIndex, LangChain, LiteLLM and openai 0.28; CAMEL.
OPENAI = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_BASE_URL")
# Client libraries that read each variable, in order: anthropic; LiteLLM; CAMEL; openai's client of Azure.
ROOTS = ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE", "ANTHROPIC_API_BASE_URL", "AZURE_OPENAI_ENDPOINT")


@register_workflow("program")
class ReferredProgram(Program):
    """A function in a file, or a command in any language. It runs in other processes; the run does not import it."""

    agents: Sequence[str] = ("solver",)
    """The names of the models that the program requests. Each model is an agent."""

    function: str | None = None
    """`FILE.py:NAME`, a function that is called with a task and a gateway."""

    python: str | None = None
    """The interpreter of `function`, which needs neither verl nor verl-mas. null: the interpreter of the run."""

    command: list[str] = field(default_factory=list)
    """The program and its arguments. Each session is a process, whose environment has OPENAI_BASE_URL, OPENAI_API_KEY,
    ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY, and other variables that clients read. The process reads its task as JSON
    from stdin, and writes its outcome as JSON to the descriptor $VERL_MAS_OUTCOME_FD."""

    import_once: bool = True
    """If the command is a Python file, the installed packages that it imports are imported once per rollout worker, and
    each session is a fork of that process. false: each session starts its own interpreter."""

    preload: list[str] = field(default_factory=list)
    """Further modules that are imported once, such as modules that the program imports only inside a function."""

    async def play(self, task: ProgramTask, gateway: Gateway) -> JsonObject:
        if self.function is None:
            command = Command(tuple(self.command), tuple(self.pass_env), self.import_once, tuple(self.preload))
            return await command.play(asdict(task), self.variables(gateway))
        file, _, name = self.function.rpartition(":")
        host = host_of(self.python or sys.executable, self.pass_env)
        return await host.play(os.path.realpath(file), name, asdict(task), asdict(gateway))

    def variables(self, gateway: Gateway) -> dict[str, str]:
        """Return the environment variables that clients of the two protocols read. All are set, because a client that
        finds a key but no address would send its prompts to a public API."""
        keys = dict.fromkeys(KEYS, gateway.api_key)
        return keys | dict.fromkeys(OPENAI, gateway.base_url) | dict.fromkeys(ROOTS, gateway.anthropic_url)

    def check(self) -> None:
        where, (file, _, name) = "mas.workflow.args.", (self.function or "").rpartition(":")
        if (self.function is None) == (not self.command):
            value, rule = f"{where}function={self.function} and command={self.command}", "exactly one of them is set"
            raise ConfigError(value, rule=rule, fix=f"set {where}function=team.py:team, or command=[node,team.mjs]")
        runs = self.command[0] if self.command else self.python or sys.executable
        if shutil.which(runs) is None:
            value = f"{where}{'command' if self.command else 'python'}: {runs}"
            raise ConfigError(value, rule="every node of the run has that program", fix="give its path")
        passed = environment(self.pass_env)
        if self.function is None:
            return
        if not os.path.isfile(file):
            rule, fix = "it is FILE.py:NAME, and every node of the run has the file", "write team.py:team"
            raise ConfigError(f"{where}function={self.function}", rule=rule, fix=fix)
        loads = [runs, runner.__file__, os.path.realpath(file), name]
        done = subprocess.run(loads, env=passed, capture_output=True, text=True, check=False)
        if done.returncode:
            says = done.stderr.strip().rpartition("\n")[2]
            rule, fix = f"{runs} can load it", f"it says: {says}; correct it, or set {where}python"
            raise ConfigError(f"{where}function={self.function}", rule=rule, fix=fix)
