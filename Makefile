# These commands do everything on a fresh machine, the virtual environment included:
#
#   make train    train PPO on CartPole-v1 until it is solved, with the live screen
#   make test     lint, types and all tests that fit into 15 minutes on 2 cores
#   make docs     the documentation as a site, in build/site
#
# Variables: PYTHON (interpreter that makes the environment, 3.11 or newer), VENV (its directory),
# ARGS (arguments added to srl-run or pytest, such as ARGS="--seed 2").

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

BIN := $(VENV)/bin
comma := ,
CHECKED := srl tests benchmarks docs/generator
TESTED := screen$(comma)atari$(comma)box2d$(comma)mujoco$(comma)images$(comma)envpool$(comma)export$(comma)wandb$(comma)prometheus$(comma)docs$(comma)dev
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-input $(if $(CI),-qq) --constraint constraints.txt

# One thread per process: the trials under test are many processes, and a thread pool in each of them would fight
# for the cores. Equal thread counts are also what lockstep trials are compared under.
TEST_ENVIRONMENT := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMEXPR_NUM_THREADS=1 \
	SDL_VIDEODRIVER=dummy MPLBACKEND=Agg

.PHONY: help train test test-all lint format docs proto constraints clean

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

train: $(VENV)/.installed
	$(BIN)/srl-run cartpole_ppo $(ARGS)

test: lint
	$(TEST_ENVIRONMENT) $(BIN)/python -m pytest -m "not slow" $(ARGS)

test-all: lint
	$(TEST_ENVIRONMENT) $(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix $(CHECKED)
	$(BIN)/ruff format $(CHECKED)

# The theme would print its maintainers' news; there is no warning to hide.
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The generated modules are committed: a user needs no compiler for protocol buffers.
proto: $(VENV)/.installed-dev
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. srl/distributed/control.proto

# Writes down what is installed now, after a deliberate upgrade.
constraints: $(VENV)/.installed-dev
	{ sed -n '/^#/p' constraints.txt; $(BIN)/python -m pip freeze --all --exclude-editable \
	| grep -v '^pip==' | sed 's/+cpu$$//'; } > constraints.txt.new
	mv constraints.txt.new constraints.txt

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find srl tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The set-up: once, and again whenever the dependencies change. setuptools comes first and pinned, because the
# package is built without an isolated environment (which would take any version of it).
define install
	@echo "Installing SRL into $(VENV) (the first time this downloads several hundred megabytes)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(INSTALL) setuptools
	@$(INSTALL) --no-build-isolation --editable '.[$(1)]'
endef

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	$(call install,screen$(comma)atari)
	@touch $@

$(VENV)/.installed-dev: $(BIN)/python pyproject.toml constraints.txt
	$(call install,$(TESTED))
	@touch $(VENV)/.installed $@

# No prerequisites: an existing environment is kept; the two stamps above tell whether it is up to date.
$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
		echo "make: $(PYTHON) not found. Install Python 3.11 or newer, or name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "make: SRL needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "make: $(PYTHON) has no venv module. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
