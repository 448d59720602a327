# `make demo` and `make test` need nothing but Python 3.11 or later; the first of them makes .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PLUGINS := $(wildcard plugins/*)
LIGHT := $(filter-out plugins/pausefl-hf,$(PLUGINS)) # it brings thirty packages; its tests are skipped without them

# TORCH_INDEX_URL names PyTorch's own index of CPU builds; the package index's build may bring several GB of CUDA.
TORCH := $(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL))

.PHONY: demo test test-slow docs coverage test-pythons test-package test-floors test-crash test-fleet test-cluster test-containers chaos fuzz mutants gpu gpu-wheels figures figures-gpu lint proto format clean up down logs images results results-page wheelhouse benchmarks

demo: $(READY)
	$(BIN)/pausefl compare demo --policies pause,random --run-dir runs/demo-$$(date +%Y%m%d-%H%M%S)

# Tests that measure real time run alone, after the others; their files are named, as importing all takes 15 s.
test: $(READY)
	$(BIN)/pytest -n 3 --dist worksteal -m "not realtime and not slow"
	$(BIN)/pytest -m realtime $$(grep -rl --include 'test_*.py' 'mark\.realtime' tests plugins)

# Whole runs that take long; each has a shorter test of the same beside it in `make test`. `make test-fleet` plays a day, `make test-cluster` sweeps.
test-slow: $(READY)
	$(BIN)/pytest -n 2 --timeout 600 -m slow --ignore tests/whole_runs/test_day_of_a_fleet.py --ignore tests/cluster

# How much of the code the quick tests run, processes that they start included; pages in build/coverage/html.
COVERED ?= tests plugins
coverage: $(READY)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q -n 2 -m "not realtime and not slow" $(COVERED)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage html --quiet
	$(BIN)/coverage report

# The quick tests under every Python that is here, each in a virtual environment of its own (.venv-3.12, ...).
PYTHONS ?= 3.11 3.12 3.13
FIND_PYTHON = for one in $$HOME/.pyenv/versions/$$version.*/bin/python3 python$$version; do \
  "$$one" -c 'import sqlite3' && echo "$$one"; done 2> /dev/null | tail -n 1
test-pythons:
	@for version in $(PYTHONS); do \
	  python=$$($(FIND_PYTHON)); \
	  if test -z "$$python"; then echo "Python $$version: skipped, not installed"; continue; fi; \
	  echo "Python $$version: $$python"; \
	  test -d .venv-$$version || "$$python" -m venv .venv-$$version || exit 1; \
	  .venv-$$version/bin/pip install --quiet $(TORCH) --constraint constraints.txt --editable '.[dev]' $(LIGHT:%=--editable %) || exit 1; \
	  .venv-$$version/bin/pytest -q -n 2 -m "not realtime and not end_to_end and not slow" || exit 1; \
	done

# Wheel and sdist in fresh environments outside the repository: every command once, under the oldest and the newest
# Python that is here, with exact versions and with the newest; some ten minutes and 7 GB, less with TORCH_INDEX_URL.
test-package: $(READY)
	$(BIN)/python tests/check_package.py $$(for version in $(PYTHONS); do $(FIND_PYTHON); done)

# A run, a comparison and a report on the oldest versions that pyproject.toml allows; 6 GB in build/floors.
test-floors: $(READY)
	$(BIN)/python tests/check_floors.py build/floors

# A day of ten staying clients in a minute or two: three runs, a server killed twice, a link cut, an evaluator stopped, a client
# locked out. For root with `ip`, clients have network namespaces; for others they are processes of this machine.
# FLEET_CLIENTS=4 is shorter.
test-fleet: $(READY)
	$(BIN)/pytest -s --timeout 1500 -m slow tests/whole_runs/test_day_of_a_fleet.py

# A sweep on Slurm (Debian's slurm-wlm and munge, daemons of its own) and on Dask, each with two workers: jobs are killed,
# preempted and out of time, and the results are those of this machine to the last bit; some five minutes.
test-cluster: $(READY)
	$(BIN)/pytest -s -m slow tests/cluster

# kill -9 of server and clients at 300 random instants; `make test` does twenty of them.
test-crash: $(READY)
	PAUSEFL_KILLS=300 $(BIN)/pytest tests/whole_runs/test_crash.py

# Whole runs under 10,000 faults (kill -9, stops, a bad line, a full disk, clock jumps, storms): about an hour, less with
# FAULTS=1000. `make chaos GO_ON=--go-on` goes on where an interrupted one stopped. Writes docs/results/chaos.jsonl.
FAULTS ?= 10000
chaos: $(READY)
	$(BIN)/python tests/chaos --faults $(FAULTS) $(GO_ON)

# A million malformed messages against a server that plays meanwhile, a fifth of them against clients; half an hour.
# Writes docs/results/fuzz.json, also when interrupted; `make test` sends a few thousand.
FUZZ_MESSAGES ?= 1000000
fuzz: $(READY)
	$(BIN)/python tests/fuzz --messages $(FUZZ_MESSAGES) --client-messages $$(($(FUZZ_MESSAGES) / 5))
	$(BIN)/python docs/generated_tables.py

