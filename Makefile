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
.PHONY: help install repro test test-all test-long test-vllm quality format \
	docs smoke ui publish bench stale seeds gpu reliability sweep audit mutants

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 11

repro: $(STAMP)  ## run the whole pipeline: train the pair, label, train gates, calibrate, evaluate, benchmark, export
	dvc repro


test: $(STAMP)  ## run the fast tests, two at a time
	OMP_NUM_THREADS=1 pytest -n 2 --dist worksteal -m "not slow and not long"

test-all: $(STAMP)  ## run all tests but the long ones, the slow ones too
	OMP_NUM_THREADS=1 pytest -n 2 --dist worksteal -m "not long"

test-long: $(STAMP)  ## run the tests that take minutes to hours: the whole sweep of decoders, the pipeline on two seeds
	OMP_NUM_THREADS=1 pytest -n 2 --dist worksteal -m long

test-vllm: $(VLLM)/.installed  ## run the tests that serve with vLLM, in an environment of their own
	$(VLLM)/bin/python -m pytest -q -m vllm tests/vllm

quality: $(STAMP)  ## check style and types: the gate of every commit
	ruff check .
	ruff format --check .
	mypy gistgate pipeline

format: $(STAMP)  ## bring the code into the form that `quality` wants
	ruff check --fix .
	ruff format .

docs: $(STAMP)  ## build the documentation as a site into site/, with all links checked; open site/index.html
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict

gpu: $(STAMP)  ## check and measure on a GPU, within ten minutes, what was never run on one
	python -m benchmarks.gpu

smoke: $(STAMP)  ## run every stage on tiny sizes in a temporary copy
	python -m pipeline.smoke

reliability: $(STAMP)  ## damaged inputs, a soak of 10,000 requests, 100 kills, two copies; counts go to benchmarks/results
	python -m tests.faults.damaged
	python -m tests.faults.soak --requests 10000
	python -m tests.faults.kills --kills 100
	python -m tests.faults.copies

sweep: $(STAMP)  ## run the long sweep of decoders in pieces; what has passed is not run again
	OMP_NUM_THREADS=1 python -m tests.faults.sweep

audit: $(STAMP)  ## ask pip-audit about every pinned dependency; needs the network
	$(VENV)/bin/python -m pip install --quiet pip-audit
	$(VENV)/bin/python -m pip_audit -r constraints.txt --no-deps --disable-pip

mutants: $(STAMP)  ## change every line of rules, bounds, commit and stop, and list the changes that no test notices; hours, resumable
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e '.[mutants]'
	OMP_NUM_THREADS=1 python -m benchmarks.mutants

bench: $(STAMP)  ## measure side by side: labels, limit, memory, K, then every method prompt by prompt
	python -m benchmarks.labels
	python -m benchmarks.limit
	python -m benchmarks.memory
	python -m benchmarks.block
	python -m pipeline.repro --force --single-item benchmark

publish: $(STAMP)  ## copy the last run's results to docs/results and renew the README's table
	python -m pipeline.report.publish
	test ! -e reports/table/summary.json || python -m pipeline.report.publish table
	test ! -e reports/certify/summary.json || python -m pipeline.report.publish certify
	test ! -e reports/retrieval/benchmark.json || python -m pipeline.studies.retrieval.publish
	python -m benchmarks.drafts_page
	python -m benchmarks.speed_page
	python -m benchmarks.block_page
	test ! -e reports/segments/benchmark.json || python -m pipeline.studies.segments.publish

stale: $(STAMP)  ## list the published files whose code has changed since
	python -m pipeline.common.stale

seeds: $(STAMP)  ## run the core on five seeds of everything (about 20 minutes each on two cores); resumable, results in docs/results/seeds.json
	python -m pipeline.seeds

ui: $(STAMP)  ## show the tracked runs on http://127.0.0.1:5000 (PORT=... for another one)
	mlflow server --host 127.0.0.1 --port $(PORT) \
		--backend-store-uri "$${MLFLOW_TRACKING_URI:-sqlite:///$(CURDIR)/mlflow.db}"

install: $(STAMP)  ## create the environment, or bring it up to date

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || \
		{ echo "The versions in constraints.txt are for Python 3.11 and 3.12; name one with PYTHON=python3.12."; exit 1; }
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e '.[pipeline,retrieval,gguf,docs,dev]'
	@touch $(STAMP)

# vLLM pins other versions than ours, so it lives apart; its wheel declares more than the tests need.
$(VLLM)/.installed: pyproject.toml requirements/vllm.txt
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --no-deps -r requirements/vllm.txt
	$(VLLM)/bin/python -m pip install --quiet --no-deps -e .
	@touch $@
