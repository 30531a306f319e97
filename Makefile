# Needs make and Python 3.11 or newer; everything else goes into .venv. `make help` lists the targets.
#
# ARGS goes to the tool:  make test ARGS="-k dedup -x"        PYTHON names the interpreter:  make test PYTHON=python3.13

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
EXTRAS := bullmq,cli,dashboard,otel,prometheus
ARGS ?=
PYTHON ?=
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

# What the caller's shell says about Python is not meant for this virtual environment: an active venv, a PYTHONPATH
# with another copy of the package, -O that drops asserts, options that pip or pytest would read from the environment.
unexport VIRTUAL_ENV CONDA_PREFIX MYPYPATH __PYVENV_LAUNCHER__
unexport PYTHONHOME PYTHONPATH PYTHONSAFEPATH PYTHONSTARTUP PYTHONOPTIMIZE PYTHONWARNINGS PYTHONDEVMODE PYTHONASYNCIODEBUG
unexport PYTHONHASHSEED PYTHONINSPECT PYTHONEXECUTABLE PYTHONPLATLIBDIR PYTHONDONTWRITEBYTECODE
unexport PIP_TARGET PIP_PREFIX PIP_ROOT PIP_USER PIP_DRY_RUN PIP_NO_DEPS PIP_PYTHON PIP_REQUIRE_VIRTUALENV
unexport PYTEST_ADDOPTS PYTEST_PLUGINS PYTEST_DISABLE_PLUGIN_AUTOLOAD COVERAGE_FILE COVERAGE_PROCESS_START COVERAGE_RCFILE
export PYTHONNOUSERSITE := 1

.PHONY: help
help: ## list the targets
	@echo "usage: make TARGET [ARGS=...] [PYTHON=...]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))


# --- what people run ------------------------------------------------------------------------------------------------

.PHONY: demo test install
demo: $(VENV)/.has-examples ## run the demo (first time: about half a minute to install)
	@$(PY) examples/demo.py $(ARGS)

test: $(VENV)/.has-tests ## run all tests, in random order
	$(PY) -m pytest $(ARGS)

install: $(VENV)/.has-dev ## make .venv with everything a contributor needs


# --- what CI runs ---------------------------------------------------------------------------------------------------

.PHONY: check lint format types contracts package
check: lint types contracts package test ## everything that CI runs, cheap checks first

lint: $(VENV)/.has-dev ## ruff: rules and format
	$(PY) -m ruff check $(ARGS)
	$(PY) -m ruff format --check --diff

format: $(VENV)/.has-dev ## let ruff repair what it can
	$(PY) -m ruff check --fix $(ARGS)
	$(PY) -m ruff format

types: $(VENV)/.has-dev ## mypy, strict
	$(PY) -m mypy $(ARGS)

contracts: $(VENV)/.has-dev ## import-linter: who may import whom
	$(VENV)/bin/lint-imports $(ARGS)

package: $(VENV)/.has-dev ## build sdist and wheel; try the wheel in empty environments
	$(PY) tests/packaging/check_wheel.py $(ARGS)


# --- now and then ---------------------------------------------------------------------------------------------------

.PHONY: cover coverage bench build clean
cover: $(VENV)/.has-tests ## run the tests under coverage and list what they miss
	$(PY) -m coverage erase
	$(PY) -m coverage run -m pytest $(ARGS)
	$(PY) -m coverage combine --quiet
	$(PY) -m coverage report

coverage: $(VENV)/.has-tests ## lines and branches of core/ that the core's own tests reach
	$(PY) -m coverage erase
	$(PY) -m coverage run -m pytest -q tests/unit/core tests/stateful tests/conformance $(ARGS)
	$(PY) -m coverage combine --quiet
	$(PY) -m coverage report --include='inproc_jobs/core/*' --skip-covered --show-missing

bench: $(VENV)/.has-tests ## measure speed and memory
	$(PY) benchmarks/run.py $(ARGS)

build: $(VENV)/.has-dev ## make dist/*.tar.gz and dist/*.whl
	$(PY) -m build $(ARGS)

clean: ## remove .venv and all that make and the tools have made
	rm -rf $(VENV) dist build htmlcov .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis


# --- the virtual environment ----------------------------------------------------------------------------------------
# A file .venv/.has-X says that X was installed after the files on the right last changed.

SOURCES_OF_METADATA := pyproject.toml inproc_jobs/_version.py

$(VENV)/.has-examples: $(VENV)/.has-pip $(SOURCES_OF_METADATA)
	@echo "installing the package and what the examples need into $(VENV)"
	@$(PIP) install --editable . --group examples
	@touch $@

$(VENV)/.has-tests: $(VENV)/.has-pip $(SOURCES_OF_METADATA)
	@echo "installing the package and what its tests need into $(VENV)"
	@$(PIP) install --editable ".[$(EXTRAS)]" --group tests
	@touch $(VENV)/.has-examples $@

$(VENV)/.has-dev: $(VENV)/.has-pip $(SOURCES_OF_METADATA)
	@echo "installing the package and what contributors need into $(VENV)"
	@$(PIP) install --editable ".[$(EXTRAS)]" --group dev
	@touch $(VENV)/.has-examples $(VENV)/.has-tests $@

# pip learned --group in 25.1; a Python 3.11 may bring pip 23.
$(VENV)/.has-pip: $(PY)
	@$(PIP) install --upgrade "pip>=25.1"
	@touch $@

# A venv whose Python was removed, or that came here with a moved or copied folder, is made anew: its scripts and its
# link to the package would point to the old place.
ifneq ($(shell test "$$(cat $(VENV)/.made-in 2>/dev/null)" = "$$(pwd -P)" && $(PY) -c 'print("works")' 2>/dev/null),works)
.PHONY: $(PY)
endif

# The first interpreter that runs (a pyenv shim may exist and refuse), is new enough and can make environments.
CANDIDATES = $(if $(PYTHON),$(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python)
CAN_MAKE_VENV := import sys; assert sys.version_info >= (3, 11); import venv, ensurepip
IS_NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))

$(PY):
	@for python in $(CANDIDATES); do \
		if "$$python" -c "$(CAN_MAKE_VENV)" 2>/dev/null; then \
			echo "making $(VENV) with $$("$$python" --version) ($$python)"; \
			"$$python" -m venv --clear $(VENV) && pwd -P > $(VENV)/.made-in; \
			exit; \
		fi; \
		if "$$python" -c "$(IS_NEW_ENOUGH)" 2>/dev/null; then incomplete="$$incomplete $$python"; \
		elif "$$python" --version >/dev/null 2>&1; then old="$$old $$python ($$("$$python" --version 2>&1))"; fi; \
	done; \
	if [ -n "$$incomplete" ]; then \
		echo "error: cannot make a virtual environment: the module venv or ensurepip is missing in:$$incomplete" >&2; \
		echo "       Debian and Ubuntu ship it apart:  sudo apt install python3-venv" >&2; \
		echo "       (for another version its own:  sudo apt install python3.12-venv)" >&2; \
	else \
		echo "error: no Python 3.11 or newer found; tried: $(CANDIDATES)" >&2; \
		if [ -n "$$old" ]; then echo "       too old:$$old" >&2; fi; \
		echo "       install one, or name it:  make $(or $(MAKECMDGOALS),test) PYTHON=/path/to/python3.11" >&2; \
	fi; \
	exit 1
