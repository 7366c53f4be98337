# Every target does all of its own set-up: the first call makes a virtual
# environment from pinned versions, a later call finds its stamp and starts at once.

PYTHON ?= python3
# TensorFlow 2.15 has wheels up to CPython 3.11.
PYTHON_TF215 ?= $(PYTHON)

VENV := .venv
VENV_TF215 := .venv-tf215
VENV_PEERS := .venv-peers
VENV_DOCS := .venv-docs
VENV_DIST := .venv-dist
EXTRAS_PEERS := plots,test
# Peers that need no compiler: what the store is compared to is tested with them.
PEERS_TESTED := cpprb grain rlds
# Reverb's wheel wants this TensorFlow; the demo with Reverb needs the environment.
EXTRAS_TF215 := demo,reverb,test
FFCV := ffcv==1.0.2
# The pins are for CPython 3.11; `make CONSTRAINTS= test` lets pip choose instead.
CONSTRAINTS ?= requirements/constraints-tf221.txt
CONSTRAINTS_TF215 ?= requirements/constraints-tf215.txt

TESTS ?= tests
# Reverb, and what TensorFlow 2.15 and Keras 2 do in another way: models, optimizers,
# checkpoints, SavedModels, the structures that tf.data takes. All else is on the newest.
TESTS_TF215 ?= tests/replay/reverb tests/cli/test_replay_server.py \
  tests/research/pose_env/test_distributed.py tests/benchmarks/test_bench_reverb.py \
  tests/data/test_plan.py \
  tests/data/test_stores.py::test_windows_are_those_of_the_episodes \
  tests/layers/test_networks.py tests/layers/test_transformer.py \
  tests/layers/test_everywhere.py::test_every_variable_is_trained \
  tests/layers/test_everywhere.py::test_in_half_precision \
  tests/models/test_action_decoders.py::test_model_and_its_learning_rate_follow_the_global_step \
  tests/models/test_model_families.py tests/models/test_optimizers.py \
  tests/models/test_t2r_model.py tests/models/test_warm_start.py \
  tests/policies/test_checkpoint_predictor.py \
  tests/policies/test_exported_savedmodel_predictor.py tests/policies/test_exports.py \
  tests/policies/test_policy_state.py tests/policies/test_real_exports.py \
  tests/records/test_decoding.py::test_parser_decodes_with_options \
  tests/records/test_parse.py tests/specs/test_extended_tensor_spec.py \
  tests/specs/test_placeholders.py tests/specs/test_samples.py \
  tests/specs/test_serialization.py tests/specs/test_structures.py \
  tests/specs/test_tensorflow_round_trips.py tests/store/test_held_tensors.py \
  tests/windows/test_dataset.py tests/windows/test_gather.py \
  tests/windows/test_shuffle.py tests/windows/test_stacking.py
TESTS_EXTRAS ?= tests/data/test_torch_windows.py \
  tests/benchmarks/test_bench_store.py
# More workers than cores: where a test waits, for a process of its own or for a thread,
# another has something to do.
PYTEST_WORKERS ?= 3
# The checks run it beside the other, which takes far longer; each worker imports
# TensorFlow.
PYTEST_WORKERS_TF215 ?= 1
PYTEST_ARGS ?=
SECONDS ?= 600
SEED ?= $(shell date +%s)
ATTACK_ARGS ?=
DEMO_DIR ?= demo_out
DOCS_DIR ?= build/docs
DEMO_ARGS ?=

# What the caller's shell has activated must not leak into our environments.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV PIP_USER PIP_TARGET PIP_PREFIX
# Tests start many processes: each would compile the package anew, and its tests.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONNOUSERSITE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export TF_CPP_MIN_LOG_LEVEL ?= 2

RUN := $(VENV)/bin/python
RUN_TF215 := $(VENV_TF215)/bin/python
STAMP := $(VENV)/.stamp
STAMP_TF215 := $(VENV_TF215)/.stamp
STAMP_EXTRAS := $(VENV)/.stamp-extras
RUN_PEERS := $(VENV_PEERS)/bin/python
STAMP_PEERS := $(VENV_PEERS)/.stamp
# The tests of a file share what they set up; tests/conftest.py says which ones begin.
# What hangs ends its worker, and another one would hang again.
PYTEST := -m pytest -n $(PYTEST_WORKERS) --max-worker-restart 0 \
  --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: help setup setup-extras test test-tf215 test-extras attack docs docs-test lint \
  format types release-artefacts demo demo-policy demo-distributed demo-distributed-reverb research-bcz \
  research-grasp2vec research-pose-env research-qtopt research-two-arms research-vrgripper \
  bench-setup bench bench-reverb dist clean distclean

help:  ## Lists the targets.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

