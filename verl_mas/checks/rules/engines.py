"""Engines, their pools, and how weights reach them."""

import os
from collections.abc import Iterator
from importlib.util import find_spec

from verl_mas.checks.examined import ExaminedRun, setting, stated
from verl_mas.checks.machine import INSTALL, devices_here, nvcc
from verl_mas.checks.place import elsewhere, target, unless_elsewhere
from verl_mas.checks.rules import Problem, rule
from verl_mas.config import placement
from verl_mas.config.merge import SECTION, own_section
from verl_mas.config.run import View
from verl_mas.config.schema import DEFAULT_POOL
from verl_mas.config.verl_settings import ATTENTION, DEFAULT_ATTENTION, attention, is_flash
from verl_mas.engines.facts import ENGINES, facts_of
from verl_mas.engines.platform import DEVICE as CPU
from verl_mas.engines.serving import MOST, lowered
from verl_mas.errors import ConfigError
from verl_mas.planning.path import PACKAGE
from verl_mas.util import installed_version

TENSOR = "rollout.tensor_model_parallel_size"
NOSET = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
MEANING = "Contexts and trainers take the rest. Some engines take a fraction of the whole GPU, others of what is free"


@rule(seen="commit 00d57299: runs whose engine was not there; commit 844f579e: verl 0.9.1 and SGLang 0.5.20", here=True)
def engine_installed(run: ExaminedRun) -> Iterator[Problem]:
    """The engine is installed on every node, ready for the device, and of a version that verl can start."""
    device = run.config.trainer.device
    for name in {view.engine for view in run.served}:
        facts = facts_of(name)
        if facts.check_ready:
            facts.check_ready(device)  # Raises an error that says why the engine cannot run on this device.
        if facts.package and find_spec(facts.package) is None and not (device == CPU and facts.check_ready):
            value = f"{SECTION}.rollout.name={name}, and {facts.package} is not installed"
            error = ConfigError(value, rule="an engine is installed on every node", fix=facts.install or "install it")
            yield unless_elsewhere(run.config, error)
        if (known := facts.contract) and (why := known.unstartable):
            value = f"{name} {installed_version(name)} is installed"
            fix = f"install a version from {' to '.join(known.tested)}: docs/start/gpu-quickstart.md has the commands"
            yield unless_elsewhere(run.config, ConfigError(value, rule=why, fix=fix))


@rule(seen="commit 844f579e: engines that compile kernels when they start", here=True, of="served")
def compiler_installed(run: ExaminedRun, view: View) -> Problem | None:
    """Engines that compile kernels need nvcc. On a machine without GPUs, the rule does not look for nvcc."""
    compiles = facts_of(view.engine).compiles
    if compiles is None or run.config.trainer.device != "cuda" or target() or nvcc():
        return None
    import torch

    # A torch for ROCm has no CUDA version.
    here = torch.version.cuda is not None and torch.cuda.is_available()
    if not here or not (what := compiles(view.section("rollout"), torch.cuda.get_device_capability())):
        return None
    value = f"{SECTION}.rollout.name={view.engine}, and nvcc is not installed"
    rule, fix = f"nvcc compiles {what} when the engine starts", f"{INSTALL}, or set CUDA_HOME to its folder"
    return unless_elsewhere(run.config, ConfigError(value, rule=rule, fix=fix))


@rule(seen="commit 844f579e: two pools of one node, and an engine that numbers GPUs", team=True, here=True)
def gpus_hidden(run: ExaminedRun) -> Iterator[ConfigError]:
    """If Ray does not hide other GPUs from processes, verl starts some engines of every pool on a node's first GPUs."""
    numbering = sorted({view.engine for view in run.served if facts_of(view.engine).numbers_gpus})
    several = numbering and len(placement.used_pools(run.mas)) > 1
    if os.environ.get(NOSET) and several and not target() and placement.gpus_needed(run) <= devices_here():
        rule = "the engines of every pool would start on the first GPUs of the node"
        value = f"{NOSET}={os.environ[NOSET]} with {', '.join(numbering)} on several pools"
        yield ConfigError(value, rule=rule, fix=f"unset {NOSET}")


