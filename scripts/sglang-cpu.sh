#!/bin/sh
# Creates a separate environment for tests with SGLang's own scheduler on the CPU: scripts/sglang-cpu.sh [VERSION] [FOLDER]
# Its kernels have no CPU build: tests/support/sglang_cpu takes their place. docs/train/gpu-engines.md says what that leaves out.
set -eu
cd "$(dirname "$0")/.."
VERSION=${1:-0.5.12}
VENV=${2:-.venv-sglang-cpu}

case $VERSION in
    # What verl pins, and the newest that verl can start.
    0.5.12 | 0.5.19) ;;
    *) echo "SGLang $VERSION: tested are 0.5.12 and 0.5.19" >&2; exit 1 ;;
esac

"${PYTHON:-python3}" -m venv "$VENV"
pip="$VENV/bin/python -m pip"
PIN="--quiet --constraint versions/constraints.txt"
$pip install --quiet --upgrade pip
# TORCH_INDEX selects the source of torch's CPU build.
$pip install $PIN torch ${TORCH_INDEX:-}
$pip install $PIN --editable '.[dev]'
"$VENV/bin/python" scripts/torchvision_on_cpu.py
$pip install --quiet --no-deps --requirement versions/sglang-cpu.txt "sglang==$VERSION"
# Its adapters are in pinned memory, which torch gives only beside a GPU.
find "$VENV"/lib/python3*/site-packages/sglang/srt/lora -name '*.py' \
    -exec sed -i 's/pin_memory=True/pin_memory=False/; s/\.pin_memory()//' {} +
