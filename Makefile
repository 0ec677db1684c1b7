# make demo   sets everything up and shows what natpp does
# make test   sets everything up and runs the tests
# make lint   style and types
# make docs   the site, into site/
# make kernels   the kernels for GPUs under Triton's interpreter (fetches Triton, 300 MB)
PYTHON ?= python3
BIN := .venv/bin
NATPP := $(BIN)/natpp

.PHONY: demo docs test lint kernels

demo: .venv/installed
	@mkdir -p demo
	@echo "# NAONet, and what the policy that ships makes of it"
	@$(NATPP) optimize naonet --out demo/naonet.json
	@echo "# pictures"
	@$(NATPP) show demo/naonet.json --against naonet -o demo/naonet.svg
	@$(NATPP) show demo/naonet.json --view network -o demo/network.png
	@ls demo/*

test: .venv/installed
	$(BIN)/python -m pytest

docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

kernels: .venv/triton
	PYTHONPATH=.venv/triton $(BIN)/python -m pytest tests/kernels

.venv/triton: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps --upgrade --target $@ triton

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "natpp needs Python 3.10 or newer: make PYTHON=/path/to/python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@
