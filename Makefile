# Everything runs in .venv, which make creates and fills by itself. Needs only make and Python ≥ 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUNTIME := $(VENV)/.runtime
TESTABLE := $(VENV)/.testable
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-compile
INSTALL := $(PIP) --constraint constraints.txt --constraint constraints-dev.txt

.PHONY: help setup demo screenshots test test-all coverage freeze axe milvus lint lock bench reproduce notebooks docs wheel release-check campaign clean
.DEFAULT_GOAL := help

help:  ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 13

setup: $(READY)  ## create .venv and install the package with all it needs here

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "modalhash needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Three stamps in one .venv: what the demonstration needs, what the fast tests need, and all that development needs.
$(RUNTIME): pyproject.toml constraints.txt constraints-dev.txt | $(BIN)/python
	@echo "Installing what the demonstration needs into $(VENV): about a minute, once."
	$(INSTALL) --editable '.[demo]'
	@touch $@

$(TESTABLE): pyproject.toml constraints.txt constraints-dev.txt | $(BIN)/python
	@echo "Installing what the tests need into $(VENV): a minute or two, once."
	$(INSTALL) --quiet --editable '.[test]'
	@touch $@

# Files whose hashes are not those of requirements-dev.txt are refused; torch, not in it, has a build for each platform.
$(READY): pyproject.toml constraints.txt constraints-dev.txt requirements-dev.txt | $(BIN)/python
	@echo "Installing what development needs into $(VENV): a few minutes, once."
	$(PIP) --quiet --no-deps --require-hashes --requirement requirements-dev.txt
	$(INSTALL) --quiet --editable '.[dev]'
	@touch $(RUNTIME) $(TESTABLE) $@

demo: $(RUNTIME)  ## train on pictures and texts that were never paired, measure, search, serve; PHOTOS=folder takes your photos, SERVE=0 stops before serving
	$(BIN)/modalhash demo $(if $(PHOTOS),--photos "$(PHOTOS)") $(if $(filter 0,$(SERVE)),--no-serve)

screenshots: $(READY)  ## make the pictures of the page and of what the demonstration prints; needs Chromium and apt-get
	$(BIN)/python benchmarks/screenshots/terminal.py docs/images/demo.svg
	$(BIN)/python benchmarks/screenshots/free_photos.py docs/images/page-photos.png

# One BLAS thread in each of the two processes, because threads that outnumber the cores slow down the many small
# factorisations of the tests fifty times.
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --quiet

test: $(TESTABLE)  ## run the fast tests, in about five minutes
	$(PYTEST)

test-all: $(READY) test  ## run the fast tests, then those marked slow
	-$(MAKE) milvus
	$(PYTEST) -m "slow and not campaign"

coverage: $(READY)  ## run the fast and the slow tests and say which lines none of them ran; details in htmlcov/
	$(PYTEST) -m "not campaign" --cov --cov-report=term --cov-report=html

campaign: $(READY)  ## run the campaigns: kills at every system call, fuzzing; over an hour
	$(PYTEST) -m campaign

MILVUS := .cache/milvus

milvus: $(MILVUS)/.ready  ## install a Milvus server for tests (Linux x86-64, 60 MB), in an environment of its own, because it needs old packages

$(MILVUS)/.ready:
	$(PYTHON) -m venv $(MILVUS)
	$(MILVUS)/bin/python -m pip install --disable-pip-version-check --quiet 'milvus==2.3.5' 'setuptools<81' 'protobuf<5'
	@touch $@

freeze: $(READY)  ## record names, options, formats and codes in tests/frozen.json, and tables of options in docs, after a deliberate change
	$(BIN)/python tests/freeze.py

AXE := .cache/axe-core-4.11.0
AXE_SHA512 := 8a561a9c453cbf1c417b1a4977c716338125490ab841cb422ca8a1d1349f8c87c24137b21ffeb356b98825f2cfaca4ca2516e21be71f9d96d02230252661758d

axe: $(AXE)/axe.min.js  ## fetch axe-core from npm, with which a test checks that everybody can use the page

$(AXE)/axe.min.js:
	@command -v npm >/dev/null || { echo "axe-core comes from npm, which is not installed"; exit 1; }
	mkdir -p $(AXE)
	npm pack --silent --pack-destination $(AXE) axe-core@4.11.0
	@cd $(AXE) && echo "$(AXE_SHA512)  axe-core-4.11.0.tgz" | sha512sum --check --quiet
	tar -xzf $(AXE)/axe-core-4.11.0.tgz -C $(AXE) --strip-components 1 package/axe.min.js package/LICENSE
	@touch $@

