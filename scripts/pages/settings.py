"""Generate docs/train/settings.md, a list of every setting, from the dataclasses that read the values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

from pages.markdown import cell, table
from verl_mas.cli.check import known_settings
from verl_mas.config.describe import Setting, settings
from verl_mas.workflow.base import WORKFLOWS

HEAD = """\
# Settings

Every setting of `mas:`, of the advantages and of the embedded engine, then the arguments of the shipped workflows.
Set one with `++<name>=<value>`, for example `++mas.agents.solver.sampling.temperature=0.7`; `<name>` is the name of
an agent or its role, of a policy, a pool or a server. [Configuration](configuration.md) describes them by what you
want to do. The rest of a command is verl's own: [what a team needs of it](trainer.md#verls-settings-in-a-team).

This page is generated from the code that reads the values (`python scripts/generate_pages.py`). `verl-mas check
--schema` prints the same in a terminal, also with the arguments of your own workflow. What has no default is a
section or may be omitted; where null is the default, it is accepted as well. A number without "integer" is finite.
"""
# Settings that the page skips, because they repeat those of `mas.agents.<name>.sampling`.
REPEATED = "mas.agents.<name>.validation_sampling."
ARGUMENTS = "mas.workflow.args"
BRIEF = {
    "^(an?|one of) ": "",
    "whole number": "integer",
    "finite number": "number",
    "list, each item an? ": "list of ",
    "list, each item": "list of",
    ",? at least ": " ≥ ",
    ",? at most ": ", ≤ ",
    ",? above ": " > ",
    ", between (\\S+) and (\\S+)": r", \1 to \2",
    ", or (an? )?": ", ",
    "true or false": "true, false",
}


def page(root: Path) -> str:
    found = [setting for setting in known_settings() if not setting.path.startswith(REPEATED)]
    holds = {setting.path.rpartition(".")[0] for setting in found}
    sections: dict[str, list[Setting]] = {}
    for setting in found:
        parent = setting.path.rpartition(".")[0].removesuffix(".<name>")
        alone = parent == "mas" and not {setting.path, f"{setting.path}.<name>"} & holds
        sections.setdefault(section(setting.path, alone), []).append(setting)
    return (
        "\n".join([HEAD, *tables(sections), "", *workflows(), "## Environment variables\n", environment(root)]) + "\n"
    )


def environment(root: Path) -> str:
    """Return a table of the environment variables that a user sets."""
    declared = yaml.safe_load((root / "scripts/pages/environment.yaml").read_text(encoding="utf-8"))
    return table(("variable", "meaning"), ((f"`{name}`", text) for name, text in declared["of_the_user"].items()))


def section(path: str, alone: bool) -> str:
    """Return the section of a setting: `mas.agents` for all settings below it, `mas` for a value without a section."""
    if not path.startswith("mas."):
        return path.rpartition(".")[0]
    return "mas" if alone else ".".join(path.split(".")[:2])


def tables(sections: dict[str, list[Setting]]) -> Iterator[str]:
    for name, found in sections.items():
        (own,) = [setting for setting in found if setting.path == name] or [None]
        below = [setting for setting in found if setting.path != name]
        yield f"## `{name}`\n"
        if own:
            yield f"{own.meaning}\n"
        if any(setting.path.endswith(".validation_sampling") for setting in below):
            yield "`validation_sampling` takes the same settings as `sampling`.\n"
        yield of_section(below, name) + "\n"


def workflows() -> Iterator[str]:
    """Yield the arguments of the shipped workflows: first the arguments of several workflows, then those of each.

    Tests and benchmarks register further workflows, which are skipped.
    """
    yield f"## `{ARGUMENTS}` of the shipped workflows\n"
    teams = {
        name: list(settings(WORKFLOWS[name], ARGUMENTS))
        for name in sorted(WORKFLOWS)
        if WORKFLOWS[name].__module__.startswith("verl_mas.")
    }
    users: dict[Setting, list[str]] = {}
    for name, arguments in teams.items():
        for setting in arguments:
            users.setdefault(setting, []).append(name)
    shared = {setting: names for setting, names in users.items() if len(names) > 1}
    yield "### Of several workflows\n"
    takers = (", ".join(names) if "." not in named(setting, ARGUMENTS) else "" for setting, names in shared.items())
    yield of_section(shared, ARGUMENTS, of=takers) + "\n"
    for name, arguments in teams.items():
        if own := [setting for setting in arguments if setting not in shared]:
            yield f"### `{name}`\n"
            yield of_section(own, ARGUMENTS) + "\n"


def named(setting: Setting, prefix: str) -> str:
    return setting.path.removeprefix(f"{prefix}.")


def of_section(found: Iterable[Setting], prefix: str, **further: Iterable[str]) -> str:
    """Return a table with one row per setting. `further` has the additional columns, by title."""
    rows = ((f"`{named(item, prefix)}`", takes(item), cell(item.meaning)) for item in found)
    columns = ("setting", "takes (default)", "meaning", *further)
    return table(columns, ((*row, *cells) for row, *cells in zip(rows, *further.values(), strict=True)))


def takes(setting: Setting) -> str:
    required = setting.default.startswith("none: ")
    default = ", required" if required else f" (`{setting.default}`)" if setting.default else ""
    accepted = briefly(setting.takes)
    return cell(accepted.removesuffix(", null") if setting.default == "null" else accepted) + default


def briefly(takes: str) -> str:
    """Shorten `a whole number, at least 1, or null` to `integer ≥ 1, null`."""
    for long, short in BRIEF.items():
        takes = re.sub(long, short, takes)
    return takes
