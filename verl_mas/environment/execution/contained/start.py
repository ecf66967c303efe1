"""Starts the contained fork server. Checks the requirements of the machine, and sets the server's environment."""

import importlib.util
import os
import platform
import sys
from collections.abc import Iterable

from verl_mas.environment.execution.executor import SETTING
from verl_mas.errors import ConfigError
from verl_mas.util.forks import ForkServer

# The server gets these variables; from the caller's environment it gets only those in `_PASSED_ON`. A fixed hash seed
# gives sets the same order in each run.
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "MALLOC_ARENA_MAX": "1",
    "TZ": "UTC",
    "LC_ALL": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
# Variables that Python itself may need to start.
_PASSED_ON = ("LD_LIBRARY_PATH", "PYTHONHOME")


def start(packages: Iterable[str]) -> ForkServer:
    """Start a fork server for programs that may import these packages."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64" or sys.maxsize < 2**32:
        raise refused("seccomp", f"{platform.system()} on {platform.machine()}", ())
    env = _ENVIRONMENT | {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    kind, python = "verl_mas.environment.execution.contained.sealed:Sealed", (sys.executable, "-s", "-S")
    return ForkServer(kind, _package_folders(packages), python=python, env=env, cwd="/")


# The packages that a listed package imports. Programs may import these packages, too.
_WITH = {"sympy": ("mpmath",)}


def refused(what: str, reason: str, packages: Iterable[str]) -> ConfigError:
    """Make the error for a machine without the filter of system calls, or for an unusable package."""
    if what == "packages":
        value = f"{SETTING}.packages=[{','.join(packages)}]: {reason}"
        rule = "every package can be imported in a process of one thread, without the other installed packages"
        return ConfigError(value, rule=rule, fix="leave it out, or list the packages that it imports as well")
    rule = "programs are contained by a filter of system calls: Linux on x86-64, and a kernel that allows seccomp"
    fix = (
        f"run on such a machine, or send programs to a service: {SETTING}.executor=sandbox_fusion "
        f"{SETTING}.url=http://...; {SETTING}.executor=unsafe_subprocess runs them with the rights of this user"
    )
    return ConfigError(f"{SETTING}.executor=contained: {reason}", rule=rule, fix=fix)


def _package_folders(packages: Iterable[str]) -> dict[str, str]:
    """Map each package, and the packages in `_WITH` that it imports, to its folder."""
    names = dict.fromkeys(name for package in packages for name in (*_WITH.get(package, ()), package))
    return {name: _folder(name) for name in names}


def _folder(name: str) -> str:
    value = f"{SETTING}.packages: {name!r}"
    if name in sys.stdlib_module_names:
        raise ConfigError(value, rule="programs can always import the standard library", fix="leave it out")
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None:
        rule = "it is the name of an installed package, as programs import it"
        raise ConfigError(value, rule=rule, fix=f"pip install {name}, or leave it out")
    if not spec.submodule_search_locations:
        raise ConfigError(f"{value}, which is one file", rule="a package is a folder of modules", fix="leave it out")
    return os.path.abspath(next(iter(spec.submodule_search_locations)))