# docs/results.md from the summaries of reproductions kept there: make results-page DIRS="runs/reproduce-fig2" keeps more.
results-page: $(READY)
	$(BIN)/python docs/write_results.py $(DIRS)

# pausefl beside Flower and raw sockets, on a machine that does nothing else; some 20 minutes, the first time longer:
# environments of 4 GB in build/benchmarks. `make benchmarks GO_ON=--go-on` goes on where an interrupted one stopped.
benchmarks: $(READY)
	$(BIN)/python -m benchmarks $(GO_ON)
	$(BIN)/python docs/generated_tables.py

# All that only a GPU can show, on a machine with CUDA; some 5 minutes. Writes docs/results/gpu.json and docs/gpu.png.
# A machine that has its own torch, and no network, needs what `make gpu-wheels` writes on another one with the same
# version of Python.
GPU_WHEELS := build/gpu-wheels
SOURCES := $(subst $() ,:,$(addprefix $(CURDIR)/,client server proto emulator process $(PLUGINS)))
ifeq ($(wildcard $(GPU_WHEELS)),)
gpu: $(READY)
	$(BIN)/python -m benchmarks.gpu
else
gpu:
	$(PYTHON) -m pip install --quiet --no-index --no-deps --upgrade --target build/gpu-site $(GPU_WHEELS)/*.whl
	PYTHONPATH=$(SOURCES):$(CURDIR)/build/gpu-site $(PYTHON) -m benchmarks.gpu
endif

gpu-wheels:
	$(PYTHON) deploy/requirements.py pyproject.toml server client report bench | grep -v '^torch' | \
	  $(PYTHON) -m pip download --quiet --only-binary :all: --constraint constraints.txt --dest $(GPU_WHEELS) \
	  --requirement /dev/stdin hypothesis pytest pytest-asyncio pytest-timeout
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir $(GPU_WHEELS) .

# Plays what docs/results.md still lacks, run by run, and writes the page; it goes on where it was interrupted.
# `make figures NAMES=fedts-fig7 JOBS=2` plays one figure, `make figures FROM=FILE` takes over what another machine played.
JOBS ?= 1
figures: $(READY)
	$(BIN)/python -m benchmarks.figures $(NAMES) $(if $(FROM),--merge $(FROM),--jobs $(JOBS))

# The same on a machine that is lent for so long and may have no network (`make gpu-wheels`): as many runs as fit, on
# its GPU or its processor, whichever takes less; FROM is $OUT/figures.jsonl then, or build/figures.jsonl.
LIMIT ?= 13m
GPU_JOBS ?= 16
figures-gpu:
	$(if $(wildcard $(GPU_WHEELS)),$(PYTHON) -m pip install --quiet --no-index --no-deps --upgrade --target build/gpu-site $(GPU_WHEELS)/*.whl)
	OMP_NUM_THREADS=1 PYTHONPATH=$(SOURCES):$(CURDIR)/build/gpu-site timeout --signal=INT --kill-after=20 $(LIMIT) \
	  $(PYTHON) -m benchmarks.figures $(NAMES) --jobs $(GPU_JOBS) --device fastest --out $${OUT:-build}/figures.jsonl

# Real containers on a real engine: many minutes the first time.
test-containers: $(READY)
	PAUSEFL_CONTAINERS=1 $(BIN)/pytest -s tests/deploy/test_container_run.py

# Break privacy in some forty ways, one at a time, and see that audits or tests notice: some 20 minutes. Writes
# benchmarks/privacy-mutants.md.
mutants: $(READY)
	$(BIN)/python tests/mutants

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy deploy/grafana deploy/compose.py deploy/compose_settings.py deploy/read_runs.py deploy/requirements.py
	$(BIN)/mypy examples
	$(BIN)/lint-imports
	$(BIN)/towncrier build --draft --version next > /dev/null
	$(BIN)/python tests/check_stubs.py
	$(BIN)/python tests/check_manifests.py

# The documents as pages in build/docs; a broken link or anchor is an error.
docs: $(READY)
	$(BIN)/python docs/stage_site.py build/docs-source
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

proto: $(READY)
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=proto --mypy_out=proto \
	  --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy pausefl_proto/v1/federation.proto pausefl_proto/v1/evaluation.proto

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Containers of one server and many clients, and what watches them: CLIENTS=30 make up (deploy/README.md).
up down logs images results:
	@$(PYTHON) deploy/compose.py $@

# Everything that images install, for builds without a network: PIP_NO_INDEX=1 make up.
wheelhouse: FOR ?= cpu
wheelhouse:
	$(PYTHON) deploy/requirements.py pyproject.toml build server client evaluator report | $(PYTHON) -m pip download \
	  --only-binary :all: --constraint constraints.txt --dest deploy/wheelhouse/$(FOR) --requirement /dev/stdin \
	  $(TORCH)

clean:
	rm -rf .venv .venv-* build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet $(TORCH) --constraint constraints.txt --editable '.[dev]' $(LIGHT:%=--editable %)
	touch $@
