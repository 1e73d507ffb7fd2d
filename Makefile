# make demo      install the package and train a small LambdaResNet on scanned digits
# make test      install the package and run most tests of lambdanets
# make test-rest run the others: lambdanets_lab, experiments, compilers, kills and several processes
# make test-isa  run the tests of numerics and of small trainings without AVX
# make docs      build the pages and the reference as a site, build/site/index.html
# make lint      check style, types and the limits of the code
# make format    format the code
# make release   build and check the sdist and all wheels, and print what to type to publish them
# make clean     remove the virtual environment and the demo's run

VENV := .venv
BIN := $(VENV)/bin
# The first of these Pythons that is new enough is used; make PYTHON=... uses another one.
CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11 python
CHECK_VERSION := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON := $(firstword $(foreach p,$(CANDIDATES),$(shell $(p) -c '$(CHECK_VERSION)' >/dev/null 2>&1 && echo $(p))))

# Tests of compilers and of kernels in Triton's interpreter.
COMPILERS := $(addprefix tests/, ops/test_compiled_operations.py \
	$(addprefix ops/position/test_, fused_kernels.py fused_check.py torch_compile.py) \
	layers/test_compiled_layers.py layers/test_tracing.py training/test_compiled_training.py)
PROCESSES := $(addprefix tests/, ops/position/test_native_safety.py training/test_distributed.py training/test_kills.py)
REST := tests/lab tests/experiments $(COMPILERS) $(PROCESSES)

# Tests of numerics and of small trainings, which must pass on any processor and with any seed.
NUMERICS := tests/ops tests/layers tests/models tests/examples/test_examples.py tests/training/segmentation \
	$(addprefix tests/training/, test_batch_norm.py test_optimization.py detection/test_overfitting.py) \
	--deselect tests/ops/position/test_native_safety.py::test_sanitizers_find_no_errors_in_random_problems \
	$(addprefix --ignore=, $(COMPILERS) $(addprefix tests/models/test_, timm_contract.py surgery.py weights.py))

PYTEST := $(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder --max-worker-restart 0

INSTALLING := installing the package and its dependencies into $(VENV): about 3 GB to download if pip chooses PyTorch \
	with CUDA, as on Linux; docs/install.md has the way to PyTorch for CPUs only (about 200 MB). \
	An interrupted installation continues with the same command.

# The first pip that installs dependency groups. uv makes environments without pip.
NEW_PIP := 'pip>=25.1'
HAVE_PIP := $(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check

.PHONY: demo test test-rest test-isa docs lint format release clean

demo: $(VENV)/$(if $(wildcard $(VENV)/dev-ready),dev,demo)-ready
	@if [ -f runs/demo/recipe.json ]; then $(BIN)/lambdanets train --resume runs/demo; \
	else $(BIN)/lambdanets train digits --run runs/demo; fi

test: $(VENV)/dev-ready
	$(PYTEST) $(addprefix --ignore=, $(REST))

test-rest: $(VENV)/dev-ready
	$(PYTEST) $(REST)

test-isa: $(VENV)/dev-ready
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2 TRAINING_SEED=1 \
	$(PYTEST) $(NUMERICS)

docs: $(VENV)/dev-ready
	$(BIN)/python dev/docs_sources.py build/docs
	$(BIN)/zensical build --strict

lint: $(VENV)/dev-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python dev/bars.py

format: $(VENV)/dev-ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

release: $(VENV)/release-ready
	$(BIN)/python dev/release.py

clean:
	rm -rf $(VENV) runs/demo build dist

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or newer with venv must be installed, found none; install it, or run make PYTHON=/path/to/python" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# The files *-ready are written after an installation, so an interrupted installation is repeated.
$(VENV)/demo-ready: pyproject.toml | $(BIN)/python
	@echo "$(INSTALLING)"
	@$(HAVE_PIP)
	$(PIP_INSTALL) --editable '.[train]'
	@touch $@

$(VENV)/dev-ready: pyproject.toml $(wildcard native/*.c native/*.h native/*.py) | $(BIN)/python
	@echo "$(INSTALLING)"
	@$(HAVE_PIP)
	$(PIP_INSTALL) $(NEW_PIP)
	$(PIP_INSTALL) --no-compile --editable '.[detection,export,demo]' --group dev
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1 || true  # pip uses one core; some tests are invalid
	@touch $@

$(VENV)/release-ready: pyproject.toml | $(BIN)/python
	@$(HAVE_PIP)
	$(PIP_INSTALL) $(NEW_PIP)
	$(PIP_INSTALL) --quiet --group release
	@touch $@
