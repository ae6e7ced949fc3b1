# Everything that a contributor runs. `make` alone lists the targets.

PYTHON ?= python3
STORE ?= sqlite
QUICK ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
LOCK := requirements/dev.txt
LOCK_VENV := .cache/lock
UV_VERSION := 0.13.7

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# pyright comes from the lock; it need not ask the network whether there is a newer one.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
# The stages of `test` and `check` are in an order on purpose: what fails fastest runs first.
.NOTPARALLEL:
.DELETE_ON_ERROR:

.PHONY: help
help: ## list the targets
	@echo "usage: make TARGET"
	@echo
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "variables: PYTHON=$(PYTHON)  ARGS= (more pytest arguments)  STORE=$(STORE) QUICK= (bench)"

# --- environment ---------------------------------------------------------------------------------

.PHONY: setup
setup: $(INSTALLED) ## make .venv from the hashed lock (does nothing when it is current)

$(INSTALLED): $(LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Outlast needs Python 3.11 or newer; try: make setup PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r $(LOCK)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: lock
lock: ## compile requirements/dev.txt again, after an edit of the dependencies (UPGRADE=1: to the newest)
	test -x $(LOCK_VENV)/bin/uv || $(PYTHON) -m venv $(LOCK_VENV)
	$(LOCK_VENV)/bin/python -m pip install --quiet uv==$(UV_VERSION)
	$(LOCK_VENV)/bin/uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 \
		--all-extras --group dev $(if $(UPGRADE),--upgrade) --output-file $(LOCK) pyproject.toml

.PHONY: clean
clean: ## remove the environment, caches and build output
	rm -rf $(VENV) .cache .hypothesis build dist
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

# --- tests ---------------------------------------------------------------------------------------

# Files of tests are in memory where the system has such a place, with room: on a disk, half of a test's time is waiting
# for it. Nothing here cuts the power; what a store waits for is seen by its calls (test_waiting_for_the_disk.py).
export PYTEST_DEBUG_TEMPROOT ?= $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 { print "/dev/shm" }')

# Tests wait more than they compute: one more than there are cores.
PARALLEL ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

.PHONY: test
test: test-machine test-fast test-slow ## all tests: the machine at full coverage, then fast, then slow ones

.PHONY: test-machine
test-machine: setup ## the machine's unit tests, which must cover every one of its branches
	@mkdir -p .cache/coverage
	$(BIN)/coverage run -m pytest tests/unit/machine $(ARGS)
	$(BIN)/coverage report

.PHONY: test-fast
test-fast: setup ## unit, property, conformance and tidy tests
	$(BIN)/pytest -m "not slow and not system" --ignore=tests/unit/machine --numprocesses=$(PARALLEL) $(ARGS)

.PHONY: test-slow
test-slow: setup ## tests marked slow (crashes, processes, races), in parallel
	$(BIN)/pytest -m "slow and not system" --numprocesses=$(PARALLEL) --dist=loadgroup $(ARGS)

.PHONY: test-system
test-system: setup test-oldest test-cluster ## tests that need root, mounts or Debian's packages (Linux); a missing part fails
	$(BIN)/pytest -m system $(ARGS)

# What the documentation promises to work on, and pip does not bring.
SUITES := -m "not slow and not system" --numprocesses=$(PARALLEL) tests/conformance tests/acceptance

.PHONY: test-oldest
test-oldest: setup ## the suites on the oldest servers: Redis 7.0 and PostgreSQL 15, as Debian 12 has them
	OUTLAST_TEST_VALKEY=redis-server $(BIN)/pytest $(SUITES) -k "valkey or cluster" $(ARGS)
	OUTLAST_TEST_VALKEY=redis-server $(BIN)/pytest --numprocesses=$(PARALLEL) tests/conformance/test_valkey_cluster.py $(ARGS)
	OUTLAST_TEST_POSTGRES_VERSION=15 $(BIN)/pytest $(SUITES) -k postgres $(ARGS)

.PHONY: test-cluster
test-cluster: setup ## all acceptance tests on a Valkey cluster; the other stages run there what is most likely to differ
	OUTLAST_TEST_CLUSTER=1 $(BIN)/pytest -m "not system" tests/acceptance -k cluster $(ARGS)

.PHONY: test-full
test-full: setup ## what `make test` does small: flows of ten thousand, two thousand executions under chaos; five minutes
	OUTLAST_TEST_FLOWS=full $(BIN)/pytest -s -m "not system" tests/acceptance/test_flow_scale.py $(ARGS)
	OUTLAST_TEST_CHAOS=full $(BIN)/pytest -s -m "not system" tests/faults/test_chaos.py $(ARGS)

.PHONY: check-mutants
check-mutants: setup ## break rules of the engine one by one; the tests must notice each
	$(BIN)/python tests/mutants/run.py

# --- static checks -------------------------------------------------------------------------------

.PHONY: check
check: setup ## format, lint, types, import rules, tidy tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports --cache-dir .cache/import_linter
	$(BIN)/pytest tests/tidy

.PHONY: format
format: setup ## format the code and apply safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# --- running -------------------------------------------------------------------------------------

.PHONY: demo
demo: setup ## orders on two worker processes, one of them killed in the middle (examples/demo.py)
	$(BIN)/python -m examples.demo

.PHONY: bench
bench: setup ## benchmarks of STORE (sqlite, postgres, valkey) beside its peers, QUICK=1 for a minute without peers
	$(BIN)/python -m benchmarks --store $(STORE) $(if $(QUICK),--quick) $(ARGS)

.PHONY: bench-publish
bench-publish: setup ## a whole run of STORE's benchmarks, put on the page docs/benchmarks.md with its plots
	$(BIN)/python -m benchmarks --store $(STORE) --publish

.PHONY: docs
docs: setup ## regenerate the generated pages and check every link
	$(BIN)/python -m outlast.machine.diagram docs/state-machine.md
	$(BIN)/python -m benchmarks.page
	$(BIN)/python -m outlast.reconcilers.page docs/workers.md
	$(BIN)/pytest tests/tidy/test_docs.py
