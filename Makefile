# Two commands do everything on a machine that has only Python (3.11 to 3.13) and make:
#   make audit   installs what it needs into .venv and runs the main job
#   make test    installs what the tests need, then lint, types, import layers, doctests and tests
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

# Real data sets lie beside the project or wherever COALMINE_DATA says; without them their tests skip and say why.
ifneq ($(wildcard ../shared/data/README.md),)
export COALMINE_DATA ?= $(abspath ../shared/data)
endif
SECONDS ?= 3600
# One torch or BLAS thread a process: two threads in each of two processes lose to one in each.
export OMP_NUM_THREADS = 1

.PHONY: help audit test lint types layers tests docs dist test-dist test-minimal test-newest test-gpu ray bench coverage libraries fuzz soak format clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.audit: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) torch==2.13.0
	$(PIP) --editable '.[train,fast,report]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) torch==2.13.0
	$(PIP) --editable '.[test]'
	@touch $@ $(VENV)/.audit

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) torch==2.13.0
	$(PIP) --editable '.[docs]'
	@touch $@ $(VENV)/.audit

audit: $(VENV)/.audit ## Audit DP-SGD on the built-in example; the report goes to build/audit.html
	@mkdir -p build
	$(BIN)/coalmine audit --store build/audit.db --report build/audit.html

test: lint types layers tests ## Lint, types, import layers, doctests and tests

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

layers: $(VENV)/.test
	$(BIN)/lint-imports

tests: $(VENV)/.test
	$(BIN)/pytest -n 2 --dist worksteal

dist: $(VENV)/.test ## Build the wheel and the sdist into dist/
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

test-dist: dist ## Install what was built into an empty environment without torch, and use it as a newcomer
	COALMINE_DIST=dist $(BIN)/pytest -q tests/packaging

# What meets every dependency, in a few minutes: mathematics, store, own functions, audits, evidence, pages, commands.
SOME_TESTS := $(wildcard tests/test_[bcrsv]*.py) tests/test_without_torch.py tests/store tests/evidence tests/audit/test_audit_whole.py \
  tests/view/test_view_pages.py tests/cli/test_account.py tests/cli/test_tables.py
# Warnings of other versions are not ours to mend.
# A conftest is no page of doctests: two of them, named on one command line, would be taken for one module.
SOME := -m pytest -q -p no:cacheprovider --ignore-glob='*/conftest.py' -W ignore::DeprecationWarning -W ignore::FutureWarning $(SOME_TESTS)
TESTED := '.[train,fast,report,view]' httpx httpx2 hypothesis mpmath pandas pytest

test-minimal: ## Test the oldest versions of the dependencies (constraints-minimal.txt) in an environment of their own
	$(PYTHON) -m venv build/minimal
	build/minimal/bin/python -m pip --disable-pip-version-check install --quiet -c constraints-minimal.txt torch==2.13.0 --editable $(TESTED)
	build/minimal/bin/python $(SOME)

test-newest: ## Test the newest versions of the dependencies, whatever constraints.txt says; torch stays
	$(PYTHON) -m venv build/newest
	build/newest/bin/python -m pip --disable-pip-version-check install --quiet --upgrade torch==2.13.0 --editable $(TESTED)
	build/newest/bin/python $(SOME)

docs: $(VENV)/.docs ## Build the book: build/docs/index.html; every warning is an error
	$(BIN)/sphinx-build -q -n -W --keep-going -d build/docs-trees docs build/docs

# On a machine with a CUDA GPU, with the Python that has torch's GPU build; elsewhere every one of these tests skips.
GPU_PYTHON ?= $(BIN)/python
GPU_WORKERS ?= auto
test-gpu: ## Run every test that needs a CUDA GPU, with GPU_PYTHON=python3 by another Python than the project's own
	PYTHONPATH="src$${PYTHONPATH:+:$$PYTHONPATH}" $(GPU_PYTHON) -m pytest -q -p no:cacheprovider -p no:benchmark -n $(GPU_WORKERS) --dist worksteal \
	  tests/training tests/adversaries/test_adversaries_cuda.py -k "cuda or fused or stages or draws"

ray: $(VENV)/.test ## Test the Ray engine on a cluster of two nodes on this machine, some of which are killed
	COALMINE_RAY=1 $(BIN)/pytest tests/game/test_game_ray.py

bench: $(VENV)/.test ## Run every benchmark, print ratios, write build/bench.json
	$(BIN)/python -m benchmarks

coverage: $(VENV)/.test ## Measure the miss rate of every lower bound, rewrite docs/coverage.md
	$(BIN)/python -m coalmine.bounds.coverage --output docs/coverage.md
	$(BIN)/python -m coalmine.one_run.coverage --append docs/coverage.md

libraries: ## Audit released libraries, each in its own environment (LIBRARY=opacus: one of them), rewrite docs/studies/libraries.md
	$(PYTHON) studies/libraries/run.py $(LIBRARY)

fuzz: $(VENV)/.test ## Throw 10,000 generated bad inputs at every command, the config and the Python functions
	$(BIN)/python tests/fuzz/fuzz_run.py --inputs 10000 --output build/fuzz.jsonl

soak: $(VENV)/.test ## An hour (SECONDS=3600) of trainings that fail, hang, fork, print and end, with kills between
	PYTHONPATH=src $(BIN)/python tests/soak/soak.py --seconds $(SECONDS) --output build/soak.jsonl

format: $(VENV)/.test ## Let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the virtual environment and everything built
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
