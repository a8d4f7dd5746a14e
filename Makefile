PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo quick test stress lint docs docs-mkdocs docs-zensical format dist browser clean

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/ready  ## set up, then show what adaptation does on real images
	$(BIN)/cretta demo

# The pure functions, the methods, the adapter as a module, and the words of the pages; the rest takes minutes (make test).
QUICK := $(addprefix tests/,methods metrics storage $(addprefix test_,$(addsuffix .py,buffer docs examples export \
	functional language module options package parameters public_surface reference sampling spelling streams)))

quick: lint  ## set up, then run ruff, mypy and the fast tests of the core: under a minute, once mypy has its cache
	$(BIN)/pytest --numprocesses auto --maxfail 5 -m "not slow and not process" $(addprefix --ignore tests/,methods/test_all.py \
		metrics/test_cost.py) $(QUICK)

test: lint browser  ## set up, then run ruff, mypy and all tests
	$(BIN)/pytest --numprocesses auto

stress: $(VENV)/ready-to-test browser  ## set up, then run the tests repeatedly, also under load: takes hours
	$(BIN)/python scripts/stress.py $(STRESS)

lint: $(VENV)/ready-to-test  ## run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The report page is tested in a real browser if there is one; otherwise these tests are skipped, with the reason.
browser:
	@test -n "$$CHROMIUM" && exit 0; \
	for name in chromium google-chrome google-chrome-stable chromium-browser; do \
		if command -v $$name > /dev/null; then exit 0; fi; \
	done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		echo "installing Chromium, in which the report page is tested"; \
		export DEBIAN_FRONTEND=noninteractive; \
		get="apt-get install --yes --quiet --no-install-recommends chromium"; \
		$$get > /dev/null 2>&1 || { apt-get update --quiet > /dev/null 2>&1 && $$get > /dev/null 2>&1; } \
			|| echo "Chromium could not be installed: tests of the report page will be skipped"; \
	else \
		echo "no Chromium on this machine (set CHROMIUM=/path/to/chromium): tests of the report page will be skipped"; \
	fi

docs: docs-mkdocs docs-zensical  ## build the documentation into site/ without a warning, and again with Zensical

docs-mkdocs: $(VENV)/ready-to-test
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=scripts $(BIN)/mkdocs build --strict --quiet

docs-zensical: $(VENV)/ready-to-test
	SITE=build/zensical PYTHONPATH=scripts $(BIN)/zensical build --strict --clean

format: $(VENV)/ready-to-test  ## fix and format the code with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

dist: $(VENV)/ready  ## build the source archive and both wheels into dist/
	@$(INSTALL) --editable '.[dist]'
	$(BIN)/python scripts/build_dist.py

# Torch first and pinned: an open range could install another build, with all libraries for GPUs.
$(VENV)/ready: pyproject.toml constraints.txt hatch_build.py $(wildcard src/cretta/accelerate/kernels*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cretta needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; choose another one: make PYTHON=python3.12 demo")'
	@echo "setting up $(VENV) (a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) torch
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/ready-to-test: $(VENV)/ready
	@$(INSTALL) --editable '.[test,lint,docs]'
	@touch $@

clean:  ## remove the environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache src/cretta/accelerate/_kernels.so
