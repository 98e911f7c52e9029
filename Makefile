# Everything happens in .venv, which the first target that needs it makes; nothing else is installed.
#   make demo PYTHON=python3.12   another interpreter (remove .venv first)

PYTHON ?= python3
VENV   ?= .venv
SOAK_SECONDS ?= 600
# Modules are compiled when they are imported, which few of all that is installed are.
export PIP_COMPILE ?= 0
# uWSGI comes as source. Its part for Python is compiled in half the time of all of it, and without optimization in half of that.
export UWSGI_PROFILE ?= pyonly
export APPEND_CFLAGS ?= -O0
PIP    := $(VENV)/bin/python -m pip --disable-pip-version-check
# Elsewhere the extensions may fail to build. Here tests of what does not compile would be left out.
NATIVE := $(if $(shell command -v $(CC)),REQUIRE_NATIVE_PARTS=1)
BUILD  := pyproject.toml CMakeLists.txt $(wildcard native/*/* native/*/*/*)

C      := $(wildcard native/*/*.[ch] native/*/*/*.[ch] tests/*/*.[ch] tests/*/*/*.[ch])
SHELL_SCRIPTS := .ci/run .ci/sanitize .ci/pythons .ci/aarch64 $(wildcard scripts/*.sh)

.PHONY: help setup demo test coverage lint format bench soak wheel clean
.DELETE_ON_ERROR:

help:  ## what can be made here
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.ready-test  ## .venv with the package, built from here, and all that the tests need

demo: $(VENV)/.ready-demo  ## a profiled web service under load, and the report of it
	$(VENV)/bin/splunk-profiler demo

test: $(VENV)/.ready-test  ## all tests, on all processors; ARGS="tests/unit -k exporter" runs a part
	$(VENV)/bin/python -m pytest -n auto --dist worksteal $(ARGS)

coverage: $(VENV)/.ready-test  ## which lines of the package no unit test reaches; ARGS=tests for all tests
	$(VENV)/bin/coverage erase
	-$(VENV)/bin/coverage run -m pytest --quiet $(or $(ARGS),tests/unit)
	$(VENV)/bin/coverage combine --quiet
	$(VENV)/bin/coverage report

lint: $(VENV)/.ready-test  ## ruff, mypy --strict, clang-format and shellcheck
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	[ ! -x $(VENV)/bin/clang-format ] || $(VENV)/bin/clang-format --dry-run --Werror $(C)
	[ ! -x $(VENV)/bin/shellcheck ] || $(VENV)/bin/shellcheck $(SHELL_SCRIPTS)

format: $(VENV)/.ready-test  ## lays out Python and C as `make lint` wants it
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	[ ! -x $(VENV)/bin/clang-format ] || $(VENV)/bin/clang-format -i $(C)

bench: $(VENV)/.ready-test  ## the measures of docs/performance.md, one JSON line each
	$(VENV)/bin/python benchmarks/run.py $(ARGS)

soak: $(VENV)/.ready-test  ## the reliability run of docs/reliability.md; SOAK_SECONDS=600, or ARGS=--quick
	PYTHONPATH=benchmarks $(VENV)/bin/python -m soak --seconds $(SOAK_SECONDS) $(ARGS)

wheel: $(VENV)/bin/python  ## the wheel and the sdist of this machine in build/wheel/dist, checked and tried
	sh scripts/wheel.sh $(VENV)/bin/python build/wheel

clean:  ## removes .venv
	rm -rf $(VENV)

$(VENV)/bin/python:
	@sh scripts/make-venv.sh "$(PYTHON)" "$(VENV)"

# The test set holds the demo's, so a machine that has it needs no second installation for the demo.
$(VENV)/.ready-demo: $(BUILD) | $(VENV)/bin/python
	@if [ -e $(VENV)/.ready-test ]; then set -x; $(NATIVE) $(PIP) install --quiet --editable '.[test-once]' && touch $(VENV)/.ready-test; \
	else set -x; $(PIP) install --quiet --editable '.[demo]'; fi
	@touch $@

$(VENV)/.ready-test: $(BUILD) | $(VENV)/bin/python
	$(NATIVE) $(PIP) install --quiet --editable '.[test-once]'
	@touch $@ $(VENV)/.ready-demo
