PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test stress lint format browser clean

demo: $(VENV)/ready  ## set up, then show what adaptation does on real images
	$(BIN)/cretta demo

test: lint browser  ## set up, then check everything
	$(BIN)/pytest --numprocesses auto

stress: $(VENV)/ready-to-test browser  ## run the tests again and again, also under load; takes hours
	$(BIN)/python scripts/stress.py $(STRESS)

lint: $(VENV)/ready-to-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The report page is looked at in a real browser where one can be had; else those tests are skipped, and say so.
browser:
	@test -n "$$CHROMIUM" && exit 0; \
	for name in chromium google-chrome google-chrome-stable chromium-browser; do \
		if command -v $$name > /dev/null; then exit 0; fi; \
	done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		echo "installing Chromium, to look at the report page in it"; \
		export DEBIAN_FRONTEND=noninteractive; \
		get="apt-get install --yes --quiet --no-install-recommends chromium"; \
		$$get > /dev/null 2>&1 || { apt-get update --quiet > /dev/null 2>&1 && $$get > /dev/null 2>&1; } \
			|| echo "no Chromium to be had: tests of the report page will be skipped"; \
	else \
		echo "no Chromium here (CHROMIUM=/path/to/one names it): tests of the report page will be skipped"; \
	fi

format: $(VENV)/ready-to-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Torch first and pinned: an open range could pull another build, with everything for GPUs.
$(VENV)/ready: pyproject.toml constraints.txt hatch_build.py src/cretta/accelerate/kernels.c
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
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache src/cretta/accelerate/_kernels.so
