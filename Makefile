# `make run` and `make test` do everything on a fresh machine; both are quick the second time.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
# The version that everything is tested with. A machine with its own choice: make TORCH=torch==…
TORCH  ?= torch==2.13.0
SOURCES := pyproject.toml setup.py $(wildcard csrc/*.* csrc/*/*.* csrc/*/*/*.*)
# pip hides what a build prints, so whether the native operators are there is said here.
SAY_NATIVE = $(BIN)/python -P -c 'from c2v_sim.ops._dispatch import native_missing as why; \
	print("c2v_sim: native operators", "are missing: " + why if why else "are built")'

.PHONY: run test setup lint bench docs wheel fuzz oldest newest audit faults soak clean
run: $(VENV)/.installed
	$(BIN)/python -P -m c2v_sim.run --beside-original $(ARGS)

# Files of tests side by side, one process a core but at most four: each takes up to 3 GB.
test: $(VENV)/.test-installed
	$(BIN)/pytest -n logical --maxprocesses 4 --dist loadfile $(ARGS)

# Static checks; .ci/run calls this after the tests.
lint: $(VENV)/.test-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.test-installed
	$(BIN)/pytest bench $(ARGS)

# The site of the documents, in build/site; a link that leads nowhere is an error.
docs: $(VENV)/.test-installed
	$(BIN)/mkdocs build --strict

# sdist and wheel, in dist/. The wheel is built from the sdist, so what that lacks is noticed; with
# the CPU build of torch it holds the CPU operators and fits every torch from 2.10 on.
wheel: $(VENV)/.test-installed
	$(BIN)/python -P -m build --no-isolation

# The long form of the nets over commands and files: every damaged file, 20,000 commands, and the
# readers under a fuzzer that is guided by coverage, SECONDS each.
SECONDS ?= 60
fuzz: $(VENV)/.test-installed
	$(BIN)/pip install -q "atheris>=3"
	$(BIN)/pytest tests/test_command_line.py tests/ops/test_ptx_kernels.py --hypothesis-profile long
	rm -rf build/files && mkdir -p build/files
	PYTHONPATH=tests/support $(BIN)/python -P tests/support/file_net.py build/files
	PYTHONPATH=tests/support $(BIN)/python -P tests/support/fuzz_readers.py $(SECONDS)

# The oldest versions of all dependencies that pyproject.toml allows, in an environment of its own.
OLDEST := .venv-oldest
TRIED  := report tensorboard huggingface mlflow wandb
QUICK = tests/system tests/data/test_partition.py tests/data/test_image_folders.py \
	tests/run/test_checkpoint.py tests/index/test_client_index.py tests/models/test_pretrained.py \
	tests/run/trackers/test_tensorboard.py tests/run/test_resume.py tests/report/test_report.py
oldest:
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install $(TORCH) ninja "setuptools>=77" wheel packaging
	$(PYTHON) tests/support/oldest_versions.py $(TRIED) > $(OLDEST)/pins.txt
	$(OLDEST)/bin/pip install -r $(OLDEST)/pins.txt hypothesis==6.100 pytest==8.0
	$(OLDEST)/bin/pip install --no-build-isolation --no-deps -e .
	$(OLDEST)/bin/pytest $(QUICK) tests/run/trackers tests/data/test_huggingface.py $(ARGS)

# The newest torch of the index (gigabytes: a CUDA build), in an environment of its own, and the
# package from its sdist, so that the checkout keeps its native operators. With an nvcc of torch's
# CUDA version the CUDA sources are built too (CUDA_HOME). The registers that another Triton's
# compiler spills are not asked for.
NEWEST     := .venv-newest
NEW_TORCH  ?= torch
newest:
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/pip install --upgrade $(NEW_TORCH) ninja "setuptools>=77" wheel packaging build
	rm -rf build/newest && $(NEWEST)/bin/python -P -m build --no-isolation --sdist -o build/newest
	$(NEWEST)/bin/pip install --no-build-isolation --force-reinstall --no-deps build/newest/*.tar.gz
	$(NEWEST)/bin/pip install "c2v_sim[report,tensorboard]" "hypothesis>=6.100" "pytest>=8"
	$(NEWEST)/bin/python -P -m c2v_sim.doctor
	$(NEWEST)/bin/pytest $(QUICK) tests/ops --ignore tests/ops/test_aot.py $(ARGS)

# Asks the package index's database of known vulnerabilities, so it needs the network.
audit: $(VENV)/.test-installed
	$(BIN)/pip install -q "pip-audit>=2.7"
	$(BIN)/python -P tests/support/audit.py

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
	$(BIN)/pip install --no-build-isolation -e ".[report]"
	@$(SAY_NATIVE)
	touch $@

$(VENV)/.test-installed: $(SOURCES) $(VENV)/.torch
	$(BIN)/pip install --no-build-isolation -e ".[test,dev]"
	@$(SAY_NATIVE)
	touch $(VENV)/.installed $@

clean:
	rm -rf $(VENV) build *.egg-info c2v_sim/_C*.so
