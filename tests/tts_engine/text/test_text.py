"""Readings, their alignment to the caller's characters, and what counts as text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_engine.text.english import spell_out
from tts_engine.text.normalise import align, clean
from tts_engine.text.scripts import foreign_scripts, is_noise, is_speakable


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("Call +1 (555) 123-4567 now.", "Call plus 1, 5 5 5, 1 2 3, 4 5 6 7 now."),
        ("Call 555-123-4567.", "Call 5 5 5, 1 2 3, 4 5 6 7."),
        ("Your code is 482913.", "Your code is 4 8 2, 9 1 3."),
        ("Zip 90210, ID 0042.", "Zip 9 0 2 1 0, ID 0 0 4 2."),
        ("Dial 911!", "Dial 9 1 1!"),
        ("20€, 5 EUR and 7 USD", "€20, €5 and $7"),
        ("On 01.05.2024 we meet.", "On 2024-05-01 we meet."),
        ("Open 24/7, from 9-5.", "Open twenty-four seven, from 9 to 5."),
        ("See https://www.example.com/a-b.", "See example dot com slash a dash b."),
        ("Mail jo.x@example.org now.", "Mail jo dot x at example dot org now."),
        ("e.g. 10k", "for example 10 thousand"),
        (",".join(["12"] * 13), ", ".join(["12"] * 13)),  # no voice has a name for such a number
    ],
)
def test_what_the_voice_would_read_wrong_is_spelled_out(written: str, spoken: str) -> None:
    assert spell_out(written) == spoken
    assert spell_out(spoken) == spoken


@pytest.mark.parametrize(
    "text",
    ["It is 1,234.50 or $1,234.50.", "At 5:05 a.m. or 12:00.", "In 1999 and 2024.", "2024-05-01", "3.2.1",
     "1,000,000 of 5%", "Room 101, gate B12", "5/1/2024", "0.05 and 10.5", "1,050,000"],
)  # fmt: skip
def test_what_the_voice_reads_well_is_left_alone(text: str) -> None:
    assert spell_out(text) == text


def test_a_word_read_by_several_words_keeps_its_own_characters() -> None:
    source, spoken = "We paid $5 at 7:30 pm, ok?", "We paid five dollars at seven thirty P.M., ok?"
    read = spoken.split()
    pairs = [(source[m.start_char : m.end_char], read[m.first_word : m.end_word]) for m in align(source, spoken)]
    assert pairs == [
        ("We", ["We"]),
        ("paid", ["paid"]),
        ("$5", ["five", "dollars"]),
        ("at", ["at"]),
        ("7:30", ["seven", "thirty"]),
        ("pm,", ["P.M.,"]),
        ("ok?", ["ok?"]),
    ]


words = st.lists(st.sampled_from("a b c 1 2 x,y 7:30 — :) two".split()), max_size=12).map(" ".join)


@given(words, words)
def test_every_spoken_word_has_exactly_one_place_in_order(source: str, spoken: str) -> None:
    matches = align(source, spoken)
    covered = [word for match in matches for word in range(match.first_word, match.end_word)]
    assert covered == list(range(len(spoken.split())))
    assert all(0 <= m.start_char <= m.end_char <= len(source) for m in matches)
    assert all(a.start_char <= b.start_char for a, b in zip(matches, matches[1:], strict=False))


def test_mark_up_and_noise_are_not_read() -> None:
    assert (
        clean("# Hi\n- **Bold** _it_ `x` [label](http://a.b)\x07 １２ ﬁ").split() == "Hi Bold it x label 12 fi".split()
    )
    assert clean("5 * 3 snake_case a-b 2>1") == "5 * 3 snake_case a-b 2>1"
    assert clean("half ½ of 5 µm at 3 °C") == "half ½ of 5 µm at 3 °C"


@pytest.mark.parametrize(
    ("text", "scripts"),
    [("你好 мир abc", ["Han", "Cyrillic"]), ("naïve café µm № 12 ½", []),
     ("ひらカタ", ["Hiragana", "Katakana"]), ("ΑΒΓ", ["Greek"])],
)  # fmt: skip
def test_scripts_are_named(text: str, scripts: list[str]) -> None:
    assert foreign_scripts(text, {"Latin"}) == scripts


def test_noise_and_speakable() -> None:
    assert all(map(is_noise, "👍\u200d\ufe0f🏽\x00\u202e"))
    assert not any(map(is_noise, "aé你 \n%°€…"))
    assert is_speakable("5") and is_speakable("你") and is_speakable("100%")
    assert not is_speakable("?! … 👍 —")
    assert not re.search(r"\w", "?! … 👍 —")
