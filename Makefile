# `make help` lists the targets. Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH := $(shell grep -i '^torch==' constraints.txt)

.DEFAULT_GOAL := help
.PHONY: help install demo demo-offline demo-game test test-long test-portable test-extras test-vllm expected mutants benchmark check image reference docs sbom clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

$(STAMP): setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	# torch first: whatever needs it then finds this very version.
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

install: $(STAMP) ## Set up .venv with pinned versions

demo: $(STAMP) ## Teach a small pretrained chat model to ask for what is missing and then book a table, with PPO
	@$(BIN)/rl4dialog demo

demo-offline: $(STAMP) ## Teach a tiny model the same, without a network
	@$(BIN)/rl4dialog demo tiny_booking

demo-game: $(STAMP) ## Train a tiny model to win a guessing game by playing it, without a network
	@$(BIN)/rl4dialog demo guess_what

test: $(STAMP) ## Run the test-suite, without what takes long
	$(BIN)/python -m pytest --numprocesses auto --dist loadscope --no-loadscope-reorder -m 'not long'

test-long: $(STAMP) ## Run what takes long: learning, whole lists of models and configs
	$(BIN)/python -m pytest --numprocesses auto -m long

# What torch, oneDNN and MKL compute with on a processor without AVX: no result of a test may hang on that.
OLD_CPU := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE OMP_NUM_THREADS=1

test-portable: $(STAMP) ## Run the tests that compare numbers as on an old processor
	$(OLD_CPU) $(BIN)/python -m pytest --numprocesses auto -m 'not long' tests/reference tests/invariants \
	    tests/unit/functional tests/unit/rollouts

EXTRAS := .venv-extras

test-extras: ## Run the tests that need TRL, AgileRL, MLflow, Trackio or bitsandbytes, in an environment of their own
	$(PYTHON) -m venv $(EXTRAS)
	$(EXTRAS)/bin/python -m pip install --quiet $(TORCH)
	$(EXTRAS)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,8bit,mlflow,trackio]' trl
	$(EXTRAS)/bin/python -m pip install --quiet --constraint constraints.txt --no-deps --target $(EXTRAS)/agilerl \
	    agilerl agilerl-arena tensordict pyvers lazy-loader
	$(EXTRAS)/bin/python -c 'import bitsandbytes, mlflow, trackio, trl'
	AGILERL_FOLDER=$(CURDIR)/$(EXTRAS)/agilerl OMP_NUM_THREADS=1 \
	    $(EXTRAS)/bin/python -m pytest --numprocesses auto -k 'trl or real_run or 8_bit or other_code' \
	    tests/reference/test_trl.py tests/features/feedback/test_reward_trainer.py \
	    tests/features/offline/test_offline_benchmark.py \
	    tests/unit/runs/test_experiment_trackers.py tests/invariants/test_memory_savers.py

VLLM := .venv-vllm

$(VLLM)/.installed: setup.py constraints.txt scripts/vllm_environment.sh
	PYTHON=$(PYTHON) bash scripts/vllm_environment.sh $(VLLM)
	touch $@

test-vllm: $(VLLM)/.installed ## Test generation with the real vLLM on the CPU, in an environment of its own
	VLLM_CPU_KVCACHE_SPACE=1 TORCHDYNAMO_DISABLE=1 OMP_NUM_THREADS=1 \
	    $(VLLM)/bin/python -m pytest tests/features/vllm/test_vllm.py

expected: $(STAMP) ## Re-run the quick shipped configs, and compare their results with the expected ones
	$(BIN)/python scripts/check_expected.py --output_path runs/expected

mutants: $(STAMP) ## Test the tests: change the code in 300 small ways, and list what no test notices (an hour or more)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt mutmut
	$(BIN)/python scripts/mutants.py

benchmark: $(STAMP) ## Time an iteration beside the plain loop, stable-baselines3 token by token and TRL
	$(BIN)/python scripts/benchmark.py --token_by_token

check: $(STAMP) ## Lint, format check and type check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy rl4dialog scripts benchmarks
	$(BIN)/hadolint Dockerfile docker/Dockerfile.cuda

image: $(STAMP) ## Build the Docker image twice without Docker, run both, and compare the weights (root, Debian)
	PATH="$(CURDIR)/$(BIN):$$PATH" bash docker/build_locally.sh

reference: $(STAMP) ## Write what is generated in the documentation: components, YAML keys, commands, examples, API
	$(BIN)/python scripts/reference_pages.py

docs: $(STAMP) ## Build the documentation into site/; a link that leads nowhere is an error
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict  # not --quiet, which hides warnings from --strict

sbom: $(STAMP) ## List the packages of .venv and their licences in sbom.json, in the format of CycloneDX
	$(BIN)/python -m pip install --quiet --constraint constraints.txt cyclonedx-bom
	$(BIN)/cyclonedx-py environment --output-reproducible --output-file sbom.json $(BIN)/python

clean: ## Remove .venv and build leftovers
	rm -rf $(VENV) $(EXTRAS) $(VLLM) build dist site sbom.json *.egg-info
