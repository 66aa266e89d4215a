# make demo         set up .venv, install, and stream a story from the model in the package
# make test         set up .venv with the development extras and run the whole suite, WORKERS (4) test files at a time
# make test-cuda    run the tests that need torch: the CUDA backend, on a GPU or in Triton's interpreter, training, and
#                   models over several processes
#                   (TORCH_INDEX=... names an index with torch for CPUs, which is smaller)
# make native       build the extension in place, incrementally, with its type stub (needs cmake, ninja, nanobind:
#                   pip install '.[native]'; PYTHON=... names the interpreter that has them)
# make native-test  build and run the C++ tests under AddressSanitizer and UBSan
# make bench        the 0.6B shape in Q4_0 and bf16, compared with llama.cpp and OpenVINO, where they can be imported (docs/performance.md)
# make bench-all    the rest: other types, the 1B shape, 8k of context, shared prefixes, a busy core, AVX2; both can be resumed
#
# demo and test need Python 3.11 or later, its venv module, its headers and a C++ compiler, nothing else.

PYTHON ?= python3
BUILD ?= build/native
SANITIZE ?= address,undefined
# How many files of tests run at a time, each in a process of its own.  Half of a worker's time is waiting, for servers to
# start and processes to end: on two cores four workers keep both busy.  0 runs all in one process.
WORKERS ?= 4

VENV := .venv
# Everything the wheel is made from: .venv is reinstalled when any of it changes.
SOURCES := pyproject.toml CMakeLists.txt tools/install.py $(shell find native src -type f ! -name '*.so' ! -path '*/__pycache__/*')
# For `native`: the interpreter named by the caller, else .venv's, else the machine's.
NATIVE_PYTHON := $(if $(filter file,$(origin PYTHON)),$(firstword $(wildcard $(VENV)/bin/python) $(PYTHON)),$(PYTHON))
TOOL_PATH = $(dir $(abspath $(shell command -v $(NATIVE_PYTHON)))):$$PATH

.PHONY: demo test test-cuda bench bench-all native native-test clean

demo: $(VENV)/.installed
	$(VENV)/bin/flyweight run "Once upon a time" --temperature 0.6 </dev/null

test: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# In a venv of its own: the suite must pass without torch.
test-cuda: $(VENV)-cuda/.installed
	$(VENV)-cuda/bin/python -m pytest -q -n 2 --dist loadfile tests/ops/cuda tests/training tests/parallel

$(VENV)-cuda/.installed: $(VENV)/.installed
	@$(PYTHON) -m venv $(VENV)-cuda
	@echo "installing torch and Triton"
	@$(VENV)-cuda/bin/pip -q install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(wildcard $(VENV)/wheel/*.whl) \
		'torch==2.13.0' 'triton==3.6.0' 'pytest>=8' 'pytest-xdist>=3.5' 'hypothesis>=6.100'
	@$(VENV)-cuda/bin/pip -q install --force-reinstall --no-deps $(wildcard $(VENV)/wheel/*.whl)
	@touch $@

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "flyweight needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1); try make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) cannot make a venv; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || \
		{ echo "$(PYTHON) has no Python.h to build with; on Debian and Ubuntu: apt install python3-dev"; exit 1; }
	@command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || \
		{ echo "no C++ compiler found; on Debian and Ubuntu: apt install g++"; exit 1; }
	@echo "creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

# The package is compiled once, whatever is installed with it.
$(VENV)/.installed: $(VENV)/bin/python $(SOURCES)
	@$(VENV)/bin/python tools/install.py
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@$(VENV)/bin/python tools/install.py dev
	@touch $@

# Peers come from FLYWEIGHT_PEER_PYTHON, LLAMA_BENCH, or .venv itself: .venv/bin/pip install '.[peers]'.
RESULTS ?= build/bench/results.jsonl
MODELS ?= build/bench/models

bench bench-all: $(VENV)/.installed-bench
	$(VENV)/bin/python bench/suite.py $(if $(filter bench,$@),short,all) --models $(MODELS) --results $(RESULTS)
	$(VENV)/bin/python bench/tables.py $(RESULTS)

$(VENV)/.installed-bench: $(VENV)/.installed
	@$(VENV)/bin/python tools/install.py bench
	@touch $@

native:
	@PATH="$(TOOL_PATH)"; set -e; \
	cmake -S . -B $(BUILD) -G Ninja -DCMAKE_MAKE_PROGRAM="$$(command -v ninja)" -DFLYWEIGHT_WERROR=ON \
		-DPython_EXECUTABLE="$$(command -v $(NATIVE_PYTHON))"; \
	cmake --build $(BUILD); \
	rm -f src/flyweight/_native*.so; cp $(BUILD)/_native*.so src/flyweight/; \
	cd $(BUILD) && $(abspath $(shell command -v $(NATIVE_PYTHON))) -m nanobind.stubgen -q -m _native \
		-o $(CURDIR)/src/flyweight/_native.pyi

native-test:
	@PATH="$(TOOL_PATH)"; set -e; \
	cmake -S . -B build/native-test -G Ninja -DCMAKE_MAKE_PROGRAM="$$(command -v ninja)" -DFLYWEIGHT_TESTS=ON \
		-DFLYWEIGHT_WERROR=ON -DFLYWEIGHT_SANITIZE=$(SANITIZE); \
	cmake --build build/native-test; \
	ctest --test-dir build/native-test --output-on-failure --parallel 2

clean:
	rm -rf build $(VENV) $(VENV)-cuda src/flyweight/_native*.so
