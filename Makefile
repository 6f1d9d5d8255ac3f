# Everything there is to do in this checkout; each target sets up what it needs.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# The torch that `make lock` pins: left open, pip may take one that drags in gigabytes of CUDA.
TORCH ?= 2.13.0
# Processes that share the tests, a file at a time. Most tests start ranks of their own, so one for each core is enough.
WORKERS ?= 2

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.SILENT:
.DEFAULT_GOAL := help
.PHONY: help demo test check test-slow compat bench screens lock clean chromium prometheus

help: ## list the targets
	sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 18

demo: $(READY) ## open the page at 127.0.0.1:8501 and start the demo study; HEADLESS=1 runs it in the terminal
	exec $(BIN)/workbench $(if $(filter-out 0,$(HEADLESS)),tune examples/quickstart.yaml,ui --demo)

test: $(READY) chromium prometheus ## run the tests, without the slow ones, in two processes; WORKERS=4 takes more
	$(BIN)/python -m pytest -m "not slow" -q --durations=10 -rs -n $(WORKERS) --dist loadfile

check: $(READY) ## formatting, lint, types, import contracts, house rules
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -q tests/test_house.py tests/test_documents.py

test-slow: $(READY) chromium prometheus ## run the slow tests, a file at a time; goes on where it was stopped
	$(BIN)/python -m tests.slow_parts

compat: $(READY) ## run a part of the tests under each supported torch release; VERSIONS="2.11 2.15" names some
	$(BIN)/python -m tests.compat $(if $(VERSIONS),--lines $(VERSIONS))

bench: $(READY) ## run the benchmarks that need no GPU
	shopt -s nullglob
	for script in benchmarks/*.py; do
	  name=$$(basename "$$script" .py)
	  case $$name in gpu_*|_*) continue ;; esac
	  echo "== $$script" >&2
	  $(BIN)/python -m "benchmarks.$$name" --save
	done

screens: $(READY) chromium ## write every page as a picture into docs/screens/, which git ignores
	$(BIN)/python -m tests.screens docs/screens

lock: ## write requirements.lock anew from pyproject.toml (with python3.11, the oldest supported)
	fresh=$$(mktemp -d)
	trap 'rm -rf "$$fresh"' EXIT
	python3.11 -m venv "$$fresh"
	pip="$$fresh/bin/python -m pip -qq --disable-pip-version-check"
	freeze() { # without local versions, and without CUDA's packages, which torch brings where it wants them
	  $$pip freeze --all --exclude-editable --exclude pip --exclude wheel |
	    sed -E 's/\+[a-z0-9.]+$$//' | grep -vE '^(#|cuda-|triton|nvidia-(cu|nccl|nv))'
	}
	echo "Resolving the packages (about 2 GB; some minutes) ..." >&2
	$$pip install torch==$(TORCH) -e .
	freeze >"$$fresh/run"
	$$pip install torch==$(TORCH) -e '.[dev]'
	freeze >"$$fresh/all"
	$$pip check >&2
	{
	  echo "# Exact versions of everything that runs here, tested together. Written by 'make lock'; not by hand."
	  cat "$$fresh/run"
	  printf '\n# Only to develop and test.\n'
	  grep -vxFf "$$fresh/run" "$$fresh/all"
	} >"$$fresh/lock"
	cp "$$fresh/lock" requirements.lock

clean: ## remove the virtual environment and the caches, never the runs
	rm -rf .venv .compat .targets build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last: without it a half-made environment is thrown away and made anew.
# The lock makes a second `make` wait; it then finds the work done. Messages go to stderr: stdout is for results.
$(READY): requirements.lock pyproject.toml
	fail() { echo "$$1" >&2; exit 1; }
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
	  fail "Python 3.11 or newer is needed, and '$(PYTHON)' is not: name one with 'make PYTHON=...'."
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null ||
	  fail "'$(PYTHON)' cannot make virtual environments: install its venv package (python3-venv)."
	exec 9<Makefile
	if command -v flock >/dev/null; then flock 9; fi
	if [[ $@ -nt requirements.lock && $@ -nt pyproject.toml ]]; then exit 0; fi
	echo "Setting up .venv with the packages of requirements.lock; this may take some minutes ..." >&2
	if [[ ! -f $@ ]] || ! $(BIN)/python -c 'import pip' 2>/dev/null; then $(PYTHON) -m venv --clear .venv; fi
	rm -f $@
	pip="$(BIN)/python -m pip -qq --disable-pip-version-check"
	$$pip install -r requirements.lock
	$$pip install --no-deps --no-build-isolation -e .
	touch $@

chromium:
	if [[ -x /usr/bin/chromium || $$(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then exit 0; fi
	echo "Installing the system package chromium for the browser tests ..." >&2
	export DEBIAN_FRONTEND=noninteractive
	{ timeout 300 apt-get update && timeout 900 apt-get install -y --no-install-recommends chromium; } >/dev/null 2>&1 ||
	  echo "chromium could not be installed; the browser tests will be skipped." >&2

# The test of the metrics endpoint scrapes with a real server. Unpacked, not installed: no service starts, and no root.
prometheus: $(READY)
	if command -v prometheus >/dev/null || [[ -x $(BIN)/prometheus ]] || ! command -v apt-get >/dev/null; then exit 0; fi
	echo "Unpacking the system package prometheus into .venv for one test ..." >&2
	scratch=$$(mktemp -d)
	trap 'rm -rf "$$scratch"' EXIT
	unpack() {
	  if [[ $$(id -u) == 0 ]]; then timeout 300 apt-get update; fi
	  (cd "$$scratch" && timeout 600 apt-get download prometheus && dpkg-deb -x prometheus_*.deb .) &&
	    cp "$$scratch"/usr/bin/{prometheus,promtool} $(BIN)/
	}
	unpack >/dev/null 2>&1 || echo "prometheus could not be had; the tests that scrape with it will be skipped." >&2
