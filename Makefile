# Needs python3 (3.11 or newer), make and a package index; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
TORCH := $(shell grep '^torch==' constraints.txt)

# The modules whose annotations are checked at run time, shape by shape, and the tests of those modules.
SHAPED := stages kernels ladder layers
SHAPED_TESTS := $(wildcard $(foreach name,$(SHAPED),tests/$(name) tests/test_$(name).py))
# These go over the same calls thousands of times, and are run unchecked below.
SHAPED_LESS := --ignore=tests/kernels/test_agreement.py --ignore=tests/kernels/test_hidden.py
EMPTY :=
COMMA := ,
SHAPED_MODULES := $(subst $(EMPTY) ,$(COMMA),$(SHAPED:%=clearhead.%))

MAKEFLAGS += --no-print-directory
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONNOUSERSITE := 1
unexport PYTHONPATH

# `test` means lint first and tests last, whatever -j says.
.NOTPARALLEL:
.PHONY: demo test lint bench setup

demo: setup
	@$(VENV)/bin/clearhead show "The animal didn't cross the street because it was too tired"

test: setup lint
ifneq ($(SHAPED_TESTS),)
	@echo "test: $(SHAPED), with every shape checked at run time"
	@$(RUN) -m pytest --quiet --jaxtyping-packages=$(SHAPED_MODULES),beartype.beartype $(SHAPED_LESS) $(SHAPED_TESTS)
endif
	@echo "test: everything"
	@$(RUN) -m pytest

lint: setup
	@echo "lint: format"
	@$(RUN) -m ruff format --check --quiet
	@echo "lint: rules"
	@$(RUN) -m ruff check --quiet
	@echo "lint: types"
	@$(RUN) -m pyright

bench: setup
	@$(RUN) -m benchmarks

setup: $(READY)

# An environment of the same Python is brought up to date in place; any other is made anew.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("clearhead needs Python 3.11 or newer; this is " + sys.version)'
	@if [ "$$($(RUN) -c 'import pip, sys; print(sys.version)' 2>&1)" = "$$($(PYTHON) -c 'import sys; print(sys.version)')" ]; \
		then echo "setup: using the environment in $(VENV)"; \
		else echo "setup: making $(VENV) with $$($(PYTHON) -V)"; $(PYTHON) -m venv --clear $(VENV); fi
	@echo "setup: installing $(TORCH)"
	@$(RUN) -m pip install -qq "$(TORCH)"
	@echo "setup: installing clearhead and its tools"
	@$(RUN) -m pip install -qq --constraint constraints.txt --editable '.[dev]'
	@touch $@
