"""Functions and classes of the user that verl loads, whose files are parsed, not run."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from verl_mas.checks.verl.place import missing
from verl_mas.checks.verl.refusals import Problem
from verl_mas.errors import ConfigError, ConfigWarning
from verl_mas.registry import nearest
from verl_mas.verl_.sources import names_in

FILE, PACKAGE = "file://", "pkg://"
# verl's reward managers call a reward function with these names.
REWARD_PARAMETERS = ("data_source", "solution_str", "ground_truth", "extra_info")


@dataclass(frozen=True)
class Named:
    """Two settings: a file or module, and the name of a function or class in it."""

    path: str
    name: str
    noun: str
    given: tuple[str, ...] = ()  # The names of what verl calls it with


OF_DATASET = ("data_files", "tokenizer", "processor", "config", "max_samples")
OF_SAMPLER = ("trainer_mode", "trainer_config", "max_off_policy_threshold", "sampler_kwargs", "refill_fn")
OF_MANAGER = ("config", "tokenizer", "compute_score", "reward_router_address", "reward_model_tokenizer")
CUSTOM = "custom_reward_function"
NAMED = (
    Named(f"reward.{CUSTOM}.path", f"reward.{CUSTOM}.name", "reward function", REWARD_PARAMETERS),
    Named("reward.reward_manager.module.path", "reward.reward_manager.name", "reward manager class", OF_MANAGER),
    Named("data.custom_cls.path", "data.custom_cls.name", "dataset class", OF_DATASET),
    Named(
        "trainer.v1.sampler.custom_sampler.path",
        "trainer.v1.sampler.custom_sampler.name",
        "sampler class",
        OF_SAMPLER,
    ),
)


def check_functions(config: DictConfig) -> Iterator[Problem]:
    if path := OmegaConf.select(config, f"{CUSTOM}.path"):
        rule = "verl's trainer reads it below reward alone, and would score with its own function"
        yield ConfigError(f"{CUSTOM}.path={path}", rule=rule, fix=f"set reward.{CUSTOM}.path and .name")
    yield from _reward_manager(config)
    for named in NAMED:
        if path := OmegaConf.select(config, named.path):
            yield from _check(config, named, str(path), OmegaConf.select(config, named.name))


def _reward_manager(config: DictConfig) -> Iterator[Problem]:
    manager = config.reward.reward_manager
    if manager.source != "register" or manager.name == "naive":
        return  # Importing verl's managers takes seconds.
    from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER
    from verl.trainer.ppo.reward import get_custom_reward_fn

    if manager.name not in REWARD_MANAGER:
        value = f"reward.reward_manager.name={manager.name}"
        rule = "with reward.reward_manager.source=register it is a reward manager of verl"
        yield ConfigError(value, rule=rule, fix=nearest(str(manager.name), list(REWARD_MANAGER)))
        return
    try:
        function = get_custom_reward_fn(config)
        if manager.name == "remote":  # It starts actors of Ray.
            assert not inspect.iscoroutinefunction(function), "its processes call no async function"
        else:
            REWARD_MANAGER[manager.name](config=config, tokenizer=object(), compute_score=function)  # type: ignore[arg-type]
    except (AssertionError, ValueError, TypeError) as error:
        value = f"reward.reward_manager.name={manager.name}"
        yield ConfigError(value, rule=f"verl makes it when the run starts: {error}", fix="correct its settings")
    except Exception as error:  # noqa: BLE001  # of the user's file
        value = f"reward.reward_manager.name={manager.name}: {type(error).__name__}: {error}"
        yield ConfigWarning(value, "not checked: whether verl can make it", "correct the file of the reward function")


def _check(config: DictConfig, named: Named, path: str, name: object) -> Iterator[Problem]:
    if not isinstance(name, str) or not name:
        rule = f"it is the name of the {named.noun} in that file"
        yield ConfigError(f"{named.name}={name!r} with {named.path}={path}", rule=rule, fix=f"set {named.name}")
        return
    file = file_of_user(path)
    if file is None or not file.is_file():
        yield missing(config, named.path, path, f"a Python file with the {named.noun}")
        return
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        value = f"{file}, line {line}: {getattr(error, 'msg', None) or error}"
        yield ConfigError(value, rule=f"{named.path} is a Python file", fix=f"correct {file}, line {line}")
        return
    known = names_in(tree)
    if name not in known:
        if "*" not in known:
            value = f"{named.name}={name}, and {file} does not define it"
            rule = f"it is the name of the {named.noun} in that file"
            yield ConfigError(value, rule=rule, fix=nearest(name, [each for each in known if not each.startswith("_")]))
    elif named.noun.endswith("class") and not _is_class(known[name]):
        value, rule = f"{named.name}={name} of {file}", f"it is a {named.noun}, which inherits from verl's or torch's"
        yield ConfigError(value, rule=rule, fix=f"define class {name}(...)")
    elif lacking := _lacking(known[name], named.given):
        value = f"{name} of {file} does not take {', '.join(lacking)}"
        rule = f"verl calls a {named.noun} with {', '.join(named.given)}, by name"
        yield ConfigError(value, rule=rule, fix="add the parameters, or **kwargs")


def _is_class(node: ast.AST) -> bool:
    """As far as the source shows it."""
    constant = isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant)
    function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return not (constant or function or (isinstance(node, ast.ClassDef) and not node.bases))


def custom_function(config: DictConfig) -> str:
    """The file of the reward function; empty if there is none."""
    return str(OmegaConf.select(config, f"reward.{CUSTOM}.path") or "")


def file_of_user(path: str) -> Path | None:
    """The file that verl loads; None if there is no such module."""
    if not path.startswith(PACKAGE):
        return Path(path.removeprefix(FILE))
    module = path.removeprefix(PACKAGE).replace("/", ".")
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def _lacking(node: ast.AST, given: Sequence[str]) -> list[str]:
    if isinstance(node, ast.ClassDef):
        own = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        return _lacking(own[0], given) if own else []
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.args.kwarg or node.decorator_list:
        return []
    taken = {parameter.arg for parameter in (*node.args.args, *node.args.kwonlyargs)}
    return [name for name in given if name not in taken]
