"""The package reads only environment variables that `environment.yaml` declares, and settings that verl or verl-mas
declares."""

import ast
from collections.abc import Iterator
from pathlib import Path

import yaml

import verl_mas
from verl_mas.config.merge import SECTION
from verl_mas.config.verl_settings import section_at, verl_settings

PACKAGE = Path(verl_mas.__file__).parent
LIST = Path(__file__).parents[1] / "scripts/pages/environment.yaml"
DECLARED = {name for part in yaml.safe_load(LIST.read_text()).values() for name in part}
ENVIRONMENTS = ("os.environ", "environ", "os.getenv", "getenv")
# Expressions of the code where a setting names the variable.
NAMED_BY_SETTINGS = {"str(key)", "variable", "self._key_variable", "name"}
# Variables of the code that hold the configuration of a run, or of a policy.
CONFIGURATIONS = ("config", "run.config", "self.run.config", "self.config", "view", "view.run.config")
BELOW_SECTION = ("model.", "actor.", "rollout.", "ref.")
# Methods of a section of a configuration.
METHODS = ("get", "items", "keys", "pop", "values")


def variables(tree: ast.Module) -> Iterator[str]:
    """Yield the names of variables, or the source of an expression that names one."""
    known = constants(tree)
    for node in ast.walk(tree):
        for given in names_in(node):
            yield from known.get(ast.unparse(given), [ast.unparse(given)] if not is_text(given) else [given.value])


def names_in(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Subscript(value=environment, slice=name) if is_environment(environment):
            return [name]
        case ast.Compare(left=name, comparators=[environment]) if is_environment(environment):
            return [name]
        case ast.Call(func=ast.Attribute(value=environment, attr="get" | "pop" | "setdefault"), args=[name, *_]):
            return [name] if is_environment(environment) else []
        case ast.Call(func=function, args=[name, *_]) if ast.unparse(function) in ("os.getenv", "getenv"):
            return [name]
    return []


def is_environment(node: ast.AST) -> bool:
    return ast.unparse(node) in ENVIRONMENTS


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def constants(tree: ast.Module) -> dict[str, list[str]]:
    """Map names of a module to their texts: constants, and values of loops and comprehensions."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        pair = (node.targets[0], node.value) if isinstance(node, ast.Assign) else ()
        pair = (node.target, node.iter) if isinstance(node, ast.comprehension | ast.For) else pair
        texts = [one.value for one in ast.walk(pair[1]) if is_text(one)] if pair else []
        source = ast.unparse(pair[1]) if pair else ""
        if (texts and not isinstance(pair[1], ast.Call)) or source in found:
            found[ast.unparse(pair[0])] = found.get(source, texts)
    return found


def test_every_variable_that_is_read_is_declared_and_every_declared_one_is_read():
    found = {name for path in PACKAGE.rglob("*.py") for name in variables(ast.parse(path.read_text()))}
    assert found == DECLARED | NAMED_BY_SETTINGS


def test_reads_of_every_form_are_found():
    source = """
X = "A"
Y = ("G", "H")
os.environ["B"], os.environ.get("C", "B2"), os.getenv("D"), os.environ.pop(X), "E" in os.environ
os.environ["F"] = "1"
[os.environ[name] for name in Y]
other["Z"], other.get("Z")
"""
    assert set(variables(ast.parse(source))) == set("ABCDEFGH")


def settings(tree: ast.Module) -> Iterator[str]:
    """Yield the settings of verl that a file names: in a path, or as attributes of a configuration."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=function, args=[_, ast.Constant(value=str(path)), *_]):
                yield from [path] if ast.unparse(function) == "OmegaConf.select" else []
            case ast.Call(
                func=ast.Attribute(value=view, attr="get" | "value"), args=[ast.Constant(value=str(path)), *_]
            ):
                if ast.unparse(view).rpartition(".")[2].startswith("view") and path.startswith(BELOW_SECTION):
                    yield f"{SECTION}.{path}"
            case ast.Attribute():
                yield from _attributes(ast.unparse(node))


def _attributes(chain: str) -> Iterator[str]:
    for start in CONFIGURATIONS:
        first, *further = chain.removeprefix(f"{start}.").split(".") if chain.startswith(f"{start}.") else [""]
        if first in verl_settings().keys and further and further[-1] not in METHODS and "[" not in chain:
            yield ".".join([first, *further])


def is_setting(path: str) -> bool:
    """Whether verl has this setting, or a section above it takes any key. Other paths are not settings of verl."""
    root, (first, *_) = verl_settings(), path.split(".")
    parent, _, key = path.rpartition(".")
    section = section_at(parent, root)
    return not root.knows(first) or first == "mas" or (section.knows(key) if section else is_open(parent))


def is_open(path: str) -> bool:
    parent, _, key = path.rpartition(".")
    section = section_at(parent, verl_settings())
    return section.below(key) is None if section and section.knows(key) else bool(parent) and is_open(parent)


def test_every_setting_of_verl_that_is_read_is_one_that_verl_has():
    names = {name for path in PACKAGE.rglob("*.py") for name in settings(ast.parse(path.read_text()))}
    assert len(names) > 50
    assert [name for name in sorted(names) if not is_setting(name)] == []


def test_a_setting_that_verl_does_not_have_is_found():
    source = """
OmegaConf.select(config, "trainer.save_frequency")
view.get("rollout.nam"), run.view(name).value("actor.optim.lrr")
config.trainer.device, config.data.batch_size, run.config.actor_rollout_ref.rollout.get("n")
OmegaConf.select(config, "actor_rollout_ref.rollout.engine_kwargs.vllm.x")
"""
    wrong = {path for path in settings(ast.parse(source)) if not is_setting(path)}
    assert wrong == {
        "trainer.save_frequency",
        "actor_rollout_ref.rollout.nam",
        "actor_rollout_ref.actor.optim.lrr",
        "data.batch_size",
    }
