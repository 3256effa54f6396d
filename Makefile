# Two commands matter to a newcomer: `make demo` and `make test`.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
COMPILES := $(VENV)/.compiles
SHIPPED := $(VENV)-wheel
TEST_CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/hopwell-tests

.DEFAULT_GOAL := help
.PHONY: help demo test check docs test-gpu test-gpu-wheel wheel clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

# The exact versions that are tested live in constraints.txt alone.
# Kept between runs, and apart from the user's own kernels. Not in the clone: the cache refuses to lie
# below a directory that others can write, which a clone under a umask of 002 is.
test check docs: export HOPWELL_CACHE_DIR ?= $(TEST_CACHE)

$(COMPILES): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[compile]'
	touch $@

$(INSTALLED): $(COMPILES)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(COMPILES) ## attention on real input, then the Hopper kernel that would run it
	$(BIN)/hopwell demo

test: check ## what CI runs: style, types, documents, and every test that needs no GPU
	$(BIN)/python -m pytest --numprocesses auto

check: $(INSTALLED) ## style, types and documents alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/generate_docs.py --check

docs: $(INSTALLED) ## write the generated parts of README and docs
	$(BIN)/python scripts/generate_docs.py

test-gpu: $(INSTALLED) ## every test that needs a Hopper GPU; writes a record of what it covered
	$(BIN)/python -m pytest tests/gpu --require-gpu --record benchmarks/records

test-gpu-wheel: ## the GPU tests on the kernels of dist's wheel, in a fresh environment without compiler
	rm -rf $(SHIPPED)
	$(PYTHON) -m venv $(SHIPPED)
	$(SHIPPED)/bin/python -m pip install --quiet --constraint constraints.txt \
	    dist/hopwell-*-py3-none-manylinux*.whl pytest pytest-timeout hypothesis
	! $(SHIPPED)/bin/python -c 'import cutlass' 2>/dev/null
	HOPWELL_CACHE=0 $(SHIPPED)/bin/python -m pytest tests/gpu --require-gpu --expect-source wheel \
	    --ignore tests/gpu/test_variants.py

wheel: $(INSTALLED) ## a wheel that carries every shipped kernel, so that its user compiles nothing
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation
	$(BIN)/python -m hopwell.compile.wheel dist/hopwell-*-py3-none-any.whl

clean: ## remove what the other targets made
	rm -rf $(VENV) $(SHIPPED) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis \
	    $(TEST_CACHE)
