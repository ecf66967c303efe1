"""Several wrong command lines as one: as all errors are reported in one call, each case has an error of its own.

What other errors hide is looked at again without the cases that were named, then in halves, and at last alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from wrong_configs import CLASSES, Case, Seen, cases, look

SIZE = 24  # cases of a group


def pairs(case: Case) -> dict[str, str]:
    """Key -> argument."""
    return {argument.lstrip("+").partition("=")[0]: argument for argument in case.arguments}


def alone(case: Case) -> bool:
    """Whether a case prepares its surroundings, or has more than plain assignments."""
    plain = all("." in key and not set("/~-@") & set(key) for key in pairs(case))
    return bool(case.settings) or not plain


def compatible(case: Case, group: Sequence[Case], others: Mapping[str, str]) -> bool:
    """Whether every case keeps what it assigns, and warnings are not beside errors."""
    return case.warned == group[0].warned and all(
        others.get(key, argument) == argument
        and not any(key.startswith(f"{other}.") or other.startswith(f"{key}.") for other in others)
        for key, argument in pairs(case).items()
    )


def groups() -> list[list[Case]]:
    """Two or more cases each; what fits in no group is looked at alone."""
    found: list[tuple[list[Case], dict[str, str]]] = []
    for case in (case for name in CLASSES for case in cases(name) if not alone(case)):
        fits = [group for group in found if len(group[0]) < SIZE and compatible(case, *group)]
        group, assigned = fits[0] if fits else ([], {})
        if not fits:
            found.append((group, assigned))
        group.append(case)
        assigned.update(pairs(case))
    return [group for group, _ in found if len(group) > 1]


def look_at_all(group: Sequence[Case], task: Path, folder: Path) -> Iterator[tuple[Case, Seen]]:
    """The cases that no common call names, as they are seen alone."""
    rest, found = list(group), set(group)
    while len(rest) > 1 and found:
        arguments = dict.fromkeys(argument for case in rest for argument in case.arguments)
        seen = look(Case(tuple(arguments), "", rest[0].warned, {}), task, folder)
        found = set(named(rest, seen.messages)) if seen.answers(rest[0]) else set()
        rest = [case for case in rest if case not in found]
    if len(rest) == 1:
        yield rest[0], look(rest[0], task, folder)
    elif rest:
        for half in (rest[::2], rest[1::2]):
            yield from look_at_all(half, task, folder)


def named(group: Sequence[Case], messages: Sequence[str]) -> Iterator[Case]:
    """Those that alone have the words of a message."""
    for message in messages:
        match [case for case in group if case.says in message and mentions(message, case)]:
            case [only]:
                yield only


def mentions(message: str, case: Case) -> bool:
    return any(key.rpartition(".")[2] in message for key in pairs(case))
