# SPDX-License-Identifier: BSD-3-Clause
# `make help` lists the targets. None needs a step before it: where python3 can import torch, that
# environment is used; else .venv is made. scripts/environment.py says how.

PYTHON ?= python3
ENVIRONMENT = "$(PYTHON)" scripts/environment.py
GPU := $(wildcard /dev/nvidia0)
# pytest's processes: many where a GPU takes the work and there are cores to feed it.
WORKERS ?= $(if $(GPU),$(shell if [ "$$(nproc)" -ge 16 ]; then echo 14; else echo 2; fi),2)
PART ?= 1/1
PYTEST_ARGS ?=
# The families that are measured, and options for each of them, such as --json results/{family}.json
# More, when they are named: peers (layers, beside other packages' if they are installed), llm (whole
# models likewise), memory; training takes BENCH_ARGS="--model llama" for a whole model.
BENCH ?= affine range fused int8_mm int8_conv int4 grouped packing training lora cpp_calls
BENCH_ARGS ?=
DEMO_ARGS ?=
MINILM_ARGS ?=
# --size gpu: 26 million parameters; --cosine 200: compare gradients; --help lists all
LM_ARGS ?=
# --full: every cell in both dtypes; --only llama: one architecture; --device cuda
ZOO_ARGS ?=
# Hostile calls under the sanitizers; test-all makes fewer of them.
ASAN_CALLS ?= 20000
# What `quick` tests: a folder or a file. Unset: what differs from the last commit.
DIR ?=
# What ARM's Python is to run: -m tests.golden --check
ARM_ARGS ?=

# What `test` and `test-all` share.
CHECK = set -e; py=$$($(ENVIRONMENT) --need test,examples --want lint,tidy,hf,gguf,onnx,peft,interop --bare minilm); \
	"$$py" scripts/lint.py --optional; \
	"$$py" scripts/build.py; \
	"$$py" scripts/check_cuda.py; \
	"$$py" -m pytest -n $(WORKERS) --dist worksteal --durations 10

.DEFAULT_GOAL := help
.PHONY: help demo demo-cpp minilm minilm-few-bits lm quick test test-all zoo serve-check asan tsan arm gpu-sanitize bench figures docs headers \
	build lint tidy format clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

demo: ## train the digits with quantization in the loop: a table, a plot and a JSON
	@set -e; py=$$($(ENVIRONMENT) --need examples); \
	"$$py" scripts/build.py; \
	"$$py" examples/qat_digits.py $(DEMO_ARGS)

demo-cpp: ## the same in C++ alone: train, save, load and serve the digits, with Python's bits
	@set -e; py=$$($(ENVIRONMENT) --need examples); \
	"$$py" scripts/build.py; \
	"$$py" scripts/demo_cpp.py $(DEMO_ARGS)

minilm: ## quantize a sentence encoder, all-MiniLM-L6-v2: a table, a plot and a JSON
	@set -e; py=$$($(ENVIRONMENT) --need examples --bare minilm); \
	"$$py" scripts/build.py; \
	"$$py" examples/smoothquant_minilm.py $(MINILM_ARGS)

minilm-few-bits: ## the same encoder with four and three bits, by every way: some minutes
	@set -e; py=$$($(ENVIRONMENT) --need examples --bare minilm); \
	"$$py" scripts/build.py; \
	"$$py" examples/minilm_few_bits.py $(MINILM_ARGS)

lm: ## train a language model under every scheme and to few bits, an hour: tables, plots and a JSON
	@set -e; py=$$($(ENVIRONMENT) --need examples); \
	"$$py" scripts/build.py; \
	"$$py" examples/language_model.py $(LM_ARGS)

quick: ## the short tests of a folder, without build and lint: DIR=tests/nn; else of what changed
	@set -e; py=$$($(ENVIRONMENT) --need test); \
	"$$py" scripts/quick.py $(DIR)

test: ## lint, build, compile check of CUDA, the short tests: some minutes
	@$(CHECK) -m "not exhaustive" $(PYTEST_ARGS)

