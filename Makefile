# The only door for people and for CI. `make help` lists what is behind it.
VENV ?= .venv
PORT ?= 8000
BIN := $(VENV)/bin
PY := $(BIN)/python
export PYTHONPATH := .:proto

.DEFAULT_GOAL := help
.PHONY: help setup demo test check up fmt lint types arch proto proto-check bench clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

setup: $(VENV)/.ready ## Make the virtual environment with everything in it

$(VENV)/.ready: pyproject.toml
	@./scripts/setup.sh $(VENV)

demo: setup ## Start a small cluster, ask it a question, show the answer and where the time went
	@$(PY) -m cli demo --port $(PORT)

up: setup ## Start a local cluster and keep it running
	@$(PY) -m cli up --port $(PORT)

test: setup ## All tests that need no GPU
	@$(PY) -m pytest -m "not gpu"

check: lint types arch proto-check ## What CI runs before the tests; never edits files

fmt: setup ## Format the code
	@$(BIN)/ruff check --fix-only . && $(BIN)/ruff format .

lint: setup
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: setup
	@$(BIN)/mypy

arch: setup
	@$(BIN)/lint-imports

proto: setup ## Generate the stubs from proto/
	@$(PY) scripts/generate_stubs.py proto

proto-check: setup
	@$(PY) scripts/generate_stubs.py --check proto

bench: setup ## Measure prefill/decode against the in-process engine on this machine
	@$(PY) -m benchmarks.handoff

clean: ## Remove everything that can be made again
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .run
