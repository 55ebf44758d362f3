# Every target makes and uses .venv at the root; see `make help`.
PY ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# In CI a test that failed is run once more, and the summary names it ("R", rerun): a fault of the code fails twice.
# Short traces leave room for what the tests say of a cluster.
RERUNS := $(if $(CI),--reruns 1 --reruns-delay 5 -rRfE --tb=short,)
PYTEST := $(BIN)/python -m pytest $(RERUNS)

.DEFAULT_GOAL := help
.PHONY: help install lock demo demo-rollout demo-down test test-fast test-router-compiled e2e lint format crds router-compiled bench gpu-check gpu-pack soak

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-21s %s\n", $$1, $$2}'

$(STAMP): requirements/dev.txt requirements/uv.txt pyproject.toml
	@echo "==> installing Python dependencies into $(VENV) (several GB the first time: torch)"
	test -x $(BIN)/python || $(PY) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/uv.txt
	$(BIN)/uv pip sync --require-hashes --python $(BIN)/python requirements/dev.txt requirements/uv.txt
	$(BIN)/uv pip install --quiet --no-deps --no-build-isolation --python $(BIN)/python -e .
	@touch $@

install: $(STAMP) ## make .venv with all dependencies

LOCK = $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11
lock: ## resolve requirements/*.txt anew (hashes, no addresses)
	$(LOCK) pyproject.toml --extra dev -o requirements/dev.txt
	echo uv | $(LOCK) - -o requirements/uv.txt
	for c in runtime operator shadow; do $(LOCK) pyproject.toml --extra $$c -c requirements/dev.txt -o requirements/$$c.txt; done
	$(LOCK) pyproject.toml --extra epp -c requirements/dev.txt -o requirements/router.txt

demo: $(STAMP) ## from nothing to a streamed chat answer on this machine
	$(BIN)/python -m paceline_cli demo up

demo-rollout: $(STAMP) ## a good, a slow and a wrong version rolled out by steps under requests (25 minutes)
	$(BIN)/python -m paceline_cli demo rollout

demo-down: $(STAMP) ## stop the demo and delete its state
	$(BIN)/python -m paceline_cli demo down

lint: $(STAMP) ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

crds: $(STAMP) ## write crds/*.yaml, the chart's copy, the page of metrics, alerts and boards
	$(BIN)/python -m paceline_crds --write .
	$(BIN)/python -m paceline_observability --write .
	$(BIN)/python -m paceline_observability.alerts --write .
	$(BIN)/python -m paceline_observability.dashboards --write .

test-fast: $(STAMP) ## units only: no cluster, no model
	$(PYTEST) -m "not cluster and not model and not long" tests

.PHONY: built
built: $(STAMP)
	$(BIN)/python -m paceline_local build --prometheus

test: built ## units, integration and the short end-to-end test
	$(PYTEST) -m "not long" --durations=15

router-compiled: $(STAMP) ## the router's hot path as machine code, in build/router (needs a C compiler)
	$(BIN)/python router/compile.py build/router

test-router-compiled: $(STAMP) ## the router's tests on such a build, made without optimisation
	MYPYC_OPT_LEVEL=0 $(BIN)/python router/compile.py build/router-test
	PYTHONPATH=build/router-test PACELINE_ROUTER_BUILD=compiled $(PYTEST) -m "not cluster and not model and not long" tests/router

e2e: $(STAMP) ## the long end-to-end chain on a real API server
	$(BIN)/python -m paceline_local build --prometheus --alertmanager
	$(PYTEST) -m "long" --durations=15 e2e

bench: router-compiled ## engine, server, scheduler and router, side by side with the peers that are installed
	$(BIN)/python -m paceline_bench engine --out results/engine
	$(BIN)/python -m paceline_bench scheduling --out results/scheduling
	$(BIN)/python -m paceline_bench preemption --out results/preemption
	$(BIN)/python -m paceline_bench router --out results/router
	$(BIN)/python -m paceline_bench router-loss --out results/router-loss
	$(BIN)/python -m paceline_bench router-tenants --settings slots,queue --out results/router-tenants

gpu-check: $(STAMP) ## the engine on a GPU: is it right there, how fast; without one a dry run
	PYTHON=$(BIN)/python bench/gpu-check.sh results/gpu

gpu-pack: $(STAMP) ## wheels for bench/gpu-check.sh on a machine without a network, into .whl
	$(BIN)/python -m paceline_bench.gpu.pack .whl

soak: $(STAMP) ## one replica under mixed load for 30 minutes, and under 20,000 short requests
	$(BIN)/python -m paceline_bench soak --minutes 30 --out results/soak
	$(BIN)/python -m paceline_bench soak --requests 20000 --out results/soak-requests
