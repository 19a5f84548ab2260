# The words people type. CMake and its presets do the work; tools/setup installs what is missing.
# BREAK=1 (for demo) runs the build with a planted fault instead: it must be caught.

.PHONY: gpu-bundle gpu-check gpu-bench all demo test eval lint asan tsan fuzz portability bench break faults clean help
.DEFAULT_GOAL := all

all: ## build build/corun (release)
	@tools/setup build
	@tools/build release corun corun_lib

demo: ## run the demo batch three times, two schedules and a kill -9, and compare the bytes: a minute (BREAK=1: must fail)
	@tools/setup build demo
	@tools/build release corun
	@if [ -n "$(BREAK)" ]; then tools/build break corun; fi
	@BREAK="$(BREAK)" scripts/demo.sh

test: ## everything CI runs; closes with "N passed, N failed, N skipped"
	@tools/setup build test lint portability
	@python3 tools/fetch tests || echo "test: what needs the missing files is skipped (under CI it fails)"
	@tools/run_tests

eval: ## lm-evaluation-harness on the engine and through the server (its packages take 760 MB)
	@tools/setup build demo eval
	@tools/build release corun corun_lib
	@python3 tools/fetch demo || echo "eval: what needs the demo model is skipped"
	@.cache/venv-eval/bin/python -m pytest -q tests/test_lm_eval.py

lint: ## layers, limits, format, cppcheck
	@tools/setup lint
	@tools/lint

asan: ## unit tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@tools/setup build test
	@tools/run_tests asan

tsan: ## unit tests under ThreadSanitizer
	@tools/setup build test
	@tools/run_tests tsan

fuzz: ## every libFuzzer target for SECONDS_EACH (default 60) seconds
	@tools/setup build fuzz
	@tools/build fuzz
	@tools/fuzz "$${SECONDS_EACH:-60}"

portability: ## plain C and aarch64 (under qemu-user) give the bytes of the native build
	@tools/setup build demo portability
	@scripts/portability.sh

gpu-bundle: ## a folder for a machine with a GPU: needs its driver and the CUDA 13 libraries alone
	@tools/setup build test
	@scripts/gpu_bundle.sh

gpu-check: gpu-bundle ## every check of the CUDA backend on this machine's GPU, a report in docs/evidence/gpu
	@scripts/gpu_check.sh build/bundle docs/evidence/gpu

gpu-bench: gpu-bundle ## times the CUDA backend on this machine's GPU, raw output in docs/evidence/gpu/bench
	@scripts/gpu_bench.sh build/bundle docs/evidence/gpu/bench

bench: ## times the steps of the demo model beside their own matrix products
	@tools/setup build demo
	@tools/build release corun
	@python3 tools/fetch demo
	@build/corun bench -m .cache/models/SmolLM2-135M-Instruct.Q4_1.gguf

break: ## the build with planted faults (an order-dependent sum is on), build/break/corun
	@tools/setup build
	@tools/build break corun

faults: ## each planted fault must be caught by its recipe of `corun verify`
	@tools/setup build
	@tools/build release corun
	@tools/build break corun
	@tools/check_faults

clean: ## remove the builds (downloads in .cache stay)
	rm -rf build demo-out demo-out-break

help: ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22
