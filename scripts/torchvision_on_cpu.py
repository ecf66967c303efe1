"""Make PyPI's torchvision importable with torch's CPU build: `python scripts/torchvision_on_cpu.py`.

PyPI's torchvision is linked against CUDA. With torch's CPU build, its compiled operators are not loaded, so its import
fails at the registration of two operators ("operator torchvision::nms does not exist"). Image processors only use
torchvision's transforms, so this script declares the two operators and does not implement them. torchvision's own CPU
build, from https://download.pytorch.org/whl/cpu, does not need this script.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

IMPORT = "import torch\n"
DECLARED = """
if torch.version.cuda is None:  # scripts/torchvision_on_cpu.py of verl-mas
    for _name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""

if __name__ == "__main__":
    found = find_spec("torchvision")
    assert found is not None and found.origin is not None, "torchvision is not installed"
    file = Path(found.origin)
    text = file.read_text()
    if DECLARED not in text and "+cu" in (file.parent / "version.py").read_text():
        file.write_text(text.replace(IMPORT, IMPORT + DECLARED, 1))
