# Everything a developer does, as one word. `make` alone lists them.

PYTHON ?= python3
BIN := .venv/bin
MODEL ?=
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup serve test lint format types layers docs check soak bench micro pins clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv with everything in it (the others do it, too)
	@command -v "$(PYTHON)" >/dev/null || { echo "setup: no $(PYTHON) here; name one: make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" scripts/setup.py

serve: setup ## serve the demo model, or MODEL=file.gguf; more options by ARGS="--port 8001"
	@exec $(BIN)/onceread serve $(if $(MODEL),--model "$(MODEL)") $(ARGS)

test: setup ## run the tests; some of them by ARGS="tests/cli -k help"
	@$(BIN)/python -m pytest $(ARGS)

lint: setup ## ruff: rules and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: setup ## let ruff put it right
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: setup ## mypy, strict, on src
	@$(BIN)/mypy

layers: setup ## who may import whom
	@$(BIN)/lint-imports

docs: setup ## the documentation as a site, in build/site; warnings are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

check: lint types layers docs test ## all five

soak: setup ## the heavy tests at full scale; writes docs/soak.md
	@$(BIN)/python scripts/soak.py $(ARGS)

bench: setup ## measure against other servers; a short run by ARGS=--quick
	@exec $(BIN)/onceread bench $(ARGS)

micro: setup ## time single operations: match, plan, export, import, disk, a token
	@$(BIN)/python -m pytest bench/micro -q --benchmark-sort=name --benchmark-columns=median,min,max,rounds $(ARGS)

pins: setup ## write constraints.txt again; PYTHONS="python3.10 python3.13"
	@$(BIN)/python scripts/pin.py $(PYTHONS)

clean: ## remove .venv and what the tools left
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
