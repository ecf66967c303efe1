"""Code, files and addresses that a team from someone else would use. The user must trust them before the team is
loaded."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Literal, Union, cast, get_args, get_origin, get_type_hints

from verl_mas.util.text import texts_in
from verl_mas.workflow.base import WORKFLOWS
from verl_mas.workflow.team_file import SETTINGS, TeamFile

OURS = re.compile(r"verl_mas(\.\w+)+(?<!\.py)")  # modules of this package; a name that ends in .py is a file


def asks(team: TeamFile) -> Iterator[str]:
    """List the code, files and addresses that the team would use once it is loaded, with their place in the file."""
    named: dict[str, object] = {
        "workflow.path": team.workflow.path,
        **{f"plugins[{i}]": own for i, own in enumerate(team.plugins)},
    }
    named |= {f"tools.{name}": path for name, path in vars(team.tools).items()}
    # `verl-mas export` writes only the verl settings in SETTINGS. A file that was written in another way may have other
    # settings, which could name code.
    named |= {f"verl.{key}": str(value) for key, value in team.verl.items() if _names_code(key, value)}
    for name, server in team.mcp.items():
        named |= {f"mcp.{name}.command": " ".join(server.command), f"mcp.{name}.url": server.url}
        named[f"mcp.{name}.pass_env"] = ", ".join(server.pass_env)
    for name, remote in {name: policy.remote for name, policy in team.policies.items() if policy.remote}.items():
        named |= {f"policies.{name}.remote.{key}": getattr(remote, key) for key in ("base_url", "api_key_env")}
    for place, what in named.items():
        if what and not OURS.fullmatch(str(what)):
            yield f"{place}: {what}"
    # User code may register the workflow. Its safe arguments are unknown until this code runs, so all strings are
    # listed.
    known = team.workflow.path is None and team.workflow.name in WORKFLOWS
    yield from _asked(WORKFLOWS[team.workflow.name] if known else object, team.workflow.args, "workflow.args")


def _names_code(key: str, value: object) -> bool:
    return key not in SETTINGS or key.endswith((".path", ".url")) or any("://" in text for text in texts_in(value))


def _asked(kind: type, arguments: Mapping[str, object], place: str) -> Iterator[str]:
    """List the strings in arguments that the class `kind` does not declare as safe data."""
    hints, safe = get_type_hints(kind), getattr(kind, "safe_arguments", {})
    for name, value in arguments.items():
        hint = hints.get(name)
        if isinstance(value, Mapping) and name not in safe:
            yield from _asked(cast(type, hint) if is_dataclass(hint) else object, value, f"{place}.{name}")
            continue
        strange = [text for text in texts_in(value) if not re.fullmatch(safe.get(name, ""), text)]
        if strange and not is_choice(hint):
            yield f"{place}.{name}: {' '.join(strange)}"


def is_choice(hint: object) -> bool:
    """Whether a type hint allows only literal values and None."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return all(part is NoneType or get_origin(part) is Literal for part in parts)