test-all: ## the same with every test, docs and tidy; PART=2/4 is the second of four parts
	@$(CHECK) --part $(PART) $(PYTEST_ARGS)
	@case "$(PART)" in 1/*) $(MAKE) --no-print-directory asan gpu-sanitize ASAN_CALLS=3000 \
	&& "$$($(ENVIRONMENT) --want docs)" scripts/docs.py --optional \
	&& "$$($(ENVIRONMENT) --want tidy)" scripts/tidy.py --optional;; esac

zoo: ## whole models under every scheme, some ten minutes; writes docs/models.md
	@set -e; py=$$($(ENVIRONMENT) --need test,examples); \
	"$$py" scripts/build.py; \
	"$$py" -m tests.zoo.torchvision_support; \
	"$$py" -m tests.zoo.run $(ZOO_ARGS)

serve-check: ## serve exported models with vLLM's CPU build: 4 GB and minutes; writes docs/served.md
	@set -e; py=$$($(ENVIRONMENT) --need examples,hf --bare minilm); \
	"$$py" scripts/build.py; \
	"$$py" scripts/serve_check.py

asan: ## short tests and hostile calls under AddressSanitizer and UndefinedBehaviorSanitizer
	@set -e; py=$$($(ENVIRONMENT) --need test); \
	"$$py" scripts/sanitize.py address --calls $(ASAN_CALLS)

tsan: ## eight Python threads under ThreadSanitizer
	@set -e; py=$$($(ENVIRONMENT) --need test); \
	"$$py" scripts/sanitize.py thread

arm: ## build for an ARM of 64 bits and test there under qemu: many minutes
	@set -e; py=$$($(ENVIRONMENT) --need test); \
	"$$py" scripts/arm.py $(ARM_ARGS)

gpu-sanitize: ## every CUDA kernel under NVIDIA's compute-sanitizer, where there is a GPU
	@set -e; py=$$($(ENVIRONMENT) --need test); \
	"$$py" scripts/build.py; \
	"$$py" scripts/gpu_sanitize.py

bench: ## measure the ops against a copy and PyTorch's own, and a training step; BENCH=llm: whole models
	@set -e; py=$$($(ENVIRONMENT) --need bench --want hf); \
	"$$py" scripts/build.py; \
	for family in $(BENCH); do "$$py" -m benchmarks.bench_$$family $(BENCH_ARGS); done

figures: ## write the measured figures into README.md and docs, out of benchmarks/results
	@set -e; py=$$($(ENVIRONMENT)); \
	"$$py" scripts/figures.py

docs: ## the pages and the reference of the API as HTML: build/docs/index.html
	@set -e; py=$$($(ENVIRONMENT) --need docs); \
	"$$py" scripts/build.py; \
	"$$py" scripts/docs.py

headers: ## write what follows from the ops' schemas and texts, and from layers.json: Python, C++, pages
	@set -e; py=$$($(ENVIRONMENT) --need lint); \
	"$$py" scripts/layer_table.py; \
	"$$py" scripts/build.py; \
	"$$py" scripts/ops.py; \
	"$$py" scripts/lint.py --fix

build: ## build libbaraquant.so and baraquant._C in place
	@set -e; py=$$($(ENVIRONMENT)); \
	"$$py" scripts/build.py

lint: ## clang-format, ruff, mypy
	@set -e; py=$$($(ENVIRONMENT) --need lint); \
	"$$py" scripts/lint.py

tidy: ## clang-tidy over the C++ interface and what is behind it: a minute or two
	@set -e; py=$$($(ENVIRONMENT) --need tidy); \
	"$$py" scripts/tidy.py

format: ## format the sources in place
	@set -e; py=$$($(ENVIRONMENT) --need lint); \
	"$$py" scripts/lint.py --fix

clean: ## remove what was built (not .venv)
	rm -rf build dist *.egg-info baraquant/include baraquant/share baraquant/*.so
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
