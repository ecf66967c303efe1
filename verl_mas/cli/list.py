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
from verl_mas.util.text import listed


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
        lines = {kind: f"{len(one['names']):3}  {one['used_as']}" for kind, one in kinds.items()}
        used_as = ""
    elif options.kind in KINDS:
        where, names = KINDS[options.kind]
        lines = dict(names())
        used_as = f"\n\nused as {where}"
        found = {"kind": options.kind, "used_as": where, "names": lines}
    else:
        rule = "a kind of names that can be listed"
        raise ConfigError(f"KIND {options.kind}", rule=rule, fix=nearest(options.kind, list(KINDS)))
    if options.json:
        write_json(found)
    else:
        out = console()
        out.print(listed(lines, out.width) + used_as, markup=False, highlight=False)
    return 0
