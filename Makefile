# SPDX-License-Identifier: BSD-3-Clause
# `make help` lists the targets. None needs a step before it: where python3 can import torch, that
# environment is used; else .venv is made. scripts/environment.py says how.

PYTHON ?= python3
ENVIRONMENT = "$(PYTHON)" scripts/environment.py
# pytest's processes: many where a GPU takes the work and there are cores to feed it.
WORKERS ?= $(shell if [ -e /dev/nvidia0 ] && [ "$$(nproc)" -ge 16 ]; then echo 14; else echo 2; fi)
PYTEST_ARGS ?=
# The families that are measured, and options for each of them, such as --json results/{family}.json
BENCH ?= affine qparams int8_mm training
BENCH_ARGS ?=
DEMO_ARGS ?=
MINILM_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo minilm test bench build lint format clean

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

demo: ## train the digits with quantization in the loop: a table, a plot and a JSON
	@set -e; py=$$($(ENVIRONMENT) --need examples); \
	"$$py" scripts/build.py; \
	"$$py" examples/qat_digits.py $(DEMO_ARGS)

minilm: ## quantize a sentence encoder, all-MiniLM-L6-v2: a table, a plot and a JSON
	@set -e; py=$$($(ENVIRONMENT) --need examples --bare minilm); \
	"$$py" scripts/build.py; \
	"$$py" examples/smoothquant_minilm.py $(MINILM_ARGS)

test: ## lint, build, compile check of CUDA, all tests
	@set -e; py=$$($(ENVIRONMENT) --need test,examples --want lint --bare minilm); \
	"$$py" scripts/lint.py --optional; \
	"$$py" scripts/build.py; \
	"$$py" scripts/check_cuda.py; \
	"$$py" -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

bench: ## measure the ops against a device copy and PyTorch's own, and a training step
	@set -e; py=$$($(ENVIRONMENT) --need bench); \
	"$$py" scripts/build.py; \
	for family in $(BENCH); do "$$py" benchmarks/bench_$$family.py $(BENCH_ARGS); done

build: ## build libbaraquant.so and baraquant._C in place
	@set -e; py=$$($(ENVIRONMENT)); \
	"$$py" scripts/build.py

lint: ## clang-format, ruff, mypy
	@set -e; py=$$($(ENVIRONMENT) --need lint); \
	"$$py" scripts/lint.py

format: ## format the sources in place
	@set -e; py=$$($(ENVIRONMENT) --need lint); \
	"$$py" scripts/lint.py --fix

clean: ## remove what was built (not .venv)
	rm -rf build dist *.egg-info baraquant/include baraquant/share baraquant/*.so
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
