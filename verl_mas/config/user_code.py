"""Loads files and modules of the user. They are loaded in every process that needs the entries they register."""

import importlib
import importlib.util
import os
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

from verl_mas.config.schema import MasConfig
from verl_mas.errors import ConfigError

USER_MODULE = "verl_mas_user_"  # prefix of the names of modules that are loaded from files


def load_user_code(mas: MasConfig) -> None:
    """Load the files and modules in mas.plugins and mas.workflow.path."""
    for where in mas.plugins:
        load_module(where, "mas.plugins")
    if mas.workflow.path is not None:
        load_module(mas.workflow.path, "mas.workflow.path")


def load_module(where: str, setting: str) -> ModuleType:
    """Load `my_file.py` or `my_package.my_module`, once per process. Exceptions of the loaded code are raised
    unchanged, except ModuleNotFoundError, which becomes a ConfigError."""
    try:
        return _load_file(where, setting) if where.endswith(".py") else _import(where, setting)
    except ModuleNotFoundError as error:
        # File and line of the import that failed.
        frame = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename][-1]
        value = f"{setting}={where}: {frame.filename}:{frame.lineno}: {error}"
        rule = "every package that it imports is installed on every node of the run"
        raise ConfigError(value, rule=rule, fix=f"install {error.name}, or put its folder on PYTHONPATH") from error


def _load_file(where: str, setting: str) -> ModuleType:
    # Use functions of `os`, because they treat a path that the system refuses like a missing file.
    file = Path(os.path.realpath(where))
    # Each file has one module name, so that a second load finds the loaded module and registers nothing twice.
    name = USER_MODULE + "".join(c if c.isalnum() else "_" for c in str(file))
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not os.path.isfile(file):
        raise _missing(where, setting)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with ExitStack() as undo:
        # A second import must fail in the same way instead of finding a half-loaded module.
        undo.callback(sys.modules.pop, name, None)
        try:
            spec.loader.exec_module(module)
        except SyntaxError as error:
            error.filename = error.filename or str(file)  # it is None for null bytes
            raise
        undo.pop_all()
    return module


def _import(where: str, setting: str) -> ModuleType:
    if not all(part.isidentifier() for part in where.split(".")):
        raise _missing(where, setting)
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{where}.".startswith(f"{error.name}."):
            raise _missing(where, setting) from error
        raise


def _missing(where: str, setting: str) -> ConfigError:
    fix = "give a path that exists on every node of the run, such as one on a shared disk; put the module's folder on "
    fix += "PYTHONPATH; or send the command's folder to all nodes: ++ray_kwargs.ray_init.runtime_env.working_dir=."
    return ConfigError(f"{setting}={where}", rule="it must be a Python file or the name of a module", fix=fix)
