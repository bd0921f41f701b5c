# `make run` and `make test` do everything on a fresh machine; both are quick the second time.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
# The version that everything is tested with. A machine with its own choice: make TORCH=torch==…
TORCH  ?= torch==2.13.0
SOURCES := pyproject.toml setup.py $(wildcard csrc/*.* csrc/*/*.*)
# pip hides what a build prints, so whether the native operators are there is said here.
SAY_NATIVE = $(BIN)/python -P -c 'from c2v_sim.ops._dispatch import native_missing as why; \
	print("c2v_sim: native operators", "are missing: " + why if why else "are built")'

.PHONY: run test setup lint bench faults soak clean
run: $(VENV)/.installed
	$(BIN)/python -P -m c2v_sim.run $(ARGS)

test: $(VENV)/.test-installed
	$(BIN)/pytest $(ARGS)

# Static checks; .ci/run calls this after the tests.
lint: $(VENV)/.test-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.test-installed
	$(BIN)/pytest bench $(ARGS)

# The long forms of tests/faults: every file call of a run fails once in every way; 2,000 rounds.
faults: $(VENV)/.test-installed
	$(BIN)/python -P tests/faults/driver.py $(ARGS)

soak: $(VENV)/.test-installed
	OMP_NUM_THREADS=1 $(BIN)/python -P tests/faults/soak.py $(ARGS)

setup:
	rm -f $(VENV)/.installed $(VENV)/.test-installed
	$(MAKE) $(VENV)/.installed

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "c2v_sim needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)

# torch first and by exact version: a later resolver would choose another one.
$(VENV)/.torch: | $(BIN)/python
	$(BIN)/pip install $(TORCH) numpy ninja "setuptools>=77" wheel packaging
	touch $@

$(VENV)/.installed: $(SOURCES) $(VENV)/.torch
	$(BIN)/pip install --no-build-isolation -e .
	@$(SAY_NATIVE)
	touch $@

$(VENV)/.test-installed: $(SOURCES) $(VENV)/.torch
	$(BIN)/pip install --no-build-isolation -e ".[test,dev]"
	@$(SAY_NATIVE)
	touch $(VENV)/.installed $@

clean:
	rm -rf $(VENV) build *.egg-info c2v_sim/_C*.so
