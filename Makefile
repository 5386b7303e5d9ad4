# Everything runs in .venv, which make creates and fills by itself. Needs only make and Python ≥ 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test lint bench reproduce docs clean
.DEFAULT_GOAL := help

help:  ## show this
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 10

setup: $(READY)  ## create .venv and install the package with all it needs here

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "modalhash needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY)  ## train on pictures and names that were never paired, measure, search, serve; SERVE=0 stops before serving
	$(BIN)/modalhash demo $(if $(filter 0,$(SERVE)),--no-serve)

test: $(READY)  ## run the tests
	$(BIN)/python -m pytest --numprocesses 2 --quiet

lint: $(READY)  ## check style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

BENCHMARKS := training_speed transform_speed evaluation_speed search_speed radius_speed duplicates_speed import_speed serve_load speed_table

bench: $(READY)  ## measure speed; one table at the end, results as JSON under benchmarks/results
	@for name in $(BENCHMARKS); do echo "== $$name"; $(BIN)/python benchmarks/speed/$$name.py || exit 1; done

reproduce: $(READY)  ## the paper's tables and figures on the data here, in about ten minutes; report in docs/reproduction
	$(BIN)/python -m reproduction --quick --report docs/reproduction

docs: $(READY)  ## build the documentation into site/, the report's other figures included
	test ! -f reproduction/results/quick.json.xz || \
		$(BIN)/python -m reproduction --from reproduction/results/quick.json.xz --report docs/reproduction
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:  ## remove .venv and everything that was built
	rm -rf $(VENV) site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
