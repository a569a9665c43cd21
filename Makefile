.DEFAULT_GOAL := help
.PHONY: help pretrain demo test test-versions gpu check format docs docs-version notebook

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# make pretrain ARGS="--preset mini" OUTPUT_DIR=runs/mini; make test ARGS="-k parity"
ARGS ?=
IN_DIR := $(if $(OUTPUT_DIR),--output_dir $(OUTPUT_DIR))
INSTALLED := .venv/installed
DOCS_INSTALLED := .venv/docs-installed
QUICK_TESTS := -m pytest -n auto --maxprocesses 8 -m "not slow and not integrations"

help: ## Show what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(INSTALLED): pyproject.toml setup.py constraints.txt
	@echo "Installing into .venv: 2 to 4 minutes and 2 GB, mostly PyTorch (with CUDA, more)"
	$(PYTHON) -m venv .venv
	@started=$$(date +%s) && \
	.venv/bin/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable ".[dev,demo]" && \
	echo "Installed: $$(du -sh .venv | cut -f1) in $$(($$(date +%s) - started)) seconds"
	@touch $@

$(DOCS_INSTALLED): $(INSTALLED)
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[docs]"
	@touch $@

pretrain: $(INSTALLED) ## Pretrain on the built-in corpus and show what the model predicts
	.venv/bin/python scripts/pretrain.py $(ARGS) $(IN_DIR)

# The three runs that have saved something last; without any, the model that comes with the project.
SAVED = $(shell ls -1dt runs/*/config.json runs/*/snapshots runs/*/checkpoint-* 2>/dev/null)
RUNS ?= $(or $(wordlist 1, 3, $(shell printf '%s\n' $(SAVED) | cut -d/ -f1-2 | awk '!seen[$$0]++')),examples/models/gutenberg-micro)

demo: $(INSTALLED) ## Show the three newest models in runs/ in the browser, or the small model that comes with the project
	.venv/bin/python scripts/demo.py $(RUNS) $(ARGS)

test: $(INSTALLED) ## Run the tests, but for the slow ones and those of other libraries
	.venv/bin/python $(QUICK_TESTS) $(ARGS)

test-versions: $(INSTALLED) ## Run them with the lowest versions that pyproject.toml allows and with the newest, and note that they pass
	.ci/versions --note

# Override these to rehearse on a CPU (tests/scripts/test_benchmarks.py). GPUS=2 trains on two GPUs.
GPUS ?= 1
GPU_TESTS ?= -m gpu
GPU_SUITE ?= --suite --device cuda
GPU_TRACE ?= --preset base --batch_size 256 --dropout 0 --device cuda --trace gpu-trace.json
GPU_RUN ?= --max_minutes 2
COMMA := ,
ONE_GPU := CUDA_VISIBLE_DEVICES=$(firstword $(subst $(COMMA), ,$(CUDA_VISIBLE_DEVICES)) 0)

gpu: $(INSTALLED) ## On a GPU: check results and waits, measure speed, train gpu-hour.yaml for two minutes
	SCRATCH_BERT_TEST_GPU=1 .venv/bin/python -m pytest -x $(GPU_TESTS) $(ARGS)
	$(ONE_GPU) .venv/bin/python benchmarks/model.py $(GPU_SUITE)
	$(ONE_GPU) .venv/bin/python benchmarks/model.py $(GPU_SUITE) --mode trainer
	$(ONE_GPU) .venv/bin/python benchmarks/model.py $(GPU_TRACE)
	.venv/bin/python -m torch.distributed.run --standalone --nproc_per_node $(GPUS) scripts/pretrain.py recipes/gpu-hour.yaml \
		$(GPU_RUN) $(IN_DIR)

check: $(INSTALLED) ## Check format, style, types and the direction of imports
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/ty check --quiet --error-on-warning --python .venv
	.venv/bin/lint-imports --no-logo --no-cache

format: $(INSTALLED) ## Format, and fix the style errors that can be fixed
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

docs: $(DOCS_INSTALLED) ## Build the documentation into site/, with warnings as errors
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict

docs-version: $(DOCS_INSTALLED) ## Commit the documentation of VERSION, as the latest, to the branch gh-pages
	NO_MKDOCS_2_WARNING=1 PATH=$(CURDIR)/.venv/bin:$$PATH mike deploy --update-aliases $(or $(VERSION),$(error VERSION=0.1)) latest

notebook: $(DOCS_INSTALLED) ## Run notebooks/tour.py as a notebook, and keep its outputs
	.venv/bin/python -c "import jupytext, nbclient; \
		jupytext.write(nbclient.execute(jupytext.read('notebooks/tour.py'), record_timing=False), 'notebooks/tour.ipynb')"
