"""Every module can be the first one that is imported: verl's imports call our hooks, which import modules of ours."""

import subprocess
import sys
from pathlib import Path

import pytest

import verl_mas

ROOT = Path(verl_mas.__file__).parents[1]
# The extension of vLLM and the program of verifiers run in environments of their own; `hand_over` is a script.
ELSEWHERE = ("vllm_", "verifiers_program", "__main__", "hand_over")
# Import each module in a fork of a process that has imported nothing of verl.
EVERY_ONE = """
import os, sys
import hydra, ray, tensordict, torch, transformers
failed = []
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        __import__(name)
        os._exit(0)
    failed += [name] * bool(os.waitpid(child, 0)[1])
sys.exit(", ".join(failed) or None)
"""


@pytest.mark.nightly
def test_any_module_can_be_imported_first():
    files = [file.relative_to(ROOT).with_suffix("") for file in (ROOT / "verl_mas").rglob("*.py")]
    names = {".".join(file.parts).removesuffix(".__init__") for file in files}
    names = sorted(name for name in names if not any(other in name for other in ELSEWHERE))
    command = [sys.executable, "-W", "ignore", "-c", EVERY_ONE, *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
