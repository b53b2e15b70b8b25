# The only door for people and for CI. `make help` lists what is behind it.
VENV ?= .venv
PORT ?= 8000
GRPC_PORT ?= 50051
TORCH ?= torch==2.13.0
# Of the tests: one more than a small machine has cores, since end-to-end tests also wait.
WORKERS ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores < 4 ? cores + 1 : 4)))
BIN := $(VENV)/bin
PY := $(BIN)/python
export PYTHONPATH := .:proto:client
export TORCH

.DEFAULT_GOAL := help
.PHONY: help setup setup-small demo up test test-gpu check fmt lint types arch proto proto-check size
.PHONY: composition parity side-by-side decoders bench pareto bench-handoff bench-loading bench-guard bench-gpu bench-structured conformance overload fuzz company updates faults soak
.PHONY: wheel helm chart dashboards e2e-compose e2e-k8s e2e-trace clean

help: ## List the targets
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

setup: $(VENV)/.ready-test ## Make the virtual environment with everything in it

setup-small: $(VENV)/.ready ## Make it without what only some tests need (nixl, helm, other people's clients)

$(VENV)/.ready: pyproject.toml scripts/setup.sh scripts/install.sh scripts/dependencies.py
	@./scripts/setup.sh $(VENV)

$(VENV)/.ready-test: $(VENV)/.ready scripts/setup_tests.sh scripts/get_helm.py
	@./scripts/setup_tests.sh $(VENV)

demo: setup-small ## Start a small cluster, ask it a question, show the answer and where the time went
	@$(PY) -P -m cli demo --port $(PORT)

up: setup-small ## Start a local cluster and keep it running
	@$(PY) -P -m cli up --port $(PORT) --grpc-port $(GRPC_PORT)

test: setup ## All tests that need no GPU, in WORKERS processes (PYTEST="-k …" for more flags)
	@$(PY) -m pytest -m "not gpu" -n $(WORKERS) --dist loadfile --durations 25 $(PYTEST)

test-gpu: setup ## The tests that need a GPU; fails if there is none
	@REQUIRE_GPU=1 timeout 540 $(PY) -m pytest -m gpu tests/gpu

parity: setup ## Every configuration like transformers, a quarter of an hour; writes docs/parity.md
	@$(PY) -m tests.parity

side-by-side: setup ## The same requests to vLLM and to Baton, four minutes; writes docs/side_by_side.md (needs benchmarks/peers/install.sh vllm)
	@$(PY) -m tests.side_by_side $(SIDE)

decoders: setup ## Every causal model type of transformers, three minutes; writes docs/decoders.md
	@$(PY) -m tests.parity.decoders

composition: setup ## Every pair of features on real processes, ten minutes; writes docs/composition.md
	@BATON_COMPOSITION=full $(PY) -m pytest -n $(WORKERS) --maxprocesses 2 --dist load tests/composition && $(PY) -m tests.composition.page

fuzz: setup ## Over 100,000 cases of damaged and hostile input, on every surface, 20 minutes at most
	@BATON_FUZZ=full timeout 1200 $(PY) -m pytest -q --timeout 1100 tests/fuzz
	@BATON_FUZZ=full timeout 1200 $(PY) -m pytest -q --timeout 1100 -m hypothesis tests/unit

company: setup ## 1,000 plain answers beside every kind of neighbour, per engine and cluster
	@BATON_COMPANY=full $(PY) -m pytest -q --timeout 1100 tests/unit/engine/test_company.py tests/e2e/features/test_company.py

updates: setup ## Train for twenty steps while serving, each step's weights on all workers
	@BATON_UPDATES=20 $(PY) -m pytest -q --timeout 1100 tests/e2e/weights/test_weight_updates.py

check: lint types arch proto-check size ## What CI runs before the tests; never edits files

fmt: setup-small ## Format the code
	@$(BIN)/ruff check --fix-only . && $(BIN)/ruff format .

