# Every target does its own set-up; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help venv up test hunt soak check format generate bench lock

BIN := .venv/bin
STATE ?=
export STATE

help: ## list every target
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: ## make .venv with orlop, kubectl 1.37 and helm in .venv/bin
	@tools/setup.sh run test kubectl
	@echo "orlop, kubectl and helm are in .venv/bin. To have them on your PATH: . .venv/bin/activate"

up: ## run everything on this machine, as root: pods with scratch folders, driven by kubectl (state in $STATE)
	@tools/up.sh --may-run
	@tools/setup.sh run kubectl
	@tools/up.sh

test: check ## every check: `make check`, then all tests
	@tools/test.sh

hunt: ## the tests $HUNT_RUNS times (10) in random orders, $HUNT_LOADED of them (3) beside four busy loops
	@tools/setup.sh run test kubectl
	@$(BIN)/python tools/hunt.py

soak: ## the random and exhaustive suites with large numbers (up to 40 minutes)
	@tools/setup.sh run test kubectl
	@ORLOP_SOAK=1 tools/test.sh

check: ## lint, types, and generated files compared with what the generators give
	@tools/setup.sh run test kubectl
	@tools/check.sh

format: ## format the code and mend what ruff can mend
	@tools/setup.sh run test
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

generate: ## write the generated files anew
	@tools/setup.sh run test
	@tools/generate.sh

bench: ## the benchmarks, printed as ratios measured in one run
	@tools/setup.sh run test
	@tools/bench.sh

lock: ## resolve the dependencies anew and write the lock files
	@tools/setup.sh run test
	@tools/lock.sh
