# Everything here runs without questions on a fresh Debian 12 machine; each target does its own set-up.
.DEFAULT_GOAL := help
.NOTPARALLEL:
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

root := $(CURDIR)
bin := $(root)/.venv/bin
export PATH := $(bin):$(PATH)
# Tests start hundreds of Python processes: modules are compiled once for all of them, NumPy starts no threads.
pytest_env := env -u PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX=$(root)/build/pycache OPENBLAS_NUM_THREADS=1
# The simulated device is the default of every session, that of the command line too.
simulated_env = $(pytest_env) ONNXGRAD_DEVICE=simulated \
  ONNXGRAD_DEVICE_PLUGINS=$(root)/build/$(preset)/tests/libonnxgrad_simulated_device.so
cuda = $(root)/build/$(preset)/tests/cuda
cuda_images = $(cuda)/images
# Stand-ins of NVIDIA's libraries are two cards, which jobs of two processes need: the default of every session.
cuda_env = ONNXGRAD_STANDIN_CARDS=2 ONNXGRAD_CUDA_PATH=$(cuda) ONNXGRAD_CUDA_CACHE=$(cuda_images) ONNXGRAD_STANDIN_TEXTS=$(cuda)/texts
preset ?= release
jobs ?= 2

.PHONY: help setup setup-package build package install demo test test-device test-isa test-cuda-standins test-cuda-texts test-cuda-plans test-cuda-sanitizers test-cuda-races cuda-cases cuda-archive ctest dist dist-kills test-faults pytest free-threaded interop lint lint-all format clang fuzz fuzz-graphs fuzz-checks bench lengths quantization-table bench-kernels wheel wheel-test wheel-audit sdist sdist-test sbom release workflows generated locked docs docs-test clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what building and testing need (Debian packages, .venv, ONNX's library)
	@scripts/setup.sh

setup-package:
	@scripts/setup.sh --package

build/$(preset)/build.ninja: CMakePresets.json requirements/build.txt | setup-package
	@cmake --preset $(preset)
	@touch $@

build: setup build/$(preset)/build.ninja ## build the C++ core, its tests and the Python extension (preset=release)
	@cmake --build --preset $(preset) -j $(jobs)
	@python scripts/develop.py

package: setup-package build/$(preset)/build.ninja ## build the C++ core and the Python package, without tests
	@cmake --build --preset $(preset) -j $(jobs) --target onnxgrad_core onnxgrad_core_stub
	@python scripts/develop.py

install: setup-package build/$(preset)/build.ninja ## install the C++ library: headers, static and shared, CMake package, pkg-config (PREFIX=/usr/local)
	@cmake --build --preset $(preset) -j $(jobs) --target onnxgrad onnxgrad_shared
	@cmake --install build/$(preset) --component cpp --prefix "$(abspath $(or $(PREFIX),/usr/local))"

demo: package ## train a model on real data and show the result
	@scripts/demo.sh

test: build lint ctest pytest ## set up, build, lint, then every C++ and Python test

ctest: build ## the C++ tests
	@ctest --preset $(preset) -j $(jobs)

dist: build ## jobs of several processes: MPI from Debian and wheels, TCP, three hosts as network namespaces
	@scripts/setup.sh --mpi
	@preset=$(preset) tests/distributed/run.sh

dist-kills: build ## 60 kills of ranks of a training on three hosts, with resume (kills=N)
	@scripts/setup.sh --mpi
	@python tests/distributed/kills.py $(or $(kills),60)

test-faults: build ## kills and failing file calls, all of them (a sample is part of ctest)
	@ONNXGRAD_FAULT_TESTS=long ctest --preset $(preset) -R '^faults$$' -V

pytest: build ## the Python tests, samples of them on the simulated device and on stand-ins of cards too
	@[[ -n $${ONNXGRAD_OFFLINE:-} ]] || scripts/old_onnxruntime.sh >/dev/null
	@$(simulated_env) python -m pytest -n $(jobs) -q -m device_sample
	@$(pytest_env) $(cuda_env) ONNXGRAD_DEVICE=cuda python -m pytest -n $(jobs) -q -m cuda_sample
	@$(pytest_env) python -m pytest -n $(jobs) -q

test-device: build ## all Python tests with the simulated device in place of the CPU
	@$(simulated_env) python -m pytest -n $(jobs) -q

test-isa: build ## all C++ and Python tests as on processors with no more than AVX2 (isa=SSE4: no more than that)
	@ONNXGRAD_MAX_ISA=$(or $(isa),AVX2) ctest --preset $(preset) -j $(jobs)
	@$(pytest_env) ONNXGRAD_MAX_ISA=$(or $(isa),AVX2) python -m pytest -n $(jobs) -q

# The operator cases of a filter in as many processes as there are jobs.
cuda_shards = shards=(); for i in $$(seq 0 $$(($(jobs) - 1))); do \
  $(cuda_env) GTEST_TOTAL_SHARDS=$(jobs) GTEST_SHARD_INDEX=$$i \
    build/$(preset)/src/ops/onnxgrad_ops_test --gtest_brief=1 --gtest_filter='$(1)' & shards+=($$!); done; \
  failed=0; for shard in "$${shards[@]}"; do wait $$shard || failed=1; done; exit $$failed

cuda-cases: build
	@$(call cuda_shards,Cuda*)

test-cuda-standins: cuda-cases ## all operator cases, and Python's tests of training, on stand-ins of NVIDIA's libraries
	@$(pytest_env) $(cuda_env) ONNXGRAD_DEVICE=cuda python -m pytest -n $(jobs) -q -m "device_sample or cuda_sample"

test-cuda-texts: build ## the texts of all kernels through the real NVRTC, for four compute capabilities
	@rm -rf $(cuda)/images $(cuda)/texts
	@$(MAKE) cuda-cases
	@python scripts/cuda_texts.py $(cuda)/texts

test-cuda-plans: build ## plans of convolutions, pools and attention by the real cuDNN, for the properties of a card
	@python scripts/cuda_plans.py build/$(preset)

test-cuda-sanitizers: preset = asan-cuda
test-cuda-sanitizers: setup ## the operator cases on the stand-ins, under ASAN and UBSAN (cases=FILTER)
	@cmake --preset $(preset) >/dev/null
	@cmake --build --preset $(preset) -j $(jobs) --target onnxgrad_ops_test \
	  onnxgrad_standin_driver onnxgrad_standin_nvrtc onnxgrad_standin_cublaslt onnxgrad_standin_cudnn
	@$(call cuda_shards,$(or $(cases),Cuda/*))

test-cuda-races: cuda_images = $(cuda)/races
test-cuda-races: build ## the operator cases on the stand-ins, which report races of their kernels (cases=FILTER)
	@export ONNXGRAD_STANDIN_RACES=1; $(call cuda_shards,$(or $(cases),Cuda/*))

cuda-archive: build wheel ## what checks a card without a network, below 60 MiB, into dist/ (scripts/cuda_check.sh)
	@preset=$(preset) scripts/cuda_archive.sh

docs-test: build ## the examples of the documents, and their tables beside the code
	@$(pytest_env) python -m pytest -n $(jobs) -q tests/python/test_docs.py tests/python/test_generated.py \
	  tests/python/test_migration_guide.py tests/python/test_seed_examples.py

free-threaded: setup-package ## tests under Python without the global lock, which is built first (15 minutes, once per machine)
	@scripts/free_threaded.sh

interop: build ## the tests about other libraries' models and arrays with torch, PEFT, JAX, polars, datasets (3 GB, build/interop)
	@scripts/interop.sh

lint: build ## formatting, types, layers, file lengths, comments; clang-tidy on changed files
	@scripts/lint.sh

lint-all: build ## the same with clang-tidy on every file
	@scripts/lint.sh --all

format: setup ## apply clang-format and ruff
	@scripts/lint.sh --fix

clang: setup ## compile everything with clang, whose warnings are errors (build/clang)
	@scripts/setup.sh --clang
	@cmake --preset clang >/dev/null
	@cmake --build --preset clang -j $(jobs)

fuzz: build ## changed model files through the whole library, 200,000 of them (mutants=N, first=N, processes=N)
	@ONNXGRAD_CASE_MODELS=build/$(preset)/tests/case_models build/$(preset)/src/ops/onnxgrad_ops_test \
	  --gtest_brief=1 --gtest_filter=DumpCases.WritesTheirModels
	@build/$(preset)/tests/onnxgrad_mutants tests/data/models,build/$(preset)/tests/case_models --limits
	@build/$(preset)/tests/onnxgrad_mutants tests/data/models,build/$(preset)/tests/case_models \
	  $(or $(mutants),200000) $(or $(first),0) $(or $(processes),2)

fuzz-graphs: build ## random models against stock onnxruntime, 5,000 of them (graphs=N, first=N)
	@ONNXGRAD_FUZZ_GRAPHS=$(or $(graphs),5000) ONNXGRAD_FUZZ_FIRST=$(or $(first),0) \
	  python -m pytest -q -n $(jobs) tests/python/test_random_graphs.py

fuzz-checks: build ## check_gradients on random right models, wrong rules and all stored models (right=500, wrong=250, first=N)
	@ONNXGRAD_CHECKS_RIGHT=$(or $(right),500) ONNXGRAD_CHECKS_WRONG=$(or $(wrong),250) ONNXGRAD_CHECKS_FIRST=$(or $(first),0) \
	  python -m pytest -q -n $(jobs) tests/python/test_checked_models.py

generated: setup package ## write what is made of the tables: Python classes, tables in the documents
	@python scripts/generate.py
	@python benchmarks/results_page.py

locked: setup ## requirements/locked from the lists of requirements/, with the hashes of all files
	@scripts/lock_requirements.sh

docs: setup package ## run the examples of onnxcustom's documents; write docs/seeds.md and the notebook
	@python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/locked/docs.txt
	@python examples/seeds/make_notebook.py
	@python examples/seeds/make_page.py

# Figures are kept with results=NAME: benchmarks/results/NAME.json, and docs/benchmarks.md.
stored = $(if $(results),--results benchmarks/results/$(results).json)

bench: build ## the benchmarks beside other systems at 1 and 2 threads (PEERS=... chooses; results=NAME keeps the figures)
	@PEERS=$${PEERS:-all} python benchmarks/peers/run.py --workloads all --threads 1,2 $(stored)
	@python benchmarks/floors.py $(stored)
	@python benchmarks/profiles.py
	@python benchmarks/mixed_precision.py $(stored)
	@python benchmarks/compile_time.py $(stored)
	@python benchmarks/inference.py $(stored)
	@python benchmarks/optimizers.py $(stored)
	@python benchmarks/iterations.py $(stored)
	@$(if $(results),python benchmarks/results_page.py)

lengths: build ## ten thousand lengths in one fit: time per token, plans, peak memory; fails if a goal is missed
	@python benchmarks/sequence_lengths.py --check

quantization-table: build ## accuracy of quantized networks, written to docs/fine-tuning.md (needs Debian's dataset-fashion-mnist and fortunes)
	@python benchmarks/quantization.py --write

bench-kernels: setup ## the kernels' micro-benchmarks (Google Benchmark); filter=REGEX chooses
	@cmake --preset bench >/dev/null
	@cmake --build --preset bench -j $(jobs)
	@set -e; for binary in build/bench/benchmarks/onnxgrad_*_bench; do \
	  "$$binary" --benchmark_filter="$(or $(filter),.)" --benchmark_counters_tabular=true; done

wheel: setup ## build the wheel, one file for every Python, into dist/
	@scripts/wheel.sh

wheel-test: wheel ## use the wheel in empty environments (ONNXGRAD_PYTHONS="3.11 3.13", ONNXGRAD_VERSIONS="oldest newest ray")
	@$(pytest_env) python -m pytest tests/wheel -n $(jobs) --dist loadgroup -q -p no:cacheprovider

wheel-audit: setup ## check the wheel of dist/: its libraries, and that it uses nothing but the stable ABI
	@scripts/release_checks.sh wheel

sdist: setup-package ## the source distribution, into dist/
	@python scripts/sdist.py

sdist-test: setup sdist ## build the source distribution without a network, and train with the result
	@$(pytest_env) python -m pytest tests/sdist -q -p no:cacheprovider

sbom: setup-package ## the bill of materials of what lies in dist/ (CycloneDX)
	@shopt -s nullglob; python scripts/sbom.py dist/onnxgrad-*.whl dist/onnxgrad-*.tar.gz

workflows: ## check .github and CITATION.cff
	@scripts/release_checks.sh workflows

release: setup ## check, build and test a release, into dist/ (VERSION=1.2.3 compares; TAG=1 makes the tag)
	@python scripts/release.py check $(VERSION)
	@$(MAKE) wheel wheel-test wheel-audit sdist sdist-test sbom
	@python scripts/release.py finish $(if $(TAG),--tag)

clean: ## remove what was built; .venv and ONNX's library stay
	@rm -rf build dist wheelhouse python/onnxgrad/_core*.so python/onnxgrad/_core.pyi
