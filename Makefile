# The same commands for people and for CI. `make demo` and `make test` are all a newcomer needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Tests start hundreds of processes: where Python may not keep compiled modules, each would compile raysim anew.
export PYTHONDONTWRITEBYTECODE :=
FAST := -n 2 --dist loadgroup -m "not ray and not slow" $(addprefix tests/,core data engine grouped jobs plugins results scenario)

.PHONY: help setup demo test test-fast test-large test-versions check docs test-gpu losses chaos golden bench clean

help:  ## Show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY)  ## Make .venv with raysim and tested versions of everything it needs

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13) and "raysim needs Python 3.11 to 3.13; this is " + sys.version.split()[0] + " (make PYTHON=python3.13 setup)")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/raysim list algorithms >/dev/null  # imports every method once; from then on `raysim list` does without
	@touch $(READY)

demo: setup  ## Run FedGH on scikit-learn's handwritten digits: 20 clients, five architectures
	$(BIN)/raysim launch scenarios/quickstart.yaml

test: setup  ## Run the tests
	$(BIN)/python -m pytest -n 3 --dist loadgroup

test-fast: setup  ## Run, in under a minute, the tests of the parts that need neither Ray nor a training
	$(BIN)/python -m pytest $(FAST)

test-large: setup  ## Run the tests that take minutes or gigabytes: a hundred actors, clusters; CI does
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m large

test-versions: setup  ## Try the wheel with the lowest and newest versions in range, in environments below build/versions
	$(BIN)/python -m tests.versions $(VERSIONS) --tests '$(FAST)'

check: setup  ## Formatting, lint, types, import arrows
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup  ## Build the documentation site in build/docs: run its cells, check links; a warning is an error
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python -m sphinx -q -W --keep-going -E -b html docs build/docs

test-gpu: setup  ## Run the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu

losses: setup  ## Run a thousand seeds of the loss schedule in one process, and compare every result
	$(BIN)/python -m tests.engine.losses --seeds 1000

chaos: setup  ## Kill and signal actors, server and driver of many runs, a hundred times, and compare every result
	$(BIN)/python -m tests.chaos --kills 100

golden: setup  ## Write the golden runs anew: a reviewed act, see CONTRIBUTING.md
	$(BIN)/python -m tests.golden.record

bench: setup  ## Measure raysim against a hand-written loop of the same work
	$(BIN)/python benchmarks/overhead.py

clean:  ## Remove what the commands above made, but not results
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
