# The one list of tasks. `make demo` and `make test` set up what they need by themselves.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(shell cksum pyproject.toml | cut -d' ' -f1)
ACCEPTANCE := ../shared/acceptance
PYTEST := $(BIN)/python -m pytest

.PHONY: help setup check test demo soak format clean

help:  ## show this list
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP)  ## make .venv with the product and everything the tests need

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@rm -f $(VENV)/.installed-*
	@echo "installing into $(VENV) (PySpark is large; a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[spark,dev]'
	@touch $(STAMP)

check: setup  ## format, lint, types, architecture, dead code, unit, property, scenario: before every commit
	$(BIN)/ruff format --check src tests benchmarks scripts
	$(BIN)/ruff check src tests benchmarks scripts
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture
	$(PYTEST) -q tests/unit tests/property tests/scenario

test: check  ## every test; this is what continuous integration runs
	$(PYTEST) -q -n auto --dist worksteal tests/sim
	$(PYTEST) -q tests/process
	$(PYTEST) -q tests/spark
	@if [ -d $(ACCEPTANCE) ]; then \
	  $(BIN)/python scripts/acceptance.py $(ACCEPTANCE); \
	else echo "no acceptance tests beside this checkout; skipped"; fi

demo: setup  ## the main job: Spark loads real data while members come, die and leave
	$(BIN)/whimbrel demo --out build/demo

soak: setup  ## a kill at every event, then fresh simulator seeds for SOAK_S seconds (600)
	$(BIN)/whimbrel sim --sweep
	$(BIN)/python scripts/soak.py $${SOAK_S:-600}

format: setup  ## rewrite the sources in the house format
	$(BIN)/ruff check --fix src tests benchmarks scripts
	$(BIN)/ruff format src tests benchmarks scripts

clean:  ## remove what was built, not the virtual environment
	rm -rf build dist .mypy_cache .ruff_cache .hypothesis .import_linter_cache
