# The verbs of the project. Everything lives in .venv; `make clean` removes what they made.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

run: $(VENV)/.run            ## serve the demo on the embedded voice
	$(BIN)/talkspurt serve -c configs/demo.yaml

test: test-hermetic test-peers  ## both halves; each says what it skipped and which ten tests were slowest

test-hermetic: $(VENV)/.test ## what needs no other program
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --durations=10 --ignore=tests/peers

coverage: $(VENV)/.dev       ## branches that the hermetic half takes
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --cov --cov-report=term --ignore=tests/peers

test-peers: $(VENV)/.test    ## beside servers, browsers, phones and switches; skips what is not installed
	$(BIN)/python -m pytest --durations=10 tests/peers

test-gpu: $(VENV)/.test      ## the kernels at full size, on an NVIDIA GPU
	$(BIN)/python -m pytest --durations=10 -m gpu

check: $(VENV)/.dev          ## format, lint, types
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy codecs/voicecodecs gateway tts_engine sip_bridge talkspurt tests

bench: $(VENV)/.run          ## the standard loads; see benchmarks/RESULTS.md
	$(BIN)/talkspurt bench call --calls 1,10,50,100 && $(BIN)/talkspurt bench gateway --calls 300

SECONDS ?= 600
fuzz: $(VENV)/.fuzz          ## each parser for SECONDS under atheris; TARGETS=sip-message,dialogue for some of them
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --targets "$(TARGETS)"

docs: $(VENV)/.docs          ## the API reference of the docstrings, in build/docs
	$(BIN)/python -m pdoc --docformat google --no-show-source -o build/docs \
	    gateway tts_engine sip_bridge talkspurt voicecodecs '!tts_engine.proto' '!tts_engine.cosyvoice.vllm_plugin'

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(VENV)/bin/python pyproject.toml
	($(BIN)/python -m pip install -q -e '.[recogniser]' || $(BIN)/python -m pip install -q -e .) && touch $@

$(VENV)/.test: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install -q -e '.[test]' && touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install -q -e '.[dev]' && touch $@

$(VENV)/.fuzz: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install -q -e '.[fuzz]' && touch $@

$(VENV)/.docs: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install -q -e '.[docs]' && touch $@

.PHONY: run test test-hermetic coverage test-peers test-gpu check bench fuzz docs clean
