"""The data set `verifiers`."""

import argparse
import json
from collections.abc import Sequence

from verl_mas.cli._arguments import add_rows, add_settings, values
from verl_mas.config.values import load_dataclass
from verl_mas.data.dataset import DATA_SETS, DataSet, Loader, Prepared, check_left
from verl_mas.data.items import Item
from verl_mas.workflows.verifiers import NUMBER, OPTIONS, Verifiers


class Numbered(Item):
    """A task that is identified by its number in the taskset."""

    @property
    def key(self) -> str:
        """The number, because tasks with equal prompts may have different answers."""
        return str(self.extra[NUMBER])


@DATA_SETS.register("verifiers")
class Tasks(DataSet):
    """Tasks of a taskset of verifiers, for the workflow `verifiers`. The first tasks are held out."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("taskset", metavar="TASKSET", help="the id of an installed taskset, such as textarena")
        add_settings(parser, "--options", "settings of the taskset")
        parser.add_argument("--python", metavar="PATH", help="the interpreter that has verifiers")
        parser.add_argument("--folder", metavar="PATH", help="where it also looks for modules")
        add_rows(parser, train=1024, test=128)

    def prepare(self, options: argparse.Namespace, load: Loader) -> Prepared:
        settings = values(options.options, "--options NAME=VALUE")
        named = {name: getattr(options, name) for name in ("taskset", "python", "folder")}
        team = load_dataclass(Verifiers, {**named, "options": settings}, "verl-mas data verifiers")
        prompts = team.prompts(options.test_rows + options.train_rows)
        check_left(options.taskset, len(prompts), "task", options.test_rows)
        tasks = numbered(options.taskset, prompts, json.dumps(settings, sort_keys=True))
        test = tasks[: options.test_rows]
        return Prepared(tasks[options.test_rows :], test, test, {options.taskset: {"options": settings}})


def numbered(taskset: str, prompts: Sequence[str], options: str) -> list[Numbered]:
    extras = ({NUMBER: number, OPTIONS: options} for number in range(len(prompts)))
    source = f"verifiers/{taskset}"
    return [Numbered(prompt, "", source, extra=extra) for prompt, extra in zip(prompts, extras, strict=True)]
