# make demo   watch a loop run on a server of its own: no key, 15 s after set-up
# make test   the tests, offline
# make kills  more runs whose workers are killed at random points; SCHEDULES=1000 as many as you like
# make check  tests, lint, types, layers and whether generated files are up to date: what CI runs
# make lock   resolve the dependencies (needs uv); with UPGRADE=1 to their newest versions
#
# All of it works from an empty machine with Python 3.11 or newer. The environment goes into .venv and is made again
# only when requirements.lock changes. uv is used where it is installed, pip otherwise.
#
#   make PYTHON=python3.12 test     another interpreter
#   make VENV=/some/folder test     another environment
#   make JOBS=2 test                so many test processes

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV ?= .venv
JOBS ?= auto
MODEL ?=
SCHEDULES ?= 52
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)
NEW_ENOUGH := import sys, venv; sys.exit(sys.version_info < (3, 11))
# `python3` where it is new enough, else a newer one beside it. A name may be there and not work (pyenv): try it.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$p -c '$(NEW_ENOUGH)' >/dev/null 2>&1 && { command -v $$p; break; }; done)

.PHONY: help demo test kills lint format types layers current supabase check lock generated images screenshots setup clean

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

setup: $(VENV)/.package

demo: setup
	@$(BIN)/python examples/puzzle/demo.py $(if $(MODEL),--model '$(MODEL)')

test: setup
	@$(BIN)/python -m pytest -n $(JOBS) --maxprocesses=8 --dist worksteal

kills: setup
	@$(BIN)/python -m tests.durability.harness --schedules $(SCHEDULES)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: setup
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: setup
	@$(BIN)/pyright --pythonpath $(BIN)/python

layers: setup
	@$(BIN)/lint-imports --no-cache | tail -n 4

supabase: setup
	@$(BIN)/python .ci/supabase.py

check: setup
	@.ci/run

# --- what is made from something else ---

current: setup
	@$(BIN)/python .ci/lock.py --check
	@$(BIN)/python docs/make_reference.py --check

lock:
	@$(PYTHON) .ci/lock.py $(if $(UPGRADE),--upgrade)

generated: setup
	@$(BIN)/python -m loopwright.service.loop_schema
	@$(BIN)/python docs/make_reference.py

images: setup
	@$(BIN)/python docs/make_images.py

screenshots: setup
	@$(BIN)/python docs/make_screenshots.py

# --- the environment ---

$(VENV)/.environment: requirements.lock
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and was not found; name it: make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c '$(NEW_ENOUGH)' || { echo "$(PYTHON) is too old or has no venv; Python 3.11 or newer is needed"; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version), about a minute the first time"
	@rm -rf $(VENV)
ifneq ($(UV),)
	@uv venv --quiet --python $(PYTHON) $(VENV)
	@uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
else
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
endif
	@touch $@

$(VENV)/.package: $(VENV)/.environment pyproject.toml
ifneq ($(UV),)
	@uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
else
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
endif
	@touch $@

clean:
	rm -rf $(VENV) dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache .loopwright
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
