# Everything a developer needs, on a machine with Python 3.11+, Java 17 and make. No root, no services, no Docker.
# Each target sets up what it needs in .venv first.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
WORKERS ?= 3
OPTIONS ?=
PYTEST = $(BIN)/pytest -n $(WORKERS) --dist loadgroup $(OPTIONS)
SOAK_SECONDS ?= 3600
SECONDS ?= 60
# Hundreds of processes load the same modules, and the tests: compiling them each time takes longer than most tests.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help up setup check format test test-all test-again test-long test-stalled fuzz interop chaos soak bench bench-peer bench-peer-stream protos constraints clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

up: .venv/core ## see it work: a local cluster of three bookies in ./quire-data, until Ctrl-C
	@$(BIN)/quire up

setup: .venv/dev ## the environment alone: .venv with everything that tests need

check: .venv/dev ## lint, types, layers (under a minute)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: .venv/dev ## bring the code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: check ## check, then every capability once: hermetic tests, real ZooKeeper, etcd, Spark, killed bookies
	$(PYTEST) -m "not extended"

test-all: .venv/dev ## the tests that `make test` leaves out: long forms, all combinations, all faults
	$(PYTEST) -m extended

test-again: .venv/dev ## the tests named in the file TESTS=…, one after the other
	$(BIN)/pytest -n 0 $(OPTIONS) @$(TESTS)

test-long: .venv/dev ## all tests with many more seeds and examples
	QUIRE_TEST_LONG=1 $(PYTEST) --timeout 1800

test-stalled: .venv/dev ## all tests while the machine stands still now and then (Linux)
	$(BIN)/python -m tests.soak.stalls $(PYTEST)

fuzz: .venv/atheris ## look for SECONDS=60 for bytes that harm a bookie, guided by coverage (Linux on x86-64)
	$(BIN)/python -m tests.fuzz.bookie_frames --seconds $(SECONDS) --folder .venv/fuzz

interop: .venv/dev ## Apache BookKeeper's own programs at the other end (needs Maven)
	tests/interop/build.sh
	$(PYTEST) tests/interop

chaos: .venv/dev ## kill and pause bookies and clients for SECONDS=60 while ledgers are written, then check each ledger
	QUIRE_CHAOS_SECONDS=$(SECONDS) $(BIN)/pytest -s tests/integration/ledger/test_chaos.py

soak: .venv/dev ## an hour of mixed load on a bookie; SOAK_SECONDS=60 for a minute
	$(BIN)/python -m tests.soak.bookie --seconds $(SOAK_SECONDS)

bench: .venv/dev ## how much CPU a metadata operation costs, and an entry of a bookie
	$(BIN)/python -m benchmarks bookie
	$(BIN)/python -m benchmarks restart
	$(BIN)/python -m benchmarks metadata memory:
	@folder=$$(mktemp -d) && trap 'rm -r "$$folder"' EXIT && $(BIN)/python -m benchmarks metadata "sqlite:$$folder/bench.db"

bench-peer: .venv/dev ## our ledgers and Apache's in turns (needs Maven); BENCH='--quorum 3/3/2 --entry-bytes 1024' for less
	tests/interop/build.sh
	$(BIN)/python -m benchmarks ledger --peer apache $(BENCH)

bench-peer-stream: .venv/dev ## our streams and Apache's in turns (needs Maven); BENCH='--streams 1 --record-bytes 100' for less
	tests/interop/build.sh
	$(BIN)/python -m benchmarks stream --peer apache $(BENCH)

protos: .venv/dev ## generate the message classes from protos/
	$(BIN)/python -m grpc_tools.protoc -Iquire/codec/pb=protos --python_out=src --pyi_out=src protos/bookkeeper_metadata.proto protos/bookkeeper_protocol.proto protos/quire_v1.proto
	$(BIN)/python -m grpc_tools.protoc -Iquire/metadata/drivers/etcd_pb=protos --python_out=src --pyi_out=src protos/etcd.proto

constraints: ## pin the newest versions of all dependencies anew
	rm -rf .venv
	$(PYTHON) -m venv .venv
	$(PIP) install --quiet --upgrade -e '.[dev]'
	$(PIP) freeze --exclude-editable | grep -E '^[A-Za-z0-9_.-]+==' > constraints.txt

clean: ## remove what the other targets made
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache tests/interop/java/target

.venv/core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Quire needs Python 3.11 or newer, this is " + sys.version.split()[0] + ". Say which one to use: make PYTHON=python3.12 …")'
	@test -x $(BIN)/python || { echo "Creating .venv …"; $(PYTHON) -m venv .venv; }
	@echo "Installing quire into .venv …"
	@PIP_CONSTRAINT=constraints.txt $(PIP) install --quiet -e .
	@touch $@

.venv/dev: pyproject.toml constraints.txt .venv/core
	@echo "Installing what tests need into .venv (about 1.6 GB, once) …"
	@PIP_CONSTRAINT=constraints.txt $(PIP) install --quiet -e '.[dev]'
	@touch $@

.venv/atheris: .venv/dev
	@$(PIP) install --quiet 'atheris>=3.0,<4'
	@touch $@
