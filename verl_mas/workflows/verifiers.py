"""An environment of the library verifiers: its seats are agents, and it scores their acts."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import cast

from verl_mas.config.values import Text
from verl_mas.environment import worlds
from verl_mas.errors import ConfigError, WorkflowError
from verl_mas.gateway.host import environment, host_of
from verl_mas.gateway.program import Program
from verl_mas.gateway.runner import Gateway, ProgramTask
from verl_mas.workflow import Outcome, Task, Team, register_workflow
from verl_mas.workflow.codecs import JsonObject

PROGRAM = Path(worlds.__file__).with_name("verifiers_program.py")
# Keys in the extra_info of a dataset row.
NUMBER, OPTIONS = "verifiers_task", "verifiers_options"


@register_workflow("verifiers")
class Verifiers(Program):
    """A task from a taskset of the library verifiers, run in an environment of this library. Each request of a harness
    is an act, and the reward of the act is the reward of the harness's rollout."""

    taskset: Text = "textarena"
    """The id of the taskset: a module, which `python` can import."""

    options: Mapping[str, object] = field(default_factory=dict)
    """Settings of the taskset."""

    environment: Mapping[str, object] = field(default_factory=dict)
    """The other settings in verifiers' `[env]`: the `id` of an environment that is not the taskset's own, the settings
    of this environment, and the settings of its seats."""

    agents: Sequence[str] = ("agent",)
    """The seats that agents of the team play. The other seats have a `model` and a `client` in `environment`."""

    python: str | None = None
    """The interpreter with verifiers, which needs neither verl nor verl-mas. null: the interpreter of the run."""

    folder: str | None = None
    """An additional folder from which the interpreter can import modules."""

    def settings(self, row: Mapping[str, object]) -> JsonObject:
        options = {**self.options, **json.loads(str(row.get(OPTIONS) or "{}"))}
        own = {"taskset": self.taskset, "environment": dict(self.environment), "folder": self.folder}
        return {**own, "options": options, "agents": list(self.agents)}

    async def play(self, task: ProgramTask, gateway: Gateway) -> JsonObject:
        if not isinstance(number := task.extra_info.get(NUMBER), int):
            rule = "a row names a task of the taskset"
            fix = f"write the rows with `verl-mas data verifiers {self.taskset} --out FOLDER`"
            raise WorkflowError(f"extra_info.{NUMBER}={number!r}", rule=rule, fix=fix)
        named = {"settings": self.settings(task.extra_info), "number": number}
        host = host_of(self.python or sys.executable)
        return await host.play(str(PROGRAM), "play", asdict(replace(task, extra_info=named)), asdict(gateway))

    async def run(self, task: Task, team: Team) -> Outcome:
        outcome = await super().run(task, team)
        info = dict(outcome.info)
        scored = cast("Sequence[tuple[str, float, bool]]", info.pop("acts"))
        for agent in self.agents:
            acts = [reply for reply in team.replies if reply.agent == agent]
            for reply, (_, reward, trained) in zip(acts, [each for each in scored if each[0] == agent], strict=True):
                reply.team_reward, reply.trainable = reward, reply.trainable and trained
        return replace(outcome, info=info)

    def check(self) -> None:
        self.prompts(0)

    def prompts(self, count: int) -> Sequence[str]:
        """Read the prompts of the first `count` tasks. If `count` is 0, only check that the environment exists."""
        where, python = "mas.workflow.args", self.python or sys.executable
        if shutil.which(python) is None:
            rule = "every node of the run has that program"
            raise ConfigError(f"{where}.python={python}", rule=rule, fix="give its path")
        asked = [python, str(PROGRAM), json.dumps(self.settings({}), sort_keys=True), str(count)]
        done = subprocess.run(asked, env=environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            says = done.stderr.strip().rpartition("\n")[2]
            rule = f"{python} can play it with agents={list(self.agents)}"
            raise ConfigError(f"{where}.taskset={self.taskset}", rule=rule, fix=f"it says: {says}")
        # Tasksets may print other lines before the result, so the result is the last line.
        found: Sequence[str] = json.loads(done.stdout.rpartition("\n")[2])
        return found