# $(call make_venv,folder,python,constraints,extras)
define make_venv
	@echo "Setting up $(1): some minutes and about 1 GB, once."
	@# Some systems ship venv without ensurepip: their own pip can step in.
	$(2) -m venv $(1) || { $(2) -m venv --without-pip $(1) && \
	  $(2) -m pip --python $(1)/bin/python install --quiet pip; }
	$(1)/bin/python -m pip install --quiet $(if $(3),-c $(3)) setuptools wheel
	@# What is imported is compiled then: all of it would take a minute.
	$(1)/bin/python -m pip install --quiet --no-build-isolation --no-compile \
	  $(if $(3),-c $(3)) -e '.[$(4)]'
	@touch $(1)/.stamp
endef

$(STAMP): setup.py $(CONSTRAINTS)
	$(call make_venv,$(VENV),$(PYTHON),$(CONSTRAINTS),dev)

$(STAMP_TF215): setup.py $(CONSTRAINTS_TF215)
	@$(PYTHON_TF215) -c 'import sys; sys.exit(sys.version_info >= (3, 12))' || { \
	  echo "TensorFlow 2.15 needs CPython 3.10 or 3.11;" \
	    "name one: make PYTHON_TF215=python3.11 test-tf215"; exit 1; }
	$(call make_venv,$(VENV_TF215),$(PYTHON_TF215),$(CONSTRAINTS_TF215),$(EXTRAS_TF215))

$(STAMP_PEERS): setup.py $(CONSTRAINTS) requirements/benchmarks.txt
	$(call make_venv,$(VENV_PEERS),$(PYTHON),$(CONSTRAINTS),$(EXTRAS_PEERS))
	$(RUN_PEERS) -m pip install --quiet $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) \
	  -r requirements/benchmarks.txt
	@# A benchmark names the peers that it has to leave out.
	pkg-config --exists opencv4 libturbojpeg && $(RUN_PEERS) -m pip install --quiet \
	  --no-deps --no-build-isolation $(FFCV) || echo "FFCV is left out: it needs a" \
	  "compiler, pkg-config, and the headers of OpenCV and libjpeg-turbo" \
	  "(Debian: libopencv-dev libturbojpeg0-dev)."

# An exact version, or pip takes a build of PyTorch for GPUs of several gigabytes.
$(STAMP_EXTRAS): $(STAMP) requirements/benchmarks.txt
	@echo "Adding PyTorch, ffmpeg and the store's peers to $(VENV): 1 GB, once."
	$(RUN) -m pip install --quiet \
	  $(if $(CONSTRAINTS),-c $(CONSTRAINTS) -c requirements/benchmarks.txt) \
	  --no-build-isolation -e '.[torch,video]' $(PEERS_TESTED)
	@touch $@

setup: $(STAMP) $(STAMP_TF215)  ## Makes both environments and runs nothing.

test: $(STAMP)  ## Runs the whole test suite on TensorFlow 2.21.
	$(RUN) $(PYTEST) $(PYTEST_ARGS) $(TESTS)

test-tf215: $(STAMP_TF215)  ## Runs Reverb, models, exports and parsers on TensorFlow 2.15.
	@# A test that needs Reverb is skipped where there is none; here it has to be.
	$(RUN_TF215) -c 'import gymnasium, matplotlib, pybullet, reverb'
	$(RUN_TF215) $(PYTEST) -n $(PYTEST_WORKERS_TF215) $(PYTEST_ARGS) $(TESTS_TF215)

setup-extras: $(STAMP_EXTRAS)  ## Adds PyTorch, ffmpeg and the store's peers.
	@# A test that needs one is skipped without it; here none has to be.
	$(RUN) -c 'import av, cpprb, grain, torch'

test-extras: setup-extras  ## Runs the tests that need PyTorch, ffmpeg or the store's peers.
	$(RUN) $(PYTEST) $(PYTEST_ARGS) $(TESTS_EXTRAS)

attack: $(STAMP)  ## Attacks what is promised for SECONDS, of SEED: kills, power cuts ...
	$(RUN) -m tests.attacks --seconds $(SECONDS) --seed $(SEED) $(ATTACK_ARGS)

$(VENV_DOCS)/.stamp: requirements/docs.txt
	$(PYTHON) -m venv $(VENV_DOCS)
	$(VENV_DOCS)/bin/python -m pip install --quiet -r requirements/docs.txt
	@touch $@

docs: $(STAMP) $(VENV_DOCS)/.stamp  ## Builds the site: the pages, and a reference of the API and of gin.
	@mkdir -p build
	$(RUN) -m t2r_seq gin '*' > build/gin.txt
	$(VENV_DOCS)/bin/python docs/make_site.py $(DOCS_DIR) build/gin.txt
	$(VENV_DOCS)/bin/zensical build --strict --config-file $(DOCS_DIR)/mkdocs.yml
	@echo "Built $(DOCS_DIR)/site/index.html"

