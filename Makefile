# The verbs of the project. Everything lives in .venv; `make clean` removes what they made.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

run: $(VENV)/.run            ## serve the demo on the embedded voice
	$(BIN)/talkspurt serve -c configs/demo.yaml

test: $(VENV)/.test          ## the whole test suite
	$(BIN)/python -m pytest

check: $(VENV)/.dev          ## format, lint, types
	$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy codecs/voicecodecs gateway tts_engine sip_bridge talkspurt

bench: $(VENV)/.run          ## the standard loads; see benchmarks/RESULTS.md
	$(BIN)/talkspurt bench call --calls 1,10,50,100 && $(BIN)/talkspurt bench gateway --calls 300

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

.PHONY: run test check bench clean
