"""Let PyPI's torchvision be imported beside torch's CPU build: python scripts/torchvision_on_cpu.py

PyPI's build is linked against CUDA. Beside torch's CPU build its operators are not loaded, and the import fails where
it registers two of them ("operator torchvision::nms does not exist"). Processors of images use its transforms only, so
to declare the two is enough. torchvision's own CPU build, of https://download.pytorch.org/whl/cpu, needs none of this.
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
