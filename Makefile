# `make demo` and `make test` need nothing but Python 3.11 or later; the first of them makes .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-crash lint proto format clean

demo: $(READY)
	$(BIN)/pausefl compare demo --policies pause,random --run-dir runs/demo-$$(date +%Y%m%d-%H%M%S)

# Tests that measure real time run alone, after the others.
test: $(READY)
	$(BIN)/pytest -n 2 -m "not realtime"
	$(BIN)/pytest -m realtime

# kill -9 of server and clients at 300 random instants; `make test` does twenty of them.
test-crash: $(READY)
	PAUSEFL_KILLS=300 $(BIN)/pytest tests/test_crash.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy deploy/grafana
	$(BIN)/lint-imports
	$(BIN)/python tests/check_stubs.py
	$(BIN)/python tests/check_manifests.py

proto: $(READY)
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=proto --mypy_out=proto \
	  --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy pausefl/v1/federation.proto pausefl/v1/evaluation.proto

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
