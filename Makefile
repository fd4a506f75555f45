# `make demo` and `make test` need python3 (>= 3.11) and make; everything else is installed into .venv here.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH_NPU := $(VENV)/torch_npu-2.13.0

.PHONY: demo test lint types unit figures clean

$(VENV)/.demo: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("tileguard needs Python 3.11 or newer, found " + sys.version.split()[0] + "; set PYTHON=") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[learn,cpu]'
	@touch $@

$(VENV)/.installed: $(VENV)/.demo  ## torch and triton on top, for the tests alone
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: $(VENV)/.demo  ## train, evaluate, export, then tune four reductions on this machine's CPU
	$(BIN)/tileguard demo --out out/demo

test: lint types unit  ## what CI runs

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

# Never into the environment proper: torch_npu's entry point runs at `import torch` and fails without an NPU's libraries.
$(TORCH_NPU)/.installed: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --upgrade --no-deps --only-binary :all: --target $(TORCH_NPU) torch-npu==2.13.0
	@touch $@

unit: $(VENV)/.installed $(TORCH_NPU)/.installed
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

clean:
	rm -rf $(VENV) build dist out .mypy_cache .pytest_cache .ruff_cache .hypothesis