docs-test: $(STAMP)  ## Runs the snippets of README.md and docs/.
	@# One file, and each page a process of its own.
	$(RUN) $(PYTEST) --dist load $(PYTEST_ARGS) tests/docs

lint: $(STAMP)  ## Checks style and format with ruff.
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

format: $(STAMP)  ## Formats the code and applies ruff's safe fixes.
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

types: $(STAMP)  ## Checks the types of the package with mypy.
	$(RUN) -m mypy

demo: $(STAMP)  ## Collects, trains, exports and runs the pose policies; one table, one PNG.
	$(RUN) -m research.pose_env.demo --output_dir $(DEMO_DIR) $(DEMO_ARGS)

demo-policy: $(STAMP)  ## Records demonstrations, trains ready policies by command; one table, one PNG.
	$(RUN) -m research.lander.demo --out $(DEMO_DIR)/lander $(DEMO_ARGS)

demo-distributed: $(STAMP)  ## Runs two actors and a learner over a store; one table, one PNG.
	$(RUN) -m research.pose_env.distributed --out $(DEMO_DIR)/distributed $(DEMO_ARGS)

demo-distributed-reverb: $(STAMP_TF215)  ## Runs the same with a Reverb server between them.
	$(RUN_TF215) -m research.pose_env.distributed --engine reverb \
	  --out $(DEMO_DIR)/distributed $(DEMO_ARGS)

release-artefacts: demo-policy  ## Packs the exports of demo-policy, and a page to look at each.
	$(RUN) -m research.lander.artefacts $(DEMO_DIR)/lander $(DEMO_DIR)/artefacts

research-pose-env: $(STAMP)  ## Regression, critic and MAML on the pose task; one table.
	$(RUN) -m research.pose_env.study --out $(DEMO_DIR)/study $(DEMO_ARGS)

research-bcz: $(STAMP)  ## Instructed blocks: BC-Z, told and not told; one table.
	$(RUN) -m research.bcz.study --out $(DEMO_DIR)/bcz $(DEMO_ARGS)

research-grasp2vec: $(STAMP)  ## What was lifted, and where it was; one table, one picture.
	$(RUN) -m research.grasp2vec.study --out $(DEMO_DIR)/grasp2vec $(DEMO_ARGS)

research-qtopt: $(STAMP)  ## A critic of grasps, off-policy and collecting; one table, one PNG.
	$(RUN) -m research.qtopt.study --out $(DEMO_DIR)/qtopt $(DEMO_ARGS)

research-two-arms: $(STAMP)  ## Two arms of 7 and 6 joints: one policy for both, or one for each; one table.
	$(RUN) -m research.two_arms.study --out $(DEMO_DIR)/two_arms $(DEMO_ARGS)

research-vrgripper: $(STAMP)  ## Heads of actions, and learning from demonstrations; two tables.
	$(RUN) -m research.vrgripper.study --out $(DEMO_DIR)/vrgripper $(DEMO_ARGS)

bench-setup: $(STAMP_PEERS)  ## Makes the environment of the benchmarks, with peers.

bench: $(STAMP_PEERS)  ## Runs all benchmarks but Reverb's and the trainings; 45 minutes.
	@for name in store store_files windows records streaming parsing train_step \
	  augmentation policy robot search server seconds scale writing video replay; do \
	  $(RUN_PEERS) -m benchmarks.bench_$$name || exit 1; done
	$(RUN_PEERS) -m benchmarks.bench_store_growth --plot benchmarks/images/store_growth.png
	$(RUN_PEERS) -m benchmarks.bench_horizon --plot benchmarks/images/horizon.png

bench-reverb: $(STAMP_TF215)  ## Runs the benchmark of sampling from Reverb.
	$(RUN_TF215) -m benchmarks.bench_reverb

$(VENV_DIST)/.stamp: requirements/dist.txt
	$(PYTHON) -m venv $(VENV_DIST)
	$(VENV_DIST)/bin/python -m pip install --quiet -r requirements/dist.txt
	@touch $@

dist: $(VENV_DIST)/.stamp  ## Builds wheels and the sdist, and checks what an index would show.
	rm -rf dist
	$(VENV_DIST)/bin/python -m build --outdir dist .
	$(VENV_DIST)/bin/python -m build --wheel --outdir dist lite
	$(VENV_DIST)/bin/python -m twine check --strict dist/*

clean:  ## Removes caches and outputs; keeps the environments.
	rm -rf build dist *.egg-info lite/build lite/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -rf $(DEMO_DIR)
	find t2r_seq configs research tests benchmarks -name __pycache__ -type d -prune \
	  -exec rm -rf {} + 2>/dev/null || true

distclean: clean  ## Removes the environments too.
	rm -rf $(VENV) $(VENV_TF215) $(VENV_PEERS) $(VENV_DOCS) $(VENV_DIST)
