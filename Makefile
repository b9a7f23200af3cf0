# GistGate. Every target creates the environment when it is missing or out of date; nothing else has to be typed.

PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
VLLM := .venv-vllm
PORT ?= 5000

# DVC looks up `python` on PATH, so the environment comes first.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export HF_HUB_OFFLINE ?= 1
export HF_DATASETS_OFFLINE ?= 1
export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM ?= false
export MLFLOW_DISABLE_TELEMETRY := true
export DO_NOT_TRACK := true
export DVC_NO_ANALYTICS := 1
export GIT_PYTHON_REFRESH := quiet

.DEFAULT_GOAL := help
.PHONY: help install repro test test-all test-vllm quality docs smoke gpu ui

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 11

install: $(STAMP)  ## create the environment, or bring it up to date

# DVC runs one stage after the other; stages that do not need each other share the cores here, two at a time.
repro: $(STAMP)  ## run the whole pipeline: train the pair, label, train gates, calibrate, evaluate, benchmark, export
	dvc repro features@gated features@strict
	for stages in head@ 'datastore|segments' calibrate@ 'evaluate@|plain'; do \
		dvc stage list --name-only | grep -E "^($$stages)" | OMP_NUM_THREADS=1 xargs -n 1 -P 2 dvc repro -s || exit 1; done
	dvc repro

test: $(STAMP)  ## run the fast tests, two at a time
	OMP_NUM_THREADS=1 pytest -n 2 --dist worksteal -m "not slow and not long and not vllm and not gpu"

test-all: $(STAMP)  ## run all tests but those that need vLLM or a GPU
	OMP_NUM_THREADS=1 pytest -n 2 --dist worksteal -m "not long and not vllm and not gpu"

test-vllm: $(VLLM)/.installed  ## run the tests that serve with vLLM, in an environment of their own
	$(VLLM)/bin/python -m pytest -q -m vllm tests/vllm

quality: $(STAMP)  ## check style and types: the gate of every commit
	ruff check .
	ruff format --check .
	mypy gistgate pipeline

docs: $(STAMP)  ## build the documentation as a site into site/, with all links checked; open site/index.html
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict

smoke: $(STAMP)  ## run every stage on tiny sizes in a temporary copy
	xargs dvc exp run --temp < params/smoke.txt

gpu: $(STAMP)  ## on a machine with a GPU: compare its ids with those of the CPU, and time the parts of a round there
	pytest -q -m gpu tests/gpu
	python -m benchmarks.gpu

ui: $(STAMP)  ## show the tracked runs on http://127.0.0.1:5000 (PORT=... for another one)
	mlflow server --host 127.0.0.1 --port $(PORT) \
		--backend-store-uri "$${MLFLOW_TRACKING_URI:-sqlite:///$(CURDIR)/mlflow.db}"

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || \
		{ echo "The versions in constraints.txt are for Python 3.11 and 3.12; name one with PYTHON=python3.12."; exit 1; }
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e '.[pipeline,retrieval,gguf,docs,dev]'
	$(VENV)/bin/python -m pip install --quiet --no-deps bfcl-eval==2026.3.23  # whose pins are old
	@touch $(STAMP)

# vLLM pins other versions than ours, so it lives apart; its wheel declares more than the tests need.
$(VLLM)/.installed: pyproject.toml requirements/vllm.txt
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --no-deps -r requirements/vllm.txt
	$(VLLM)/bin/python -m pip install --quiet --no-deps -e .
	@touch $@
