import subprocess
import sys
from pathlib import Path

import pytest

from talkspurt.bench.load import STANDARD, LoadError, LoadTurn, TurnSupply, read_load, standard_load

TURN = LoadTurn(("One two three four five,", "six seven."), 2.5)


def test_the_committed_load_is_what_its_generator_writes() -> None:
    script = STANDARD.parent / "generate.py"
    written = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout
    assert written == STANDARD.read_text()


def test_an_installed_package_has_the_same_load_without_the_file() -> None:
    made, read = standard_load(), read_load(STANDARD)
    assert [made.next() for _ in range(3000)] == [read.next() for _ in range(3000)]
    with pytest.raises(LoadError, match="standard has 3000 turns and all are used"):
        made.next()


def test_no_text_of_the_standard_load_comes_twice_and_its_lengths_are_as_stated() -> None:
    load = read_load(STANDARD)
    turns = [load.next() for _ in range(3000)]
    clauses = [clause for turn in turns for clause in turn.clauses]
    assert len(set(clauses)) == len(clauses)
    assert {len(turn.clauses) for turn in turns} == {1, 2, 3}
    assert {len(turn.clauses[0].split()) for turn in turns} == {5, 6, 7, 8}
    assert all(2.0 <= turn.pause_s <= 6.0 for turn in turns)


def test_a_first_clause_has_its_punctuation_only_at_its_end() -> None:
    load = read_load(STANDARD)
    for _ in range(3000):
        first = load.next().clauses[0]
        assert first[-1] in ".,"
        assert "," not in first[:-1]


def test_tokens_join_to_the_text_and_name_the_one_that_completes_the_first_clause() -> None:
    tokens, speakable = TURN.tokens()
    assert "".join(tokens) == TURN.text == "One two three four five, six seven."
    assert tokens[speakable] == " five,"


def test_a_load_never_repeats_itself() -> None:
    load = TurnSupply(iter([TURN]), "short")
    load.next()
    with pytest.raises(LoadError, match="short has 1 turns and all are used"):
        load.next()


def test_sentences_are_whole_and_none_comes_twice() -> None:
    load, turns = read_load(STANDARD), read_load(STANDARD)
    text, sentences = "", []
    while len(text) < 9000:
        sentences.append(load.next_sentence())
        text += sentences[-1] + " "
    assert text.startswith(" ".join(turns.next().text for _ in range(90)))
    assert all(sentence[-1] in ".?" for sentence in sentences)
    assert {sentence.count(",") for sentence in sentences} == {0, 1}
    assert len(set(sentences)) == len(sentences)


def test_a_long_text_is_made_of_whole_turns() -> None:
    load = TurnSupply(iter([TURN] * 9), "nine")
    assert load.long_text(100).count(TURN.text) == 3
    assert load.used == 3


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"clauses": ["a b."], "pause_ms": 1}\n{"clauses": ["a"]}\n')
    with pytest.raises(LoadError, match=r"x\.jsonl:2"):
        read_load(path)
    with pytest.raises(LoadError, match="cannot read"):
        read_load(tmp_path / "none.jsonl")
