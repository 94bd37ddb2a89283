# Everything happens inside .venv; a machine with Python and pip needs no other preparation.

PYTHON  ?= python3
# One more than two cores have: it works while another waits for a process, a page or a disk.
WORKERS ?= 3

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# One torch thread per worker: more would only compete for the same cores.
SINGLE := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
PYTEST := $(SINGLE) $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal --durations=10

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup browser demo test fuzz lint types docs bench clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(VENV)/.dev ## create .venv with all that development needs

demo: $(VENV)/.core ## watch a network shrink while it learns to read digits (5 minutes)
	$(BIN)/nodedrop demo

browser: ## install Debian's chromium and its driver, which open the report pages in the tests
	apt-get update -qq && apt-get install -y -qq chromium chromium-driver

test: $(VENV)/.dev $(VENV)/.browser ## run all tests on WORKERS processes (default 3)
	$(PYTEST)

fuzz: $(VENV)/.dev ## try 10,000 random networks; goes on where it was stopped
	$(SINGLE) $(BIN)/python -m tests.fuzz 10000 $(WORKERS)

lint: $(VENV)/.dev ## ruff
	$(BIN)/ruff check .

types: $(VENV)/.dev ## mypy, strict on src
	$(BIN)/mypy

docs: $(VENV)/.dev ## build the documentation as a site
	$(BIN)/mkdocs build --strict --site-dir build/site

bench: $(VENV)/.dev ## measure, write the records to results/bench and the page made of them
	$(BIN)/nodedrop bench --results results/bench --page docs/benchmarks.md

clean: ## remove .venv, caches and build output
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps below are touched last, so that an interrupted installation is simply done again.

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/.created
	@echo "installing nodedrop and torch into $(VENV); the first time takes a minute or two"
	$(PIP) --editable '.[report]'
	@touch $@

# Where they can be installed, they are; elsewhere the tests of pages are left out, and say so.
$(VENV)/.browser: | $(VENV)/.created
	@if ! command -v chromedriver >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		$(MAKE) --no-print-directory browser >/dev/null 2>&1 || echo "no chromium could be installed"; fi
	@touch $@

# pytorchcv declares torchvision and requests; its image networks import neither.
$(VENV)/.dev: $(VENV)/.core
	@echo "installing the tools for development into $(VENV)"
	$(PIP) --editable '.[dev,test]'
	$(PIP) --no-deps pytorchcv
	@touch $@
