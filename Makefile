# tierd. Every target does its own set-up; `make help` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: FORCE help serve tour models test test-device test-levels test-server test-soak test-rest test-long soak test-lowest audit bench bench-device bench-switching bench-serving bench-overhead bench-scrape bench-table pages profile sanitize check clean

PYTHON ?= python3
LISTEN ?= 127.0.0.1:8080
BENCH ?=
BENCH_DEVICE ?=
BENCH_SWITCHING ?=
BENCH_SERVING ?=
PROFILE ?=
# Parts of the tests that run at a time.
JOBS ?= 2

VENV := .venv
LOWEST := build/lowest
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SMOLLM2 := .models/SmolLM2-135M-Instruct.Q4_1.gguf
GEMMA3 := .models/gemma-3-270m-q4_k_m.gguf
# What tierd is measured against: on the processor, built on this machine for this machine, and on a device.
RIVAL := .venv-bench
LLAMA_CPP_PYTHON := llama-cpp-python==0.3.36
DEVICE_RIVAL := .venv-bench-vulkan
CYLLAMA_VULKAN := cyllama-vulkan==0.2.18
DEVICE_RIVAL_PYTHON := 3.11
BUILD_INPUTS := pyproject.toml CMakeLists.txt $(wildcard hostkernels/* shaders/*.*)
# What says whether the units are sound, and what plays their restrictions. Tests need them.
SYSTEMD := systemd bubblewrap
# A software device, and what watches over its use. Tests need them; serving does not.
VULKAN := libvulkan1 mesa-vulkan-drivers vulkan-validationlayers
SANITIZED := build/sanitize/libhostkernels.so
# The client for Node.
NODE := build/node/.installed
NODE_PACKAGES := $(addprefix tests/clients/node/,package.json package-lock.json)
# What watches tierd, for the tests of its rules and its dashboard.
PROMETHEUS := build/prometheus/.unpacked
ORACLE_TESTS := tests/test_oracle.py tests/test_device_oracle.py tests/test_rails_oracle.py
DEVICE_TESTS := $(addprefix tests/,shaders backends/resident backends/vkapi backends/rails tier device cli/test_gpu.py test_device_oracle.py test_rails_oracle.py)
SERVER_TESTS := $(addprefix tests/,bench chaos cli clients deploy hostile http)
SOAK_TESTS := tests/soak
TEST_NEEDS := $(VENV)/.dev $(VENV)/.vulkan $(VENV)/.systemd $(VENV)/.chromium $(VENV)/.kompute $(SMOLLM2) $(GEMMA3) $(SANITIZED) $(NODE) $(PROMETHEUS)
# Of all tests, the longest first.
PARTS := test-server test-rest test-soak test-device test-levels sanitize

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: $(VENV)/.serve $(VENV)/.kompute $(SMOLLM2) ## serve the demo model (LISTEN=127.0.0.1:8080)
	@sh tools/try_it.sh $(LISTEN) $(basename $(notdir $(SMOLLM2)))
	@exec $(BIN)/tierd serve --model $(SMOLLM2) --listen $(LISTEN)

tour: $(VENV)/.serve $(VENV)/.vulkan $(SMOLLM2) $(GEMMA3) ## serve two models that take turns on the GPU, for the README's tour
	@exec $(BIN)/tierd serve --config config/tour.toml --listen $(LISTEN)

models: $(SMOLLM2) $(GEMMA3) ## fetch the models that the tests need

test: $(TEST_NEEDS) ## run all tests, in parts, two at a time (JOBS=1: one by one)
	@echo 'Each part of the tests is shown once it is done.'
	@$(MAKE) --no-print-directory --jobs=$(JOBS) --output-sync=target --keep-going $(PARTS)

test-device: $(VENV)/.dev $(VENV)/.vulkan $(VENV)/.kompute $(SMOLLM2) $(GEMMA3) ## run the tests of the Vulkan device
	$(BIN)/python -m pytest $(DEVICE_TESTS)

test-levels: $(VENV)/.dev $(SMOLLM2) $(GEMMA3) ## run the tests of the kernels at the CPU's other levels
	$(BIN)/python tests/other_levels.py

test-server: $(TEST_NEEDS) ## run the tests of the server, of the command line, and of what is made of them
	$(BIN)/python -m pytest $(SERVER_TESTS) $(DEVICE_TESTS:%=--ignore=%)

test-soak: $(VENV)/.dev $(VENV)/.vulkan ## serve mixed traffic for two minutes
	$(BIN)/python -m pytest $(SOAK_TESTS)

test-rest: $(TEST_NEEDS) ## run all other tests, those of the best level included
	$(BIN)/python -m pytest $(patsubst %,--ignore=%,$(DEVICE_TESTS) $(SERVER_TESTS) $(SOAK_TESTS))

test-long: export TIERD_TEST_RESULTS := $(CURDIR)/tests/bench/results/long
test-long: $(VENV)/.dev $(VENV)/.vulkan $(VENV)/.kompute $(SMOLLM2) $(GEMMA3) ## run the tests that take minutes, and keep what they measure
	$(BIN)/python -m pytest -m long $(ORACLE_TESTS:%=--ignore=%) --timeout 1800
	$(BIN)/python -m pytest -m '' $(ORACLE_TESTS) --timeout 1800
	$(BIN)/python tests/other_levels.py -m long --timeout 1800

soak: export TIERD_TEST_RESULTS := $(CURDIR)/tests/bench/results/soak
soak: $(VENV)/.dev $(VENV)/.vulkan ## serve mixed traffic for an hour, and keep what the daemon held meanwhile
	$(BIN)/python -m pytest -m soak $(SOAK_TESTS)

test-lowest: $(VENV)/.created $(VENV)/.vulkan $(VENV)/.systemd $(VENV)/.chromium $(SMOLLM2) $(GEMMA3) $(SANITIZED) $(NODE) $(PROMETHEUS) ## run all tests on the lowest versions of the dependencies
	$(PYTHON) -m venv $(LOWEST)
	$(PYTHON) tools/lowest_bounds.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip --disable-pip-version-check install --constraint $(LOWEST)/constraints.txt --editable '.[test]'
	$(LOWEST)/bin/python -m pytest

bench: $(VENV)/.serve $(SMOLLM2) $(GEMMA3) $(RIVAL)/.built ## time the first token, then tierd against llama.cpp (BENCH='--rounds 5 --files q4_1,gemma3')
	$(BIN)/python tests/bench/first_token.py
	$(BIN)/python tests/bench/throughput.py --llama-python $(RIVAL)/bin/python $(BENCH)
	@$(MAKE) --no-print-directory bench-device
	@$(MAKE) --no-print-directory bench-switching
	@$(MAKE) --no-print-directory bench-serving

bench-device: $(VENV)/.serve $(VENV)/.vulkan $(SMOLLM2) ## tierd against llama.cpp on a Vulkan device (BENCH_DEVICE='--prefill 512')
	@if $(BIN)/python -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "$(DEVICE_RIVAL_PYTHON)")'; then \
		$(MAKE) --no-print-directory $(DEVICE_RIVAL)/.built; \
		$(BIN)/python tests/bench/device_throughput.py --llama-python $(DEVICE_RIVAL)/bin/python $(BENCH_DEVICE); \
	else \
		echo 'not run: $(CYLLAMA_VULKAN) is meant for Python $(DEVICE_RIVAL_PYTHON)'; \
	fi

bench-switching: $(VENV)/.serve $(VENV)/.vulkan $(SMOLLM2) $(GEMMA3) ## talk to two models in turns where one fits (BENCH_SWITCHING='--tiers cpu')
	$(BIN)/python tests/bench/switching.py $(BENCH_SWITCHING)

bench-serving: $(VENV)/.serve $(SMOLLM2) $(RIVAL)/.server ## tierd against llama.cpp's server over HTTP, with 1 to 32 clients (BENCH_SERVING='--clients 8')
	$(BIN)/python tests/bench/serving.py --llama-python $(RIVAL)/bin/python $(BENCH_SERVING)

bench-overhead: $(VENV)/.dev ## CPU time of Python and HTTP for each token, with 8 clients and a device that computes nothing
	$(BIN)/python tests/bench/overhead.py

bench-scrape: $(VENV)/.dev ## CPU time of a scrape of /metrics, by how many models there are
	$(BIN)/python tests/bench/scrape.py

bench-table: ## put the newest results of make bench into the README
	$(PYTHON) tests/bench/tables.py

pages: $(VENV)/.serve ## write docs/metrics.md, docs/settings.md and the dashboard anew from their tables
	$(BIN)/python tools/make_metrics_page.py
	$(BIN)/python tools/make_settings_page.py
	$(BIN)/python tools/make_dashboard.py

profile: $(VENV)/.serve $(SMOLLM2) ## show where the time of a decode step goes (PROFILE='--streams 8 --device')
	$(BIN)/python tests/bench/profile_step.py $(SMOLLM2) $(PROFILE)

sanitize: $(VENV)/.dev $(SANITIZED) ## run the kernel tests under ASan and UBSan
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0 \
	HOSTKERNELS_LIBRARY="$(CURDIR)/$(SANITIZED)" \
	$(BIN)/python -m pytest tests/hostkernels $(wildcard tests/backends/test_host*)

check: $(VENV)/.dev audit ## lint, types, floors, SPIR-V, dependencies
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/validate_shaders.py

audit: $(VENV)/.dev ## list the dependencies (build/sbom.cdx.json) and ask for known vulnerabilities
	$(BIN)/python tools/audit.py build/sbom.cdx.json

clean: ## remove the environments and builds, keep the models
	rm -rf $(VENV) $(RIVAL) $(DEVICE_RIVAL) build

$(VENV)/.created:
	@sh tools/debian_packages.sh $(PYTHON)
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The browser that looks at the status page.
$(VENV)/.chromium: | $(VENV)/.created
	@sh tools/debian_packages.sh $(PYTHON) chromium
	@touch $@

$(VENV)/.vulkan: | $(VENV)/.created
	@sh tools/debian_packages.sh $(PYTHON) $(VULKAN)
	@touch $@

$(VENV)/.systemd: | $(VENV)/.created
	@sh tools/debian_packages.sh $(PYTHON) $(SYSTEMD)
	@touch $@

# Where it cannot be had this says why, and all goes on without it.
$(VENV)/.kompute: tools/install_kompute.py tools/kompute.cmake | $(VENV)/.created
	$(BIN)/python tools/install_kompute.py
	@touch $@

$(NODE): $(NODE_PACKAGES) | $(VENV)/.created
	@sh tools/debian_packages.sh $(PYTHON) nodejs npm
	@mkdir -p $(@D)
	cp $^ $(@D)
	cd $(@D) && npm ci --no-audit --no-fund --ignore-scripts
	@touch $@

$(PROMETHEUS): tools/unpack_prometheus.sh
	@sh tools/unpack_prometheus.sh $(@D)
	@touch $@

# The list of modules, which an editable installation knows by name. Written anew when it is another.
$(VENV)/.modules: FORCE | $(VENV)/.created
	@find daemon/tierd -name '*.py' | sort > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

$(VENV)/.serve: $(VENV)/.created $(VENV)/.modules $(BUILD_INPUTS)
	$(PIP) install --editable .
	@touch $@

# Much of it is never imported, so nothing is compiled before it is.
$(VENV)/.dev: $(VENV)/.created $(VENV)/.modules $(BUILD_INPUTS)
	$(PIP) install --no-compile --editable '.[dev]'
	@touch $(VENV)/.serve $@

$(RIVAL)/.built:
	@sh tools/debian_packages.sh $(PYTHON) g++
	$(PYTHON) -m venv $(RIVAL)
	CMAKE_ARGS="-DGGML_NATIVE=ON" $(RIVAL)/bin/python -m pip --disable-pip-version-check install --no-binary llama-cpp-python $(LLAMA_CPP_PYTHON)
	@touch $@

# What its server needs besides; llama.cpp is not built again.
$(RIVAL)/.server: $(RIVAL)/.built
	$(RIVAL)/bin/python -m pip --disable-pip-version-check install '$(subst ==,[server]==,$(LLAMA_CPP_PYTHON))'
	@touch $@

$(DEVICE_RIVAL)/.built:
	$(PYTHON) -m venv $(DEVICE_RIVAL)
	$(DEVICE_RIVAL)/bin/python -m pip --disable-pip-version-check install $(CYLLAMA_VULKAN)
	@touch $@

$(SMOLLM2): | $(VENV)/.created
	@$(BIN)/python tools/fetch_model.py smollm2 .models

$(GEMMA3): | $(VENV)/.created
	@$(BIN)/python tools/fetch_model.py gemma3 .models

$(SANITIZED): $(VENV)/.dev $(BUILD_INPUTS) tests/hostkernels/canary.c
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/sanitize -DHOSTKERNELS_SANITIZE=ON -DCMAKE_C_COMPILER=gcc --log-level=WARNING
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/sanitize --parallel
	@touch $@
