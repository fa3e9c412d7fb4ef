# `make demo` and `make test` work from a fresh clone: they need Python >= 3.10 and a C++ compiler, and do the rest.
# PYTHON=python3.12 picks the interpreter, TORCH=2.12.0 another torch, ARGS=... goes to pytest.

PYTHON ?= python3
TORCH ?= 2.13.0
ARGS ?=
# A set-up without the compiled core would test something else; NANSCAN_REQUIRE_NATIVE=0 accepts plain PyTorch.
NANSCAN_REQUIRE_NATIVE ?= 1

VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check -qq
DEPS := $(VENV)/.deps-torch-$(TORCH)
CORE := $(VENV)/.core-torch-$(TORCH)

.PHONY: all setup demo test lint format bench cuda-build-check clean

all: setup
setup: $(CORE)

demo: setup
	$(VENV)/bin/nanscan demo

# The pytest script, never `python -m pytest`: that puts the repository root on sys.path (CONTRIBUTING.md, "Names").
# A file's tests stay in one process: they share what it builds. JOBS=0 runs all of them in this one.
JOBS ?= auto
test: setup
	$(VENV)/bin/pytest -n $(JOBS) --dist loadfile $(ARGS)

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/pytest -q tests/packaging/test_floors.py

format: setup
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

# Exit code 2 is a benchmark of a device that is not here: it says so, and the next one runs.
bench: setup
	for file in benchmarks/bench_*.py; do \
	  echo "== $$file"; $(VENV)/bin/python $$file; code=$$?; [ $$code = 0 ] || [ $$code = 2 ] || exit 1; \
	done

# Against a CUDA build of torch, in an environment of its own under build/ that is removed again: 5.5 GB for 5 minutes.
cuda-build-check:
	benchmarks/cuda_build_check.sh

clean:
	rm -rf $(VENV) build dist *.egg-info nanscan/_C*.so nanscan/libnanscan_cuda.so

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed; PYTHON=... names one")'
	@echo "setting up $(VENV): torch $(TORCH) and the tools (a minute or two, once)"
	@$(PYTHON) -m venv $(VENV)

# torch by itself and first: the second command then finds it there and leaves it alone.
$(DEPS): pyproject.toml setup.py | $(VENV)/bin/python
	@rm -f $(VENV)/.deps-* $(VENV)/.core-*
	@$(PIP) install torch==$(TORCH) 'setuptools>=77'
	@NANSCAN_BUILD=none NANSCAN_REQUIRE_NATIVE=0 $(PIP) install --no-build-isolation -e '.[dev]'
	@touch $@

# ninja compiles only what changed; its objects stay under build/. The folders are listed for files that went away.
$(CORE): $(DEPS) nanscan/_build.py $(shell find csrc -type d -o -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
	@echo "compiling the core (a minute or two from nothing)"
	@NANSCAN_REQUIRE_NATIVE=$(NANSCAN_REQUIRE_NATIVE) $(VENV)/bin/python setup.py -q build_ext --inplace
	@touch $@
