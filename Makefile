# make demo   set up and train a small LambdaResNet on real digits
# make test   set up and run the tests
# make test-isa  repeat the tests of numerics and of small trainings without AVX
# make tables check what our models come to against the paper's tables
# make lint   style and types, as CI runs them

VENV := .venv
BIN := $(VENV)/bin
# The first of these that runs and is new enough; name another with make PYTHON=...
CANDIDATES := python3 python3.13 python3.12 python3.11 python
NEW_ENOUGH := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON := $(firstword $(foreach p,$(CANDIDATES),$(shell $(p) -c '$(NEW_ENOUGH)' >/dev/null 2>&1 && echo $(p))))

# Tests of numerics and of small trainings, which the processor and the seed must not decide; none of compilers,
# kernels in an interpreter and tools.
NUMERICS := tests/ops tests/layers tests/models tests/examples \
	$(addprefix tests/training/, test_batch_norm.py test_optimization.py) \
	$(addprefix tests/training/detection/test_, detection_run.py detector.py overfitting.py) \
	$(addprefix --ignore=tests/, ops/test_compiled_operations.py layers/test_compiled_layers.py \
	$(addprefix ops/position/test_, fused_kernels.py kernel_verification.py operators.py) \
	layers/test_tracing.py models/test_model_tracing.py models/test_timm_contract.py)

.PHONY: demo test test-isa tables lint format clean

demo: $(VENV)/demo-ready
	@if [ -f runs/demo/recipe.json ]; then $(BIN)/lambdanets train --resume runs/demo; \
	else $(BIN)/lambdanets train digits --run runs/demo; fi

test: $(VENV)/dev-ready
	$(BIN)/python -m pytest -n 2 --dist loadgroup

test-isa: $(VENV)/dev-ready
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2 TRAINING_SEED=1 \
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(NUMERICS)

tables: $(VENV)/dev-ready
	$(BIN)/lambdanets tables --check

lint: $(VENV)/dev-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/dev-ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) runs/demo

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer with venv found; install one, or name it: make PYTHON=/path/to/python" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# A stamp is written after a whole installation, so that one that broke off is done again.
$(VENV)/demo-ready: pyproject.toml | $(BIN)/python
	@echo "installing what is needed (several minutes the first time: PyTorch is large)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[train]'
	@touch $@

$(VENV)/dev-ready: pyproject.toml | $(BIN)/python
	@echo "installing what is needed (several minutes the first time: PyTorch is large)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
