# Start with `make demo` and `make test`; `make help` lists all targets. Each target does its own set-up.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
# Half of the tests' time is waiting. More workers are not faster: each starts a Python interpreter.
WORKERS ?= -n logical --maxprocesses 4 --dist worksteal
# Three quarters of the end-to-end tests' time is waiting, so four workers run even on few cores. More are not faster:
# each starts a control plane of 700 MiB.
WAITERS ?= -n 4 --dist worksteal

.PHONY: help demo test mutants browser e2e dashboards manifests check bench bench-scheduler bench-planner bench-preemption bench-scale bench-filter soak campaign attacks chaos docs install-man site screenshots lock digests release dist image clean

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "gputopo needs Python 3.11 or newer; none is on PATH. Install it, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The base install. The file contains the seconds that the first install took; it is empty if extras were part of it.
$(VENV)/.run: pyproject.toml | $(BIN)/python
	begun=$$(date +%s); $(BIN)/python -m pip install --quiet --disable-pip-version-check -e . && \
	if [ -e $@ ]; then touch $@; else echo $$(($$(date +%s) - begun)) > $@; fi

# Everything below runs with locked versions, held to their hashes; `make lock` renews them. test.lock is part of
# check.lock.
define install_locked
$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: --no-deps -r $(1)
$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-build-isolation -e .
endef

$(VENV)/.test: pyproject.toml locks/test.lock | $(BIN)/python
	$(call install_locked,locks/test.lock)
	@touch $@ $(VENV)/.run

$(VENV)/.check: pyproject.toml locks/check.lock | $(BIN)/python
	$(call install_locked,locks/check.lock)
	@touch $@ $(VENV)/.test $(VENV)/.run

help:  ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*  ## \(.*\)/\1#\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'#' '{printf "%-18s %s\n", $$1, $$2}'

demo: $(VENV)/.run  ## the main workflow on example machines, in half a minute; no GPU and no cluster needed
	$(BIN)/python bench/install_size.py $(VENV)/.run
	GPUTOPO=$(BIN)/gputopo scripts/demo

test: $(VENV)/.test  ## all tests that need no cluster, in about ten minutes
	$(BIN)/python -m pytest $(WORKERS)

# Every mutant of every input format: docs/testing.md.
mutants: $(VENV)/.test  ## every mutant of every input format
	$(BIN)/python -m tests.mutants

# Playwright's Chromium and the libraries that it needs (with sudo), for the browser tests of `make e2e` and for
# `make screenshots`. The version is pinned: it belongs to the version of Playwright in locks/test.lock.
browser: $(VENV)/.test  ## install Chromium for the browser tests
	$(BIN)/python -m playwright install --with-deps chromium

# Against a real control plane, built once (7 minutes on 2 cores): docs/testing.md.
e2e: $(VENV)/.test  ## end-to-end tests on a real control plane, which is built once
	$(BIN)/python -m tests.e2e.binaries
	$(BIN)/python -m pytest $(WAITERS) -m e2e tests/e2e

# A real Prometheus scrapes all programs on a control plane, and answers every query of the dashboards.
dashboards: $(VENV)/.test  ## a real Prometheus answers every query of the dashboards
	$(BIN)/python -m tests.e2e.binaries
	PYTHON=$(BIN)/python scripts/tools
	$(BIN)/python -m pytest -n 2 -m e2e tests/e2e/daemonset/test_dashboards.py

# Manifests, chart, image and alerts, with helm, kubectl and promtool; `make test` skips these tests without them.
manifests: $(VENV)/.check  ## tests of manifests, chart, image and alerts, with helm, kubectl and promtool
	PYTHON=$(BIN)/python scripts/tools
	IMAGE_STEPS=1 $(BIN)/python -m pytest -rs tests/daemonset

check: $(VENV)/.check  ## formatting, lint, types, import contracts, generated pages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check
	$(BIN)/python -m daemonset.copies --check

docs: $(VENV)/.test  ## rewrite the generated pages and manifests
	$(BIN)/python docs/generate.py
	$(BIN)/python -m daemonset.copies

# The manual pages, for `man gputopo`; the wheel installs them too.
PREFIX ?= /usr/local
install-man:  ## install the manual pages; PREFIX=/usr/local
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 docs/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1

# The documentation as a static site, in build/site; fails on a broken link. In an environment of its own.
site: build/site-venv/.installed  ## the documentation as a static site, in build/site
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 build/site-venv/bin/python docs/build_site.py build/site

