# Two commands do everything on a fresh machine: `make demo` and `make test`.
#
#   make PYTHON=/path/to/python3.11 test    with another Python
#   make WORKERS=8 test                     on more cores

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
WORKERS ?= 2
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test venv lint docs notebooks perf clean

demo: $(STAMP)
	$(BIN)/msd demo --keep demo-corpus
	$(BIN)/python docs/examples/train_ddp.py --serve demo-corpus/corpus.yaml --ranks 2 --steps 20

test: $(STAMP)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

venv: $(STAMP)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: $(STAMP)
	$(BIN)/python -m sphinx -E -W --keep-going -q -c docs . build/docs
	@echo "open build/docs/index.html"

notebooks: $(STAMP)
	$(BIN)/python .ci/notebooks.py notebooks

perf: $(STAMP)
	$(BIN)/python perf/bench_plan.py
	$(BIN)/python perf/bench_fill.py
	$(BIN)/python perf/bench_local.py

clean:
	rm -rf $(VENV) demo-corpus build dist

$(STAMP): pyproject.toml .ci/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "msd needs Python 3.11 or newer, found " + sys.version.split()[0] + "; try: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): silent for some minutes"
	$(BIN)/python -m pip install --quiet -c .ci/constraints.txt -e '.[torch,hf,dev,docs]'
	@touch $@