lint: $(READY)  ## check style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/python .ci/check_lock.py
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec deploy/compose.yaml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/kubernetes-validate --quiet deploy/kubernetes/*.yaml

LOCK := constraints-dev.txt

lock: $(BIN)/python  ## rewrite constraints-dev.txt, and requirements-dev.txt with hashes, after a change of pyproject.toml; UPGRADE=1 upgrades every package
	$(BIN)/python -m pip install --disable-pip-version-check --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev --constraint constraints.txt --no-header \
		$(if $(filter 1,$(UPGRADE)),--upgrade) --output-file $(LOCK) pyproject.toml
	@awk '/^[a-z]/ { skip = /^(nvidia-|cuda-|triton==)/ } !skip' $(LOCK) > $(LOCK).old && mv $(LOCK).old $(LOCK)  # torch of the CPU has none of these
	@sed -i.old '1i# What development and CI install, exactly. `make lock` writes it, `make lint` checks it against pyproject.toml.' $(LOCK)
	@rm $(LOCK).old
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-deps --no-header --no-annotate --generate-hashes \
		--no-emit-package torch --output-file requirements-dev.txt $(LOCK)

bench: $(READY)  ## measure speed in 20 minutes at most, and make docs/measurements/speed.md; QUICK=1 prints ratios in 5
	$(BIN)/python benchmarks/speed/run.py $(if $(filter 1,$(QUICK)),--quick)

reproduce: $(READY)  ## the paper's tables and figures on the data here, one seed, in about an hour with the paper's own data; report in results/report
	$(BIN)/python -m reproduction --quick

notebooks: $(READY)  ## run the notebooks and write them with what they print now
	OPENBLAS_NUM_THREADS=1 $(BIN)/python notebooks/execute.py

KATEX := docs/assets/katex
KATEX_SHA512 := 5c21d1754c3895fdd22816897b812f82a22e5b090f4a8f57a1e3bc1a3416f78069ed35aff61361cd98d9f8e1fdc9fd5498bca06fb0c84f91921508b2b75eb362

# KaTeX is part of the site, so that formulas need no other server; its licence goes along.
$(KATEX)/katex.min.js:
	@command -v npm >/dev/null || { echo "KaTeX, which draws the formulas, comes from npm, which is not installed"; exit 1; }
	mkdir -p .cache $(KATEX)
	npm pack --silent --pack-destination .cache katex@0.16.22
	@cd .cache && echo "$(KATEX_SHA512)  katex-0.16.22.tgz" | sha512sum --check --quiet
	tar -xzf .cache/katex-0.16.22.tgz -C $(KATEX) --strip-components 1 package/LICENSE
	tar -xzf .cache/katex-0.16.22.tgz -C $(KATEX) --strip-components 2 --wildcards \
		package/dist/katex.min.js package/dist/katex.min.css 'package/dist/fonts/*.woff2'
	@touch $@

SHIM := docs/assets/iframe-worker
SHIM_SHA512 := ae879a688f8b8352c935f8290a3a117bff96cc48f2f7e674f0ba04beef393023db063c26faa5f3f00839534e651dae95d42cac6721b313448e900b52500e6aed

# With this, pages that are opened as files can be searched.
$(SHIM)/shim.js:
	@command -v npm >/dev/null || { echo "iframe-worker, for the search, comes from npm, which is not installed"; exit 1; }
	mkdir -p .cache $(SHIM)
	npm pack --silent --pack-destination .cache iframe-worker@1.0.4
	@cd .cache && echo "$(SHIM_SHA512)  iframe-worker-1.0.4.tgz" | sha512sum --check --quiet
	tar -xzf .cache/iframe-worker-1.0.4.tgz -C $(SHIM) --strip-components 1 package/LICENSE
	tar -xzf .cache/iframe-worker-1.0.4.tgz -O package/shim/index.js > $@

docs: $(READY) $(KATEX)/katex.min.js $(SHIM)/shim.js  ## build the documentation into site/, the report's other figures included, and check it
	test ! -f reproduction/results/report.json.xz || \
		$(BIN)/python -m reproduction --from reproduction/results/report.json.xz --report docs/measurements/reproduction
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python .ci/check_site.py site

wheel: $(READY)  ## build dist/modalhash-*.whl, which pip installs anywhere: pip install 'dist/modalhash-….whl[photos]'
	$(BIN)/python -m pip wheel --disable-pip-version-check --quiet --no-deps --wheel-dir dist .
	@ls dist/*.whl

release-check: $(BIN)/python  ## rehearse a release: reproducible build, README and each extra from the wheel alone; leaves dist/
	$(BIN)/python -m pip install --disable-pip-version-check --quiet uv
	$(BIN)/python .ci/release_check.py

clean:  ## remove .venv and everything that was built
	rm -rf $(VENV) $(KATEX) $(SHIM) site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis htmlcov .coverage