build/site-venv/.installed: locks/site.lock
	@test -n "$(PYTHON)" || { echo "gputopo needs Python 3.11 or newer; none is on PATH"; exit 1; }
	$(PYTHON) -m venv build/site-venv
	build/site-venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: \
		--no-deps -r locks/site.lock
	@touch $@

# The pictures of `gputopo ui`; needs a Chromium.
screenshots: $(VENV)/.check  ## the pictures of gputopo ui; needs Chromium
	PYTHONPATH=. $(BIN)/python docs/screenshots.py

# All versions and hashes: of the image, of what builds it, of the tests and of the tools. After a change of
# pyproject.toml; for newer versions: make lock UPGRADE=--upgrade.
UPGRADE ?=
COMPILE = $(BIN)/python -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--custom-compile-command 'make lock' $(UPGRADE) pyproject.toml
# Required by the kubernetes package for its asyncio client, which is not in the image. A test imports everything without.
NEVER_LOADED = aiohappyeyeballs aiohttp aiohttp-retry aiosignal attrs frozenlist multidict propcache yarl

lock: $(VENV)/.check  ## rewrite the lock files; UPGRADE=--upgrade for newer versions
	$(COMPILE) --extra all --extra build --extra test --extra e2e --extra check --extra manifests -o locks/check.lock
	$(COMPILE) --extra all --extra build --extra test --extra e2e --constraint locks/check.lock -o locks/test.lock
	$(COMPILE) --extra all --constraint locks/check.lock $(NEVER_LOADED:%=--no-emit-package %) -o daemonset/requirements.lock
	echo hatchling | $(BIN)/python -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--custom-compile-command 'make lock' --no-annotate --constraint locks/check.lock - -o daemonset/build.lock
	echo 'mkdocs-material>=9.8,<10' | $(BIN)/python -m uv pip compile --quiet --universal --python-version 3.11 \
		--generate-hashes --custom-compile-command 'make lock' --no-annotate $(UPGRADE) - -o locks/site.lock

# The digests of daemonset/images.yaml that are missing, from the registries.
digests: $(VENV)/.check  ## add the digests of images that are missing
	$(BIN)/python -m daemonset.images --update

# Check, write version and changelog, commit, tag: docs/release.md. Pushes nothing.
release: $(VENV)/.check  ## check, write version and changelog, commit, tag; VERSION=MAJOR.MINOR.PATCH
	@test -n "$(VERSION)" || { echo "usage: make release VERSION=MAJOR.MINOR.PATCH"; exit 2; }
	$(BIN)/python -m daemonset.images --release
	$(BIN)/python -m daemonset.release $(VERSION)

