"""Findings about this machine and its installation. Each function yields findings and starts nothing heavy."""

import asyncio
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from shutil import which
from sysconfig import get_path

from packaging.requirements import Requirement

from verl_mas.checks.machine import INSTALL, PLUGIN, import_error, nvcc, requirements
from verl_mas.config.registry import installed
from verl_mas.engines.facts import ENGINES
from verl_mas.engines.platform import DEVICE as CPU
from verl_mas.environment.execution.contained.probes import PROBES, got_through, not_contained
from verl_mas.environment.execution.contained.sealed import YES
from verl_mas.environment.execution.executor import Execution
from verl_mas.environment.execution.executors.contained import Contained
from verl_mas.errors import ConfigError, ConfigWarning, ExecutorFailed
from verl_mas.util import installed_version
from verl_mas.verl_ import VERSION

# The packages whose versions decide whether verl runs; pip checks the others.
SHOWN = ("verl", "TransferQueue", "torch", "transformers", "ray", "tensordict", "numpy")


@dataclass(frozen=True)
class Aspect:
    """One finding about this machine. If `ok` is None, the finding is information and not a problem."""

    what: str
    seen: str
    ok: bool | None = True
    fix: str = ""


def diagnose(thorough: bool = True, gpu: bool = False) -> Iterator[Aspect]:
    """Yield all findings. `thorough`: test the sandbox, too. `gpu`: check the tools that a machine with GPUs needs,
    even if this machine has no GPU."""
    yield Aspect("verl-mas", version("verl-mas"))
    yield Aspect("python", sys.version.split()[0])
    # Collect requirements by name, so that verl's requirement replaces ours, which allows any version.
    by_name = {requirement.name: requirement for requirement in [*requirements("verl-mas"), *requirements("verl")]}
    yield from (look_at_package(by_name.get(name, Requirement(name))) for name in SHOWN)
    if version("verl") != VERSION:
        seen = f"verl-mas is tested with verl {VERSION}"
        yield Aspect("verl's internals", seen, None, f"pip install verl=={VERSION}")
    yield from look_at_plugin()
    yield from look_at_machine()
    yield from look_at_engines()
    if gpu or _gpus():
        yield from look_at_gpu_tools()
    if thorough:
        yield from look_at_sandbox()


def problems(findings: Iterable[Aspect]) -> Iterator[ConfigWarning]:
    """Convert findings to warnings. They are not errors, because this machine is at fault and not the configuration."""
    for finding in findings:
        # A version of verl outside the range is an error of `check_versions`.
        if finding.ok is False and finding.what != "verl":
            yield ConfigWarning(f"{finding.what}: {finding.seen}", "verl-mas is not tested with it", finding.fix)


def look_at_package(requirement: Requirement) -> Aspect:
    """Check that a package is installed in a required version."""
    fix = f"pip install '{requirement}'"
    found = installed_version(requirement.name)
    if found is None:
        return Aspect(requirement.name, "not installed", False, fix)
    if not requirement.specifier.contains(found, prereleases=True):
        return Aspect(requirement.name, f"{found}, outside {requirement.specifier}", False, fix)
    return Aspect(requirement.name, found)


def look_at_plugin() -> Iterator[Aspect]:
    """Check the plugin, and report its import error, which verl hides."""
    ours = [entry for entry in installed("verl.plugins") if entry.value == PLUGIN]
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip()
    if len(ours) != 1:
        seen = "verl's entry point is missing" if not ours else f"installed {len(ours)} times"
        yield Aspect("plugin", seen, False, "run pip uninstall verl-mas until no copy is left, then install it once")
    elif policy != "auto" and ours[0].name not in policy.split(","):
        seen = f"turned off by VERL_USE_EXTERNAL_PLUGINS={policy}"
        yield Aspect("plugin", seen, False, "unset VERL_USE_EXTERNAL_PLUGINS")
    elif error := import_error():
        yield Aspect("plugin", f"verl could not load it: {error}", False, "correct this error")
    else:
        yield Aspect("plugin", "verl loads it")


def look_at_machine() -> Iterator[Aspect]:
    if gpus := _gpus():
        yield Aspect("GPUs", f"{len(gpus)}: {', '.join(sorted(set(gpus)))}")
    else:
        cpu = os.environ.get("VERL_PLATFORM", "") == "cpu"
        yield Aspect("GPUs", "none", None, "" if cpu else "add +platform=cpu to run on the CPU")
    yield Aspect("cores", str(os.cpu_count()))


def _gpus() -> list[str]:
    """Return the names of the GPUs. A CPU build of torch finds no GPU, so it is not imported, which saves a second."""
    if (installed_version("torch") or "").endswith("+cpu"):
        return []
    import torch

    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def look_at_gpu_tools() -> Iterator[Aspect]:
    """Check the tools that engines and training on a GPU need besides their packages. Only some runs need the last
    three."""
    header, python = Path(get_path("include"), "Python.h"), f"python{sys.version_info[0]}.{sys.version_info[1]}"
    compiler, headers = os.environ.get("CC") or which("gcc") or which("clang"), header.is_file() and str(header)
    page = "docs/start/gpu-quickstart.md"
    for what, found, missing_is, fix in (
        # Triton compiles a launcher for each kernel. torch.compile uses Triton, so it needs the compiler, too.
        ("C compiler", compiler, False, "apt-get install gcc"),
        ("Python headers", headers, False, f"apt-get install {python}-dev"),
        ("nvcc", nvcc(), None, f"{INSTALL}, for engines that compile kernels: {page}"),
        ("cupy", installed_version("cupy-cuda13x"), None, "pip install cupy-cuda13x==14.0.1, for engines apart"),
        ("flash-attn", installed_version("flash-attn"), None, f"{page}: its wheel is for torch 2.11"),
    ):
        yield Aspect(what, found) if found else Aspect(what, "not found", missing_is, fix)


def look_at_engines() -> Iterator[Aspect]:
    for name in ENGINES:
        if (module := ENGINES[name].package) is None:
            continue
        found = installed_version(module)
        known = ENGINES[name].contract if found else None
        usable = found is not None and not (known and known.unstartable)
        seen = f"{found}: {known.standing}" if known else found or "not installed"
        yield Aspect(f"engine {name}", seen, usable or None)
        if (ready := ENGINES[name].check_ready) and not _gpus():
            try:
                ready(CPU)
            except ConfigError as error:
                yield Aspect(f"engine {name} (CPU)", error.value, None, error.fix)
            else:
                yield Aspect(f"engine {name} (CPU)", "ready")


def look_at_sandbox() -> Iterator[Aspect]:
    """Check the sandbox for model-written programs. A missing sandbox is not a problem, because only teams that run
    programs need it."""
    try:
        layers, found = asyncio.run(_try_out_sandbox())
    except (ConfigError, ExecutorFailed) as error:
        # The error names what is missing, and a fix.
        seen, fix = (error.value, error.fix) if isinstance(error, ConfigError) else (str(error), "")
        yield Aspect("sandbox", seen, None, fix)
        return
    for name, active in layers.items():
        yield Aspect(f"sandbox, {name}", "active" if active == YES else active, active == YES or None)
    held, refusal = f"{len(PROBES) - len(found)} of {len(PROBES)} probes held", not_contained(found)
    yield Aspect("sandbox", f"{held}; {refusal.value}" if found else held, not found, refusal.fix if found else "")


async def _try_out_sandbox() -> tuple[dict[str, str], list[str]]:
    async with aclosing(Contained(Execution())) as executor:
        return await executor.layers(), await got_through(executor)
