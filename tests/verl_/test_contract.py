"""The installed verl fits `scripts/verl_contract`, and the contract lists everything that we use."""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import verl_contract as contract
from omegaconf import OmegaConf
from packaging.version import Version
from verl_contract.sources import find, named, own_members, root_of, tree_of

from verl_mas.config.merge import leaves

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from lock_overrides import PACKAGE, classes, modules, overridden, sources
from verl_since import PAGE, touched

# Private names of other packages.
OTHERS = {
    *("_actor_id", "_global_node", "_return_value"),  # names of Ray
    *("_actions", "_current_frames", "_exit", "_fields", "_interp", "_linear_pointwise", "_replace"),
    *("_run_exitfuncs", "_shutdown"),  # names of Python, used at the end of a contained program
    "_adapter_manager",  # a name of vLLM
}
# Keys that verl does not have, keys of verl's open mappings, and keys that only verl's dataclasses have (in `USED`).
OPEN = (
    *("mas", "hydra", "defaults"),
    "ray_kwargs.ray_init",
    "trainer.v1.sampler.sampler_kwargs",
    *("actor_rollout_ref.model.override_config", "critic.model.override_config", "critic.fsdp.mixed_precision"),
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision",
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
    "actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs",
)
# Modules that override or use private names of verl.
TOUCHING = {
    *("engines.kinds.sglang", "engines.kinds.vllm", "engines.transformers.replica"),
    *("engines.vllm_extension", *(f"verl_mas_vllm_cpu.{name}" for name in ("adapter", "server", "worker"))),
    *("engines.platform.fsdp", "rollout.manager", "rollout.team_client", "rollout.verl_client", "rollout.worker"),
    *("trainer.adapters.engine", "trainer.modes.asynchronous", "trainer.policies.local_policy"),
    *(
        "trainer.policies.policy_trainer",
        "trainer.policies.servers",
        "trainer.trainer",
        "trainer.validation",
        "verl_.registries",
    ),
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_uses(module: str) -> Iterator[tuple[str, str]]:
    """Yield the private names that a file uses but does not define: (class or module of verl, name). The first part is
    '' if the owner is unknown."""
    tree = tree_of(module)
    assert tree is not None
    seen: set[ast.AST] = set()
    for our in classes(module):
        for node in attributes(our.node):
            if is_self(node.value) and any(node.attr in own_members(one) for one in our.verls):
                seen.add(node)
                yield our.base, node.attr
    defined = names_of(tree)
    for node in attributes(tree):
        owner = named(module, node.value.id) if isinstance(node.value, ast.Name) else None
        if owner and owner.module.startswith("verl."):
            yield owner.path, node.attr
        elif node not in seen and node.attr not in defined:
            yield "", node.attr
    for node in imports_of_verl(module):
        yield from ((f"{node.module}", alias.name) for alias in node.names if is_private(alias.name))


def is_self(node: ast.expr) -> bool:
    """Whether an expression is `self`, `cls` or `super()`."""
    return isinstance(node, ast.Name | ast.Call) and root_of(node) in ("self", "cls", "super")


def attributes(tree: ast.AST) -> Iterator[ast.Attribute]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            yield node


def names_of(tree: ast.Module) -> set[str]:
    """Return the names that a file defines or assigns, in any scope."""
    named_nodes = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in ast.walk(tree) if isinstance(node, named_nodes)}
    stored = [node for node in ast.walk(tree) if isinstance(getattr(node, "ctx", None), ast.Store)]
    names |= {node.id for node in stored if isinstance(node, ast.Name)}
    return names | {node.attr for node in stored if isinstance(node, ast.Attribute)}


def test_the_installed_verl_fits_the_contract():
    assert [str(difference) for difference in contract.differences()] == []


def test_every_override_of_a_method_of_verl_is_in_the_lock_file_and_nothing_else():
    assert overridden() == contract.OVERRIDDEN, "run scripts/lock_overrides.py, and read what differs"


