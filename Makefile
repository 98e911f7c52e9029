# Everything happens in .venv, which the first target that needs it makes; nothing else is installed.
#   make demo PYTHON=python3.12   another interpreter (remove .venv first)

PYTHON ?= python3
VENV   ?= .venv
SOAK_SECONDS ?= 600
PIP    := $(VENV)/bin/python -m pip --disable-pip-version-check
BUILD  := pyproject.toml CMakeLists.txt $(wildcard native/*/* native/*/*/*)

.PHONY: help setup demo test lint bench soak clean
.DELETE_ON_ERROR:

help:  ## what can be made here
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.ready-test  ## .venv with the package, built from here, and all that the tests need

demo: $(VENV)/.ready-demo  ## a profiled web service under load, and the report of it
	$(VENV)/bin/splunk-profiler demo

test: $(VENV)/.ready-test  ## all tests, on all processors; ARGS="tests/unit -k exporter" runs a part
	$(VENV)/bin/python -m pytest -n auto --dist worksteal $(ARGS)

lint: $(VENV)/.ready-test  ## ruff and mypy --strict
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: $(VENV)/.ready-test  ## the measures of docs/performance.md, one JSON line each
	$(VENV)/bin/python benchmarks/run.py $(ARGS)

soak: $(VENV)/.ready-test  ## the reliability run of docs/reliability.md; SOAK_SECONDS=600, or ARGS=--quick
	PYTHONPATH=benchmarks $(VENV)/bin/python -m soak --seconds $(SOAK_SECONDS) $(ARGS)

clean:  ## removes .venv
	rm -rf $(VENV)

$(VENV)/bin/python:
	@sh scripts/make-venv.sh "$(PYTHON)" "$(VENV)"

# The test set holds the demo's, so a machine that has it needs no second installation for the demo.
$(VENV)/.ready-demo: $(BUILD) | $(VENV)/bin/python
	@if [ -e $(VENV)/.ready-test ]; then set -x; $(PIP) install --quiet --editable '.[test]' && touch $(VENV)/.ready-test; \
	else set -x; $(PIP) install --quiet --editable '.[demo]'; fi
	@touch $@

$(VENV)/.ready-test: $(BUILD) | $(VENV)/bin/python
	$(PIP) install --quiet --editable '.[test]'
	@touch $@ $(VENV)/.ready-demo
