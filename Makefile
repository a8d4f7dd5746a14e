PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint format clean

demo: $(VENV)/ready  ## set up, then show what adaptation does on real images
	$(BIN)/cretta demo

test: lint  ## set up, then check everything
	$(BIN)/pytest --numprocesses auto

lint: $(VENV)/ready-to-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/ready-to-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Torch first and pinned: an open range could pull another build, with everything for GPUs.
$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cretta needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; name another, as in: make PYTHON=python3.12 demo")'
	@echo "setting up $(VENV) (a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) torch
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/ready-to-test: $(VENV)/ready
	@$(INSTALL) --editable '.[test,lint]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
