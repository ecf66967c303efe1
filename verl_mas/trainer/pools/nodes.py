"""Requirements of every node of a Ray cluster, checked on the node before a model is loaded."""

import logging
import os
import time
from collections.abc import Collection, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

import ray
from omegaconf import DictConfig, OmegaConf
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from verl_mas.config.cluster import loopback_servers
from verl_mas.config.merge import SECTION
from verl_mas.config.run import Run
from verl_mas.config.schema import MasConfig
from verl_mas.config.user_code import load_user_code
from verl_mas.errors import ConfigError, ConfigErrors, ConfigWarning
from verl_mas.gateway.endpoints.endpoint import check_endpoint
from verl_mas.run_folder.lock import LOCK
from verl_mas.util import worker_folder
from verl_mas.workflow.base import resolve

# Settings with files that agent-loop and reward workers read.
FILES = (
    "reward.custom_reward_function.path",
    "reward.reward_manager.module.path",
    f"{SECTION}.rollout.multi_turn.tool_config_path",
    f"{SECTION}.rollout.multi_turn.function_tool_path",
)
# Time limit of the check. It is long, because imports from a cold shared disk are slow.
LIMIT_S = 300.0
PACKAGES = ("verl", "verl-mas")
logger = logging.getLogger(f"verl.{__name__}")


# Arguments of the check of a node: the team's configuration, package -> version, setting -> path of a file or
# folder, and the path of the lock file in the run's folder (None in an evaluation).
Expected: TypeAlias = tuple[MasConfig, dict[str, str], dict[str, str], str | None]


def check_nodes(run: Run, pools: Collection[str]) -> Iterator[ConfigError]:
    """Yield errors that the run's workers would meet on their nodes. `pools`: the ids of the nodes with a pool."""
    other_nodes = _nodes(run.config, pools)
    if not other_nodes:
        return
    for warning in loopback_servers(run.mas, vars(resolve(run.mas.workflow)), len(other_nodes) + 1):
        logger.warning("%s", warning)
    expected = _expected(run)
    until = time.monotonic() + LIMIT_S
    answers = [
        (name, _look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(*expected))
        for node, name in other_nodes.items()
    ]
    for name, answer in answers:
        try:
            problems = ray.get(answer, timeout=max(until - time.monotonic(), 0))
        except RayError as error:
            late = isinstance(error, GetTimeoutError)
            why = f"no answer after {LIMIT_S:g} s" if late else str(error).strip().splitlines()[-1]
            rule = "every node of the run can import verl_mas and the run's own code"
            fix = "install the same packages there as on the trainer's node, and look at `ray status`"
            yield ConfigError(f"on node {name}: {why}", rule=rule, fix=fix)
        else:
            for problem in problems:
                if isinstance(problem, ConfigError):
                    yield ConfigError(f"on node {name}: {problem.value}", rule=problem.rule, fix=problem.fix)
                else:
                    logger.warning("on node %s: %s", name, problem)


def _nodes(config: DictConfig, pools: Collection[str]) -> dict[str, str]:
    """Return id -> address of the other nodes that will have workers of this run. This node is the reference, so it is
    not checked."""
    alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    # Choose the nodes on which verl will place agent-loop workers and reward workers.
    with_cpus = [key for key, node in alive.items() if node["Resources"].get("CPU", 0) > 0]
    used = {*pools, *with_cpus[: max(config.actor_rollout_ref.rollout.agent.num_workers, config.reward.num_workers)]}
    used.discard(ray.get_runtime_context().get_node_id())
    return {key: node["NodeManagerAddress"] for key, node in alive.items() if key in used}


def _expected(run: Run) -> Expected:
    local = [name for name, spec in run.mas.policies.items() if not spec.remote]
    files = {f"{SECTION}.model.path of policy {n}": run.view(n).value("model.path") for n in local}
    files |= {setting: OmegaConf.select(run.config, setting) for setting in FILES}
    return (
        run.mas,
        {package: version(package) for package in PACKAGES},
        # Skip a path that does not exist here, because it is the name of a hub model or of a module.
        {setting: path for setting, path in files.items() if path and os.path.exists(path)},
        None if run.config.trainer.val_only else str(Path(run.config.trainer.default_local_dir) / LOCK),
    )


def look(
    mas: MasConfig, versions: Mapping[str, str], files: Mapping[str, str], output: str | None
) -> list[ConfigError | ConfigWarning]:
    """Find the errors and warnings of this node. The arguments are the items of `Expected`."""
    worker_folder.enter()
    problems: list[ConfigError | ConfigWarning] = []
    for package, wanted in versions.items():
        if (here := version(package)) != wanted:
            value = f"{package} {here}, and the trainer's node has {wanted}"
            rule = "all nodes of a run have the same packages"
            problems.append(ConfigError(value, rule=rule, fix=f"pip install {package}=={wanted} there"))
    for setting, path in files.items():
        if not os.path.exists(path):
            value = f"{setting}: {os.path.abspath(path)} does not exist"
            rule = "workers on every node of the run read it"
            fix = "put it on a disk that all nodes mount, or copy it there to the same path"
            problems.append(ConfigError(value, rule=rule, fix=fix))
    try:
        load_user_code(mas)
    except ConfigErrors as error:
        problems += error.errors
    except ConfigError as error:
        problems.append(error)
    for name, spec in mas.policies.items():
        if spec.remote:
            found = check_endpoint(spec.remote.base_url, spec.remote.api_key_env, f"mas.policies.{name}.remote.")
            problems += [problem for problem in found if isinstance(problem, ConfigError)]
    if output and not os.path.exists(output):
        value = f"trainer.default_local_dir={os.path.dirname(output)} is not the folder of the trainer's node"
        reason = (
            "each node writes its part of a checkpoint, and its sessions, to its own disk; a run resumes only where "
            "all parts are in one folder"
        )
        problems.append(ConfigWarning(value, reason, "set trainer.default_local_dir to a disk that all nodes mount"))
    return problems


_look = ray.remote(num_cpus=0, max_retries=0)(look)
