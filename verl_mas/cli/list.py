"""List what a configuration can name: teams, recipes, workflows, estimators, codecs, ...

Also what installed packages add. Without KIND, how many there are of each. `verl-mas explain NAME` says more.
"""

from __future__ import annotations

from verl_mas.cli._arguments import add_json
from verl_mas.cli._names import KINDS
from verl_mas.cli._output import console, write_json
from verl_mas.cli._parser import Parser
from verl_mas.errors import ConfigError
from verl_mas.registry import nearest


def parser() -> Parser:
    command = Parser("verl-mas list", __doc__)
    command.add_argument("kind", metavar="KIND", nargs="?", help=", ".join(KINDS))
    add_json(command)
    return command


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    found: dict[str, object]
    if options.kind is None:
        kinds = {kind: {"used_as": where, "names": list(names())} for kind, (where, names) in KINDS.items()}
        found = {"kinds": kinds}
        lines = [f"{kind:13} {len(one['names']):3}  {one['used_as']}" for kind, one in kinds.items()]
    elif options.kind in KINDS:
        where, names = KINDS[options.kind]
        about = names()
        found = {"kind": options.kind, "used_as": where, "names": about}
        width = max(map(len, about), default=0)
        lines = [*(f"{name:{width}}  {text}" for name, text in about.items()), f"\nused as {where}"]
    else:
        rule = "a kind of names that can be listed"
        raise ConfigError(f"KIND {options.kind}", rule=rule, fix=nearest(options.kind, list(KINDS)))
    if options.json:
        write_json(found)
    else:
        console().print("\n".join(lines), markup=False, highlight=False)
    return 0