def test_every_private_name_of_verl_that_we_use_is_in_the_contract():
    tables: list[Mapping[str, Mapping[str, Any]]] = [contract.OVERRIDDEN, contract.USED]
    listed = {(owner, name) for table in tables for owner, agents in table.items() for name in agents}
    # If the class of an object is not known, a name of any class is accepted.
    listed |= {("", name) for _, name in listed} | {("", name) for name in OTHERS}
    missing = {module: sorted(set(private_uses(module)) - listed) for module in modules()}
    assert {module: names for module, names in missing.items() if names} == {}


def test_only_these_modules_touch_private_names_of_verl():
    """Another version of verl may change these names; then only these modules must change."""
    tables = (contract.OVERRIDDEN, contract.USED)
    private = {name for table in tables for names in table.values() for name in names if is_private(name)}
    touching = {module for module in modules() if {name for _, name in private_uses(module)} & private}
    for module in modules():
        ours = [one for our in classes(module) for one in our.ours if one.module == module]
        touching |= {module for one in ours if own_members(one).keys() & private}
    assert {module.removeprefix("verl_mas.") for module in touching} == TOUCHING


def test_every_name_of_the_contract_is_used():
    source = "\n".join(file.read_text() for file in sources().values())
    assert [name for agents in contract.USED.values() for name in agents if name not in source] == []
    assert [ours for ours in contract.MIXED_INTO if find(ours) is None] == []
    assert [ours for _, ours in contract.RESTATED.values() if not (PACKAGE / ours).exists()] == []


def test_every_name_that_we_import_from_verl_is_there():
    """This includes verl's modules for engines that are not installed here."""
    imports = [node for module in modules() for node in imports_of_verl(module)]
    names = [(node.module or "", alias.name) for node in imports for alias in node.names]
    assert len(names) > 50
    assert [f"{module}.{name}" for module, name in names if named(module, name) is None] == []


def imports_of_verl(module: str) -> Iterator[ast.ImportFrom]:
    tree = tree_of(module)
    assert tree is not None
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("verl."):
            yield node


def test_every_setting_of_verl_in_a_group_file_is_one():
    files = [OmegaConf.to_container(OmegaConf.load(file)) for file in PACKAGE.glob("*/hydra/**/*.yaml")]
    names = {".".join(path) for content in files for path, _ in leaves(content)}
    keys = {key for key in names if not key.startswith(OPEN)}
    verls = contract.generated_config()
    assert len(keys) > 20 and [key for key in keys if not contract.is_setting(verls, key)] == []


TRAINER = "verl.trainer.ppo.v1.trainer_base:PPOTrainer"


@pytest.mark.parametrize(
    ("table", "wrong", "seen", "breaks"),
    [
        ("OVERRIDDEN", {TRAINER: {"_no_such": "self"}}, "is missing", True),
        ("OVERRIDDEN", {TRAINER: {"_balance_batch": "self, batch"}}, "takes (self, batch, metrics", True),
        ("USED", {"verl.no_such_module": {"_x": None}}, "is missing", True),
        ("TEXTS", {"verl.trainer.ppo.v1.trainer_base": {"sync": 99}}, "verl-mas expects 99", False),
        ("TEXTS", {"verl.trainer.ppo.v1.trainer_base": {"no such mode": 1}}, "occurs 0 times", True),
        ("RESTATED", {f"{TRAINER}._update_actor": ("0", "trainer/policies/policy_trainer.py")}, "has changed", False),
        ("KEYS", ("trainer.no_such_key",), "is not a setting", True),
    ],
)
def test_a_verl_that_differs_is_reported(monkeypatch, table, wrong, seen, breaks):
    for name in ("OVERRIDDEN", "USED", "TEXTS", "RESTATED"):
        monkeypatch.setattr(contract, name, {})
    monkeypatch.setattr(contract, "KEYS", ())
    monkeypatch.setattr(contract, table, wrong)
    (difference,) = contract.differences()
    assert seen in str(difference)
    assert difference.breaks is breaks


def test_the_page_says_of_each_name_since_when_verl_has_it():
    rows = re.findall(r"^\| `(.*?)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    listed = {(owner, name): since for owner, names in rows for name, since in re.findall(r"`(.*?)`: ([^,]*)", names)}
    assert listed.keys() == {(owner, name) for owner, name, _ in touched()}
    assert all(Version(since) <= Version(contract.VERSION) for since in listed.values())
