# `make demo` runs a whole network on this machine; `make test` passes the tests. Both install what they need into .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
MODEL ?= mnist
SEEDS ?= 200
TEST_PROCESSES ?= 4
export OMP_NUM_THREADS ?= 1
# Hundreds of processes start: none of them should compile what another one has compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check style browser long sim chaos bench wheel clean help

help:
	@echo "make demo [MODEL=mnist|text]  a whole network on this machine, from data to a trained model"
	@echo "make test                     all checks and tests, but those of make long"
	@echo "make long                     networks that need minutes of audits, and the short forms of the benchmarks"
	@echo "make check                    format, lint, types, layers, and tests/tidy: style, documents, contract"
	@echo "make sim [SEEDS=200]          more seeds of the simulation, its worlds in turn"
	@echo "make chaos                    kill, cut off and pause real processes (docs/chaos.md)"
	@echo "make bench                    benchmarks (results in benchmarks/results)"

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "DCNR needs Python 3.11 or later; set PYTHON=python3.11")'
	@$(PYTHON) install.py $(VENV)

demo: $(VENV)/.installed
	@$(BIN)/dcnr demo --model $(MODEL) $(DEMO_FLAGS)

check: style
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/python -m pytest --quiet tests/tidy

style: $(VENV)/.installed
	@$(BIN)/ruff format --check --quiet . || { echo "run: $(BIN)/ruff format ."; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/lint-imports --no-cache

# The dashboard's tests drive a real browser. Debian's is installed where that can be done without asking; elsewhere whoever runs this is told what to do.
browser: $(VENV)/.installed
	@$(BIN)/python -m benchmarks.browser >/dev/null 2>&1 && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing Debian's chromium (once; tests of the dashboard drive it)"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	fi; \
	$(BIN)/python -m benchmarks.browser >/dev/null || echo "without it everything but tests/browser runs"

# Types are checked meanwhile, in what the tests leave of the processor: in a fresh checkout that takes half a minute. There one process also compiles the tests
# for all: each of the others would do it for itself, at the same time.
test: style browser
	@without=; $(BIN)/python -m benchmarks.browser >/dev/null 2>&1 || without="--ignore tests/browser"; \
	nice -n 19 $(BIN)/mypy --no-error-summary & types=$$!; \
	test -d tests/unit/__pycache__ || $(BIN)/python -m pytest tests $$without --collect-only --quiet >/dev/null; \
	$(BIN)/python -m pytest tests $$without --numprocesses $(TEST_PROCESSES) --max-worker-restart 2 --dist loadfile --no-loadscope-reorder; \
	tests=$$?; \
	test -z "$$without" || { echo "NOT RUN, for want of a browser: tests/browser"; $(BIN)/python -m benchmarks.browser; }; \
	wait $$types || { echo "types are wrong: $(BIN)/mypy"; exit 1; }; exit $$tests

long: $(VENV)/.installed
	@$(BIN)/python -m pytest tests -m long

sim: $(VENV)/.installed
	@$(BIN)/python -m simulation --world all --seeds 0:$(SEEDS)

chaos: $(VENV)/.installed
	@$(BIN)/python -m chaos

bench: $(VENV)/.installed
	@$(BIN)/python -m benchmarks

wheel: $(VENV)/.installed
	@$(BIN)/python -m build --wheel --outdir dist .

clean:
	rm -rf .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build *.egg-info
