# Works with GNU make 3.81 (macOS) and later, and any POSIX shell.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt
PEERS := $(PIP) --no-deps --only-binary :all:
WORKERS ?= 2
SYSTEM := postgresql chromium
SHORT := --model cnn-small --method adv-1 --method atlas-1 --repeats 3
PYTEST := OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest

.PHONY: help demo docs bench wheel test test-slow audit lint format clean

help: ## what can be made (this text)
	@echo "ATLAS: make TARGET. The first target that needs it sets up $(VENV); later ones install nothing."
	@echo
	@grep -E '^[a-z-]+:.* ## ' Makefile | sed 's/:.* ## /|/' | awk -F'|' '{ printf "  make %-10s %s\n", $$1, $$2 }'
	@echo
	@echo "Another Python: make demo PYTHON=python3.12 (3.11 or later; remove $(VENV) first to change it)."

demo: $(VENV)/.core ## train three methods on embedded MNIST, attack them, write a report
	OMP_WAIT_POLICY=$${OMP_WAIT_POLICY:-passive} $(BIN)/atlas demo

docs: $(VENV)/.dev ## the documentation site, in build/docs; no network is needed to read it
	$(BIN)/python -m sphinx -q -W --keep-going -d build/doctrees docs build/docs
	@echo "open build/docs/index.html"

bench: $(VENV)/.dev ## a short version of every benchmark, in about two minutes
	$(BIN)/python -m benchmarks step $(SHORT)
	$(BIN)/python -m benchmarks peers $(SHORT)
	$(BIN)/python -m benchmarks attack --weights results/mnist/quick-atlas-1 --data mnist-mini --n 32 --budget 0.02 \
	  --attack pgd --attack autoattack --repeats 1
	$(BIN)/python -m benchmarks scale $(SHORT)
	$(BIN)/python -m benchmarks growth --model cnn-small --batch 16 --batch 64 --width wrn-10-1 --repeats 1
	$(BIN)/python -m benchmarks time demo-adv-1 demo-atlas-1 --set training.schedule.epochs=1 \
	  --set training.schedule.ramp_epochs=0 --out runs/bench

wheel: $(VENV)/.core ## the package, in dist
	rm -rf dist
	$(BIN)/python -m pip --disable-pip-version-check wheel -q --no-deps -w dist .
	@ls dist/*.whl

test: lint ## everything that has to hold: style, types, all tests but the slow ones
	@scripts/system_packages.sh $(SYSTEM)
	$(PYTEST) -n $(WORKERS)

test-slow: $(VENV)/.dev ## the tests that need the full data or minutes of time
	$(PYTEST) -m slow --timeout 7200

audit: ## ask the database of advisories about every pinned version; needs the network
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/pip --disable-pip-version-check install pip-audit
	$(VENV)-audit/bin/pip-audit -r constraints.txt --no-deps --disable-pip

lint: $(VENV)/.dev ## style and types, nothing changed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev ## put the style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what make and the tests wrote; runs/ stays
	rm -rf $(VENV) $(VENV)-audit build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src benchmarks scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written last, so an interrupted install starts again.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "ATLAS needs Python 3.11 or later, and '$(PYTHON)' is not that:" \
	    "install one and name it, for example: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: $(VENV)/.created pyproject.toml constraints.txt
	$(PIP) torch==2.13.0
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.core $(VENV)/.peers
	$(PIP) -e '.[dev]'
	@touch $@

# Where one peer cannot be had, the others still come, and its tests are skipped by name.
$(VENV)/.peers: $(VENV)/.core peers.txt
	$(PEERS) -r peers.txt || sed '/^#/d' peers.txt | while read -r peer; do $(PEERS) "$$peer" || \
	  echo "$$peer cannot be had: its tests will be skipped (to try again: rm $@)" >&2; done
	@touch $@
