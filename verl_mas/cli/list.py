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
    made = Parser("verl-mas list", __doc__)
    made.add_argument("kind", metavar="KIND", nargs="?", help=", ".join(KINDS))
    add_json(made)
    return made


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    out = console()
    if options.kind is None:
        listed = {kind: {"used_as": where, "names": list(names())} for kind, (where, names) in KINDS.items()}
        if options.json:
            write_json({"kinds": listed})
            return 0
        for kind, one in listed.items():
            out.print(f"{kind:13} {len(one['names']):3}  {one['used_as']}", markup=False, highlight=False)
        return 0
    if options.kind not in KINDS:
        rule = "a kind of names that can be listed"
        raise ConfigError(f"KIND {options.kind}", rule=rule, fix=nearest(options.kind, list(KINDS)))
    where, names = KINDS[options.kind]
    found = names()
    if options.json:
        write_json({"kind": options.kind, "used_as": where, "names": found})
        return 0
    width = max(map(len, found), default=0)
    for name, about in found.items():
        out.print(f"{name:{width}}  {about}", markup=False, highlight=False, no_wrap=False)
    out.print(f"\nused as {where}", markup=False, highlight=False)
    return 0
