# The commands of this project. `make demo` and `make test` are the two a newcomer needs; both install first.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
# Two files of tests at a time: most of them wait for processes and sockets. What shares a server stands in one file.
TWO := -n 2 --dist loadfile

.PHONY: help install demo test test-all check docs format bench clean

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# One stamp for the virtual environment: made anew when the dependencies change.
.venv/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Holdfast needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "This Python cannot make virtual environments. On Debian: apt install python3-venv"; exit 1; }
	@echo "Installing into .venv (about a minute the first time)..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

install: .venv/.installed  ## a virtual environment in .venv with everything in it

demo: install  ## watch an agent find and fix a bug with real tools (no key needed)
	@$(BIN)/holdfast demo

# Quiet unless it fails: what pytest says goes to a file, and is shown whole if anything is wrong.
test: install  ## the whole suite but for the long proofs; quiet unless it fails
	@echo "Running the tests (some minutes)..."
	@$(BIN)/python -m pytest $(TWO) -m 'not slow' > .venv/test.log 2>&1 || { cat .venv/test.log; exit 1; }
	@tail -n 1 .venv/test.log

test-all: install  ## the long proofs too
	@$(BIN)/python -m pytest $(TWO)

check: install  ## ruff, pyright (strict) and the layering of the house
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check . > .venv/format.log || { cat .venv/format.log; echo 'Run: make format'; exit 1; }
	@$(BIN)/pyright --warnings > .venv/pyright.log || { cat .venv/pyright.log; exit 1; }
	@$(BIN)/python -m pytest tests/test_house.py

format: install  ## put the code into its form
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format --quiet .

bench: install  ## every table of benchmarks/README.md, measured here and now
	@$(BIN)/python benchmarks/run.py

docs: install  ## the site, in site/: tutorial, how-to pages, reference
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet && echo "site/index.html"

clean:  ## remove what the other commands made
	rm -rf .venv site .ruff_cache .hypothesis build dist
