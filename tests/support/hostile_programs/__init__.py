"""Programs that a sandbox must contain, and programs that it must run as any Python does: a file per kind."""

from pathlib import Path

from hostile_programs import computed
from hostile_programs.case import Case, read

_FOLDER = Path(__file__).parents[3] / "tests/environment/execution/hostile_programs"
_WRITTEN = {
    kind: read(_FOLDER / f"{kind}.yaml")
    for kind in ("endless", "memory", "output", "processes", "files", "network", "kernel", "others", "honest")
}
HONEST: list[Case] = _WRITTEN.pop("honest") + computed.HONEST
KINDS = {**_WRITTEN, "compiler": computed.COMPILER, "output": _WRITTEN["output"] + computed.OUTPUT}
HOSTILE: list[Case] = [case for cases in KINDS.values() for case in cases]
