"""Check whether verl's vLLM engine can run on the CPU in this environment, without importing its packages.

The command `python -m verl_mas_vllm_cpu.readiness` prints what is missing or wrong; its exit code is then 1.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from verl_mas.util import installed_version

TESTED = ("0.24.0", "0.30.0")  # verl pins the first version
# PyPI's CUDA builds of these packages break the import of transformers and vLLM.
HARMFUL = ("torchvision", "torchaudio", "torchcodec")


def readiness() -> list[str]:
    """Return the problems in the order in which to fix them. The list is empty if the engine can run."""
    engine = installed_version("vllm-cpu")
    if engine is None:
        return ["vllm-cpu is not installed"]
    problems = []
    if engine not in TESTED:
        problems.append(f"vllm-cpu is {engine}; tested are {' and '.join(TESTED)}")
    if (name := installed_version("vllm")) != f"{engine}+cpu":
        seen = f"is {name}" if name else "is not installed"
        problems.append(f"distribution `vllm` {seen}; verl and vLLM look for one of version {engine}+cpu")
    if cuda_builds := [name for name in HARMFUL if _needs_cuda(name)]:
        problems.append(f"{', '.join(cuda_builds)}: built for CUDA, vLLM fails when it imports them")
    if find_spec("vllm") is None:
        problems.append("package `vllm` is not importable")
    return problems


def _needs_cuda(package: str) -> bool:
    version = installed_version(package)
    return version is not None and "+cpu" not in version


def main() -> int:
    problems = readiness()
    sys.stdout.write("\n".join(problems or ["rollout.name=vllm is ready for +platform=cpu"]) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
