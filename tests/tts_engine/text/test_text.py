"""Readings, their alignment to the caller's characters, and what counts as text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_engine.text.normalise import align, clean, join_surrogates
from tts_engine.text.scripts import foreign_scripts, is_noise, is_speakable


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
    ("written", "spoken"),
    [
        ("**Important:** read *this*", "Important: read this"),
        ("he said **yes", "he said yes"),  # the clause ends before the closing mark
        ("Important:** now", "Important: now"),
        ("## Heading", "Heading"),
        ("Well [laughter] that's it [sigh].", "Well that's it."),  # sounds that only CosyVoice makes
        ("> quoted\n- [ ] task\n- [x] done\n+ more", "quoted\ntask\ndone\nmore"),
        ("- 5 apples", "5 apples"),
        (r"It costs \$5 \* 3, \*not\* \_more\_", "It costs $5 * 3, not more"),
        ("one\\\ntwo", "one\ntwo"),
        ("See <https://a.io/b> or <x@a.io>, 2 < 3", "See https://a.io/b or x@a.io, 2 < 3"),
        ("see [here][1]\n\n[1]: https://a.io", "see [here]\n\n"),
        ("=== Hours ===", "  Hours  "),
        ("a<script>x()</script>b<style>.c{}</style>", "a b "),
        ("| Name | Price |\n|:---|---:|\n| Tea | $3 |", "Name, Price\n\nTea, $3"),
        ("```python\nprint\n```", "\nprint\n"),
        ("~~old~~ `new`", "old new"),
        ("as shown [1], and here[^2].", "as shown, and here."),
        ("See below.\n[^2]: A footnote.", "See below.\nA footnote."),
        ("The law is $E = mc^2$, not $5.", "The law is E = mc^2, not $5."),
        ("①②", " 1  2 "),
        ('[call us](tel:+123 "now") or ![logo](http://x/y.png)', "call us or logo"),
        ("<b>Bold</b> <i class='x'>text</i><br/>next", "Bold text next"),
        ('<vendor:style name="happy">Hi</vendor:style>', "Hi"),
        ("<think>The caller is angry.</think>Hello", " Hello"),
        ("Tom &amp; Jerry &lt;3 &#233; &#xe9; &hellip;", "Tom & Jerry <3 é é …"),
        ("2 < 3 and 4 > 1, a <b and c> d", "2 < 3 and 4 > 1, a <b and c> d"),
        ("Press * or #, or dial *67#.", "Press * or #, or dial *67#."),
        ("Our #1 #offer", "Our #1 offer"),
        ("**5 items** and *6 items*", "5 items and 6 items"),
        ("half \ud83d\ude00 of \ud83d a pair", "half   of  a pair"),
        ("zero\u200bwidth\u202e", "zero width "),
        ("***\n---\n", "\n\n"),
    ],
)
def test_only_words_and_keys_remain(written: str, spoken: str) -> None:
    assert clean(written) == spoken


def test_chinese_punctuation_can_stay() -> None:
    assert clean("好，**１２**！（是）", wide_marks=True) == "好，12！（是）"


def test_halves_of_a_character_are_joined_or_dropped() -> None:
    assert join_surrogates("a\ud83d\ude00b\ud83dc\ude00") == "a😀bc"


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