lint: setup-small ## Style and formatting
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: setup-small ## Types, strictly
	@$(BIN)/mypy $(wildcard kernels shared services cli client scripts benchmarks models) $(wildcard examples/*.py examples/offline/*.py)

arch: setup-small ## Who may import whom
	@$(BIN)/lint-imports

proto: setup-small ## Generate the stubs from proto/
	@$(PY) scripts/generate_stubs.py proto

proto-check: setup-small ## Fail if the committed stubs differ from proto/
	@$(PY) scripts/generate_stubs.py --check proto

dashboards: setup-small ## Write the Grafana dashboards
	@$(PY) -m scripts.dashboards

wheel: setup-small ## Build the distribution into dist/
	@PYTHONPATH= $(PY) -m pip wheel -q --no-build-isolation --no-deps --no-index --wheel-dir dist . && ls dist/baton-*.whl

size: setup-small ## Lines per folder; warn of long files, fail on long functions
	@$(PY) scripts/size.py

bench: setup ## Measure us beside vLLM, llama.cpp and transformers, 15 minutes (BENCH="--help" for options)
	@$(PY) -m benchmarks.peers run $(BENCH)

pareto: setup ## Elastic placement beside both fixed shapes, 20 minutes (PARETO=--full: hours; VLLM=--peers: vLLM, too); goes on where it was
	@$(PY) -m benchmarks.pareto run $(PARETO) $(VLLM)
	@$(PY) -m benchmarks.pareto simulate $(PARETO)
	@$(PY) -m benchmarks.pareto page $(PARETO)

bench-handoff: setup ## Measure prefill/decode against the in-process engine on this machine
	@$(PY) -m benchmarks.handoff

bench-loading: setup ## Seconds and memory of loading checkpoints of 2 GB, five formats, 10 GB of disk (LOADING="--help" for options)
	@$(PY) -m benchmarks.loading $(LOADING)

bench-gpu: setup ## Measure kernels, engine and hand-off on a GPU, in parts of under 9 minutes
	@for part in kernels engine handoff; do timeout 540 $(PY) -m benchmarks.gpu --part $$part; done

faults: setup ## Break a cluster in every way at every moment, an hour (FAULTS="--subset ci": a minute or two)
	@$(PY) -m benchmarks.faults run --out benchmarks/faults/results.json $(FAULTS); code=$$?; \
		$(PY) -m benchmarks.faults mutants && $(PY) -m benchmarks.faults page && exit $$code

soak: setup ## Thirty minutes of load with a random fault every 20 s (MINUTES=…)
	@$(PY) -m benchmarks.faults soak --minutes $(or $(MINUTES),30)

bench-guard: setup-small ## Fail if a hot path takes more instructions than at the merge base
	@$(PY) -m benchmarks.guard

bench-structured: setup ## Microseconds per mask of a grammar, tokens/s with and without (BENCH="--help" for options)
	@$(PY) -m benchmarks.structured cost $(BENCH)

conformance: setup ## 300 JSON Schemas x random weights: fail unless every finished answer is valid (CONFORMANCE=…)
	@$(PY) -m benchmarks.structured conformance $(CONFORMANCE)

overload: setup ## Offer up to three times what a cluster can serve, and grammar bombs, 17 minutes (OVERLOAD="--help" for options)
	@$(PY) -m benchmarks.overload run $(OVERLOAD) && $(PY) -m benchmarks.overload bombs && $(PY) -m benchmarks.overload page

helm: setup-small ## Put helm into the virtual environment, for the chart's tests, unless it is installed
	@command -v helm >/dev/null || $(PY) scripts/get_helm.py

chart: setup-small ## Bring the chart's schema up to date with the services' settings
	@$(PY) scripts/chart_schema.py

e2e-compose: setup ## Try compose.yaml on this machine's Docker, from nothing to nothing
	@$(PY) scripts/e2e_compose.py $(COMPOSE)

e2e-k8s: setup ## Install the chart on a real cluster, upgrade it under load, remove it (KUBECONFIG=…, K8S="--help" for options)
	@$(PY) scripts/e2e_k8s.py $(K8S)

e2e-trace: setup ## Read traces back from a real backend and add up their stages (TRACE="--help" for options)
	@$(PY) scripts/e2e_trace.py $(TRACE)

clean: ## Remove everything that can be made again
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .run
