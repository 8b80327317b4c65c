# Start with `make demo` and `make test`. Each target does its own set-up.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
# Half of the tests' time is waiting. More workers are not faster: each starts a Python interpreter.
WORKERS ?= -n logical --maxprocesses 4 --dist worksteal
# Three quarters of the end-to-end tests' time is waiting, so four workers run even on few cores. More are not faster:
# each starts a control plane of 700 MiB.
WAITERS ?= -n 4 --dist worksteal

.PHONY: demo test e2e manifests check bench bench-scheduler bench-planner campaign docs lock clean

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "gputopo needs Python 3.11 or newer; none is on PATH. Install it, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The base install. The file contains the seconds that the first install took; it is empty if extras were part of it.
$(VENV)/.run: pyproject.toml | $(BIN)/python
	begun=$$(date +%s); $(BIN)/python -m pip install --quiet --disable-pip-version-check -e . && \
	if [ -e $@ ]; then touch $@; else echo $$(($$(date +%s) - begun)) > $@; fi

$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@ $(VENV)/.run

$(VENV)/.e2e: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,e2e]'
	@touch $@ $(VENV)/.test $(VENV)/.run

$(VENV)/.manifests: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,manifests]'
	@touch $@ $(VENV)/.test $(VENV)/.run

$(VENV)/.check: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,check]'
	@touch $@ $(VENV)/.e2e $(VENV)/.test $(VENV)/.run

demo: $(VENV)/.run
	$(BIN)/python bench/install_size.py $(VENV)/.run
	GPUTOPO=$(BIN)/gputopo scripts/demo

test: $(VENV)/.test
	$(BIN)/python -m pytest $(WORKERS)

# Against a real control plane, built once (7 minutes on 2 cores): docs/testing.md.
e2e: $(VENV)/.e2e
	$(BIN)/python -m tests.e2e.binaries
	$(BIN)/python -m pytest $(WAITERS) -m e2e tests/e2e

# Manifests, chart, image and alerts, with helm, kubectl and promtool; `make test` skips these tests without them.
manifests: $(VENV)/.manifests
	PYTHON=$(BIN)/python scripts/tools
	IMAGE_STEPS=1 $(BIN)/python -m pytest -rs tests/daemonset

check: $(VENV)/.check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check
	$(BIN)/python -m daemonset.copies --check

docs: $(VENV)/.test
	$(BIN)/python docs/generate.py
	$(BIN)/python -m daemonset.copies

# The image's dependencies, pinned by hash, after a change of pyproject.toml or for newer versions.
lock: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.8
	cd daemonset && ../$(BIN)/python -m uv pip compile --quiet --upgrade --universal --python-version 3.11 --extra all \
		--generate-hashes --custom-compile-command 'make lock' -o requirements.lock ../pyproject.toml

# Ratios measured in one run; see the docstring of each file.
bench: $(VENV)/.test
	$(BIN)/python bench/start_up.py
	$(BIN)/python bench/discovery.py
	$(BIN)/python bench/nvml_calls.py
	PYTHONPATH=. $(BIN)/python bench/evaluate.py
	PYTHONPATH=. $(BIN)/python bench/extender_http.py
	PYTHONPATH=. $(BIN)/python bench/watch.py
	PYTHONPATH=. $(BIN)/python bench/why.py
	PYTHONPATH=. $(BIN)/python bench/planner_pure.py
	PYTHONPATH=. $(BIN)/python bench/planner_loop.py
	$(BIN)/python bench/agent_costs.py

# A real kube-scheduler with and without the extender: 20 minutes, by hand (docs/scheduler-performance.md).
bench-scheduler: $(VENV)/.e2e
	PYTHONPATH=. $(BIN)/python bench/scheduler.py

# The same with the planner: planned pods and small gangs; 15 minutes, by hand (docs/gangs-performance.md).
bench-planner: $(VENV)/.e2e
	PYTHONPATH=. $(BIN)/python bench/planner_cluster.py

# Hostile values in every field that a tenant may write; the table of docs/testing.md, in 40 minutes.
campaign: $(VENV)/.test
	$(BIN)/python -m tests.campaign.attacks

clean:
	rm -rf $(VENV)
