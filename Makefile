# The commands of this project. A newcomer needs `make demo` and `make test`; both install first.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
# Most tests wait for processes and sockets, so three workers keep two cores busy, and four with the
# long proofs. Tests that share a server are in one file.
WORKERS := -n 3 --dist loadfile
MORE_WORKERS := -n 4 --dist loadfile

# Without compiled files each of the many processes of the tests compiles the library again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help install demo fleet-demo test test-all prove check reference docs format bench clean

help:  ## the list of commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# The stamp of the virtual environment: it is made again when the dependencies change.
.venv/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Holdfast needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "This Python cannot make virtual environments. On Debian: apt install python3-venv"; exit 1; }
	@echo "Installing into .venv (about a minute the first time)..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

install: .venv/.installed  ## make a virtual environment with all dependencies in .venv

demo: install  ## watch an agent find and fix a bug with real tools (no key needed)
	@$(BIN)/holdfast demo

fleet-demo: install  ## kill workers at random over Postgres; every effect happens once
	@$(BIN)/python benchmarks/fleet_demo.py

# Quiet unless it fails: pytest's output goes to a file, which is shown whole if a test fails.
test: install  ## the tests that take less than half a second each; quiet unless one fails
	@echo "Running the tests (three minutes at most on two cores)..."
	@$(BIN)/python -m pytest $(WORKERS) -m 'not slow and not proof' > .venv/test.log 2>&1 || { cat .venv/test.log; exit 1; }
	@tail -n 1 .venv/test.log

test-all: install  ## all tests, with fixed samples of the long proofs
	@$(BIN)/python -m pytest $(MORE_WORKERS) --no-loadscope-reorder --size all

prove: install  ## all tests, and the long proofs at full size
	@$(BIN)/python -m pytest $(WORKERS) --size prove

check: install  ## ruff, pyright (strict), layers and cycles of imports
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check . > .venv/format.log || { cat .venv/format.log; echo 'Run: make format'; exit 1; }
	@$(BIN)/pyright --warnings > .venv/pyright.log || { cat .venv/pyright.log; exit 1; }
	@$(BIN)/python -m pytest tests/test_house.py

format: install  ## format the code
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format --quiet .

bench: install  ## measure every table of benchmarks/README.md
	@$(BIN)/python benchmarks/run.py

reference: install  ## write docs/reference anew from the source
	@$(BIN)/python -m tests.reference

docs: install  ## build the site into site/
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet && echo "site/index.html"

clean:  ## remove everything that the other commands made
	rm -rf .venv site .ruff_cache .hypothesis build dist