@rule(seen="verl#1191, verl#1182, verl#2596")
def whole_replicas(run: ExaminedRun) -> Iterator[ConfigError]:
    """The size of a replica divides the GPUs that serve a policy, and its tensor parallel size fits the nodes."""
    for name in placement.local_policies(run.mas):
        view, shape = run.view(name), placement.pool_shape(run, placement.serving_pool(run.mas, name))
        size, gpus, tensor = placement.replica_size(run, name), sum(shape), int(view.value(TENSOR))
        sizes = stated(view, TENSOR)
        if facts_of(view.engine).one_process and size > 1:
            fix = f"set {setting(view, TENSOR)}=1; more workers give more replicas"
            yield ConfigError(sizes, rule="a replica of this engine is one process", fix=fix)
        elif gpus % size or (shape[0] % tensor and tensor % shape[0]):
            fits = max(n for n in range(1, tensor + 1) if gpus % (n * (size // tensor)) == 0 and shape[0] % n == 0)
            section = own_section(run.config, name) if view.spec.overrides.get("rollout") else SECTION
            fix = f"set {section}.rollout.tensor_model_parallel_size={fits}, or give the pool a multiple of {size} GPUs"
            value = f"{sizes}: a replica of {size} GPUs on a pool of {gpus}, {shape[0]} on each node"
            rule = "tensor x data x pipeline parallel size divides the GPUs, and a tensor parallel size those of a node"
            yield ConfigError(value, rule=rule, fix=fix)


@rule(seen="commit 00d57299: names of servers in verl 0.9.1", team=True)
def servers_apart(run: ExaminedRun) -> Iterator[ConfigError]:
    """verl gives the servers of some engines the same names for every policy, so only one policy can use them."""
    local = placement.local_policies(run.mas)
    for view in map(run.view, local if len(local) > 1 else ()):
        if not facts_of(view.engine).many or view.get("rollout.disaggregation.enabled"):
            able = ", ".join(name for name in ENGINES if ENGINES[name].many)
            value, rule = stated(view, "rollout.name"), "verl gives its servers the same names for every policy"
            fix = f"set {SECTION}.rollout.name to one of {able}, without disaggregation, or serve one policy"
            yield ConfigError(f"{value}, one of {len(local)} policies", rule=rule, fix=fix)


@rule(seen="vllm-project/vllm#20305, vllm-project/vllm#10797", team=True)
def memory_of_engines(run: ExaminedRun) -> Iterator[ConfigError]:
    """The memory fractions of engines that are awake together leave enough of the GPU for the training."""
    for pool, spec in run.mas.pools.items():
        names = [name for name in placement.served_on(run.mas, pool) if facts_of(run.view(name).engine).gpu_fraction]
        shares = {name: float(run.view(name).value("rollout.gpu_memory_utilization")) for name in names}
        most = MOST if len(names) > 1 and run.config.trainer.device != CPU else 1.0
        if spec.serving == "phases":
            for name in (name for name in names if not run.view(name).value("rollout.free_cache_engine")):
                fix = f"set {own_section(run.config, name)}.rollout.free_cache_engine=True"
                value = f"policy {name}: rollout.free_cache_engine=False in a pool served in phases"
                yield ConfigError(value, rule="in phases, each engine frees its memory for the next", fix=fix)
        together = max(shares.values(), default=0) if spec.serving == "phases" else sum(shares.values())
        if together > most + 1e-9:
            fits = zip(shares, lowered(list(shares.values()), most), strict=True)
            fix = " ".join(f"{own_section(run.config, n)}.rollout.gpu_memory_utilization={s:g}" for n, s in fits)
            value = f"pool {pool}: gpu_memory_utilization {' + '.join(f'{n} {s:g}' for n, s in shares.items())}"
            rule = f"those of engines that are awake together add up to at most {most:g}. {MEANING}"
            yield ConfigError(value, rule=rule, fix=f"set {fix}, or ++mas.pools.{pool}.serving=phases")


@rule(seen="commit e6ea2ae8: the first commands with pools", team=True)
def pools_used(run: ExaminedRun) -> Iterator[ConfigError]:
    """Every pool is used by a policy."""
    used = {DEFAULT_POOL, *(pool for spec in run.mas.policies.values() for pool in (spec.pool, spec.engines))}
    for pool in run.mas.pools.keys() - used:
        fix = f"set ++mas.policies.<policy>.pool={pool}, or remove the pool"
        yield ConfigError(f"mas.pools.{pool} has no policy", rule="a pool reserves its GPUs for the whole run", fix=fix)


@rule(seen="commit 6118edf0: weights were not sent without cupy on a GPU", here=True, of="served")
def transfer_installed(run: ExaminedRun, view: View) -> Problem | None:
    """verl needs cupy to send weights between GPUs with nccl or delta_sharded."""
    key = "rollout.checkpoint_engine.backend"
    reason = facts_of(view.engine).lacks("delta_sharded") if view.get(key) == "delta_sharded" else ""
    if view.get(key) in ("nccl", "delta_sharded") and run.config.trainer.device == "cuda" and not find_spec("cupy"):
        reason = reason or "verl sends weights in this way with cupy, which is not installed"
    if not reason:
        return None
    fix = f"pip install cupy-cuda13x==14.0.1, or set {setting(view, key)}=ray"
    return unless_elsewhere(run.config, ConfigError(stated(view, key), rule=reason, fix=fix))


@rule(seen="verl#985, hiyouga/EasyR1#160, verl#5210", here=True, of="served")
def attention_installed(run: ExaminedRun, view: View) -> Iterator[Problem]:
    """The package of a model's attention is installed. By default verl uses flash-attn, which needs Ampere GPUs."""
    used, asked = attention(view.config), view.get(ATTENTION.removeprefix(f"{SECTION}.")) is not None
    sdpa = f"set ++{ATTENTION}=sdpa"
    if run.config.trainer.device == CPU:
        value, rule = f"{ATTENTION}={used} on the CPU", "flash-attn computes on GPUs only"
        yield from [ConfigError(value, rule=rule, fix=sdpa)] if is_flash(used) else []
        return
    if is_flash(used) and not elsewhere(run.config) and (old := old_gpu()):
        rule, fix = "flash attention and bfloat16 need Ampere GPUs or newer", f"{sdpa}, {SECTION}.model"
        yield ConfigError(f"{used} on {old}", rule=rule, fix=f"{fix}.use_remove_padding=False and dtype=float16")
    # Without flash-attn, transformers downloads the same kernel if the package `kernels` is installed.
    wanted = used == DEFAULT_ATTENTION or run.critics
    if not wanted or any(find_spec(package) for package in (PACKAGE, "kernels")):
        return
    if target() and not asked:
        return  # The plan for other machines says that it assumes flash-attn.
    value = f"{ATTENTION}={used}, and flash_attn is not installed" if asked else "flash_attn is not installed"
    rule = "the package of the attention is installed" if asked else f"verl loads models with {used} by default"
    if run.critics:
        sdpa, rule = "set another algorithm.adv_estimator", f"verl loads critics with {DEFAULT_ATTENTION} only"
    fix = f"{sdpa}, or install flash-attn: docs/start/gpu-quickstart.md has the command"
    yield unless_elsewhere(run.config, ConfigError(value, rule=rule, fix=fix))


def old_gpu() -> str:
    """The name of a GPU of this machine that is older than Ampere; empty if there is no such GPU."""
    import torch

    cards = range(torch.cuda.device_count())
    return next((torch.cuda.get_device_name(n) for n in cards if torch.cuda.get_device_capability(n) < (8, 0)), "")
