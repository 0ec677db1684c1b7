# make demo   sets everything up and shows what natpp does
# make test   sets everything up and runs the tests
# make lint   style, types, and passages that are written twice
# make docs   the site, into site/
# make kernels   the kernels for GPUs under Triton's interpreter (fetches Triton, 300 MB)
# make wheel   builds the wheel, installs it in an empty environment and runs it there
# make oldest   the tests with the oldest torch and other dependencies that natpp promises to work with
# make constraints   writes constraints.txt, with the same versions where they still fit (UPGRADE=--upgrade: the newest)
PYTHON ?= python3
BIN := .venv/bin
NATPP := $(BIN)/natpp

.PHONY: constraints demo docs kernels lint oldest test wheel

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
	$(BIN)/pylint src/natpp experiments examples benchmarks

kernels: .venv/triton
	PYTHONPATH=.venv/triton $(BIN)/python -m pytest tests/kernels

wheel:
	rm -rf build dist
	$(PYTHON) -m venv build/empty
	build/empty/bin/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	build/empty/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.whl
	cd build && empty/bin/natpp optimize darts

# warnings are not errors here: old versions call what newer ones, installed beside them, have deprecated
oldest: .venv/oldest/installed
	.venv/oldest/bin/python -m pytest -W default

constraints: .venv/uv
	PYTHONPATH=.venv/uv $(BIN)/python .ci/constraints.py $(UPGRADE)

.venv/oldest/installed: pyproject.toml
	$(PYTHON) -m venv .venv/oldest
	$(PYTHON) .ci/oldest.py > .venv/oldest/constraints.txt
	.venv/oldest/bin/pip install --quiet --disable-pip-version-check --constraint .venv/oldest/constraints.txt --editable ".[dev]"
	@touch $@

.venv/uv: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade --target $@ uv

.venv/triton: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps --upgrade --target $@ triton

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "natpp needs Python 3.10 or newer: make PYTHON=/path/to/python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@