# The files of a release, in dist/: wheel, chart, SBOM, kubectl plugin, checksums. DOWNLOADS=URL, where they will be
# published, also writes the krew manifest (docs/kubectl-plugin.md). RUNBOOKS=URL: the alerts of the chart link to
# docs/runbooks.md there (docs/runbooks.md). The same commit gives the same bytes. Refused while the
# digest of an image is missing.
DOWNLOADS ?=
RUNBOOKS ?=
EPOCH = $(shell git log -1 --format=%ct)
dist: $(VENV)/.check  ## the files of a release, in dist/
	$(BIN)/python -m daemonset.images --release
	rm -rf dist
	$(BIN)/python -m hatchling build --target wheel
	SOURCE_DATE_EPOCH=$(EPOCH) $(BIN)/python -m daemonset.chart_package dist $(RUNBOOKS)
	SOURCE_DATE_EPOCH=$(EPOCH) $(BIN)/python -m daemonset.sbom dist/*.whl > dist/sbom.cdx.json
	SOURCE_DATE_EPOCH=$(EPOCH) $(BIN)/python -m daemonset.krew dist $(DOWNLOADS)
	cd dist && sha256sum *.whl *.tgz *.tar.gz sbom.cdx.json > SHA256SUMS && cat SHA256SUMS

# Build and push the image of this commit: make image IMAGE=registry.example.com/gputopo. Needs docker with buildx.
image:  ## build and push the image; IMAGE=registry.example.com/gputopo
	@test -n "$(IMAGE)" || { echo "usage: make image IMAGE=registry.example.com/gputopo"; exit 2; }
	mkdir -p dist
	SOURCE_DATE_EPOCH=$(EPOCH) docker buildx build -f daemonset/Dockerfile --platform linux/amd64,linux/arm64 \
		--build-arg SOURCE_DATE_EPOCH --build-arg REVISION=$$(git rev-parse HEAD) \
		--provenance=mode=max --sbom=true --metadata-file dist/image.json \
		--output type=image,name=$(IMAGE):$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' gputopo/__init__.py),push=true,rewrite-timestamp=true .

# Ratios measured in one run; see the docstring of each file.
bench: $(VENV)/.test  ## ratios, measured in one run
	$(BIN)/python bench/start_up.py
	$(BIN)/python bench/discovery.py
	$(BIN)/python bench/nvml_calls.py
	PYTHONPATH=. $(BIN)/python bench/evaluate.py
	PYTHONPATH=. $(BIN)/python bench/extender_http.py
	PYTHONPATH=. $(BIN)/python bench/filter_latency.py --minutes 1
	PYTHONPATH=. $(BIN)/python bench/watch.py
	PYTHONPATH=. $(BIN)/python bench/why.py
	PYTHONPATH=. $(BIN)/python bench/planner_pure.py
	PYTHONPATH=. $(BIN)/python bench/preemption_search.py
	PYTHONPATH=. $(BIN)/python bench/planner_loop.py
	PYTHONPATH=. $(BIN)/python bench/pods_without_gpus.py
	PYTHONPATH=. $(BIN)/python bench/queue_fairness.py
	PYTHONPATH=. $(BIN)/python bench/gang_rate.py
	$(BIN)/python bench/agent_costs.py
	PYTHONPATH=. $(BIN)/python bench/ui.py --seconds 20

# Growth from 1,000 to 50,000 nodes: docs/performance.md. 15 minutes; BEFORE=DIR also measures another checkout.
bench-scale: $(VENV)/.test  ## growth from 1,000 to 50,000 nodes; 15 minutes
	PYTHONPATH=. $(BIN)/python bench/scale.py $(if $(BEFORE),--before $(BEFORE))

# Filter calls of an hour at 15,000 nodes, and the longest pieces of work by themselves: docs/performance.md. It fails if
# a call takes more than 250 ms, one in a thousand 50 ms, or a prediction more than stated. Without other work only.
bench-filter: $(VENV)/.test  ## the slowest Filter calls of an hour at 15,000 nodes; 70 minutes
	PYTHONPATH=. $(BIN)/python bench/worst_prediction.py
	PYTHONPATH=. $(BIN)/python bench/fleet_costs.py
	PYTHONPATH=. $(BIN)/python bench/filter_latency.py --minutes 60

# A real kube-scheduler with and without the extender: 20 minutes, by hand (docs/scheduler-performance.md).
bench-scheduler: $(VENV)/.test  ## a real kube-scheduler with and without the extender; 20 minutes
	PYTHONPATH=. $(BIN)/python bench/scheduler.py

# The same with the planner: planned pods and small gangs; 15 minutes, by hand (docs/gangs-performance.md).
bench-planner: $(VENV)/.test  ## planned pods and small gangs; 15 minutes
	PYTHONPATH=. $(BIN)/python bench/planner_cluster.py
	PYTHONPATH=. $(BIN)/python bench/queue_fairness_cluster.py

# Preemption policies side by side: the tables and the plot of docs/preemption.md. About 8 minutes of CPU time.
bench-preemption: $(VENV)/.test  ## preemption policies side by side; 8 minutes
	PYTHONPATH=. $(BIN)/python bench/preemption.py --write
	PYTHONPATH=. $(BIN)/python bench/backfill.py --write

# Memory and latency of planner and extender over half an hour, with the malloc setting of the image, by hand.
soak: $(VENV)/.test  ## memory and latency over half an hour
	MALLOC_ARENA_MAX=2 PYTHONPATH=. $(BIN)/python bench/soak.py

# Hostile values in every field that a tenant may write; the table of docs/testing.md, in 40 minutes.
campaign: $(VENV)/.test  ## hostile values in every field of a tenant; 40 minutes
	$(BIN)/python -m tests.campaign.attacks

# The attacks of docs/testing.md once more, on a real control plane; prints the table with figures of now.
attacks: $(VENV)/.test  ## the attacks of docs/testing.md on a real control plane
	$(BIN)/python -m tests.e2e.binaries
	$(BIN)/python -m tests.e2e.attacks

# A day of faults and attacks in 24 minutes, on a real control plane; figures for docs/testing.md.
chaos: $(VENV)/.test  ## a day of faults and attacks in 24 minutes
	GPUTOPO_E2E_CHAOS_MINUTES=24 $(BIN)/python -m pytest -s -n 0 -m e2e tests/e2e/chaos

clean:  ## remove the virtual environment
	rm -rf $(VENV)
