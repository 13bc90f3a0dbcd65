# Everything sets itself up in .venv: no root, nothing outside this directory.
# `make setup demo test lint` on a fresh Debian or Ubuntu needs Python 3.11 or newer and make.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
PYTEST := $(BIN)/python -m pytest -q

EVERYDAY := $(wildcard tests/unit tests/contract tests/property tests/faults tests/conformance \
	tests/integration tests/e2e)

.PHONY: help setup demo test test-long lint format bench clean

help:
	@echo 'make setup      install everything into $(VENV)'
	@echo 'make demo       real requests through a real Envoy: each claim and what was measured'
	@echo 'make test       the test suite'
	@echo 'make test-long  what takes longer than everyday work allows'
	@echo 'make lint       ruff, mypy, import contracts'
	@echo 'make bench      what the way through Envoy, picker and sidecar costs here'

setup: $(STAMP)

$(STAMP): pyproject.toml .ci/setup-venv $(wildcard constraints.txt)
	sh .ci/setup-venv $(VENV)
	touch $@

demo: $(STAMP)
	$(BIN)/epp local demo

test: $(STAMP)
	$(PYTEST) -m 'not long' $(EVERYDAY)

test-long: $(STAMP)
	$(PYTEST) -m long --timeout 1800

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(STAMP)
	$(BIN)/epp bench request

clean:
	rm -rf $(VENV) .venv-bootstrap .epp-local
