import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_engine.cosyvoice.frontend import normalise as rules
from tts_engine.cosyvoice.frontend.normalise import (
    TextVerbaliser,
    detect_script,
    normalise,
    segments,
    split_paragraph,
)
from tts_engine.cosyvoice.frontend.words import expected_words, syllables

GOLDEN = json.loads((Path(__file__).parents[3] / "goldens/cosyvoice/common/text_frontend.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def wetext() -> TextVerbaliser:
    return TextVerbaliser()


@pytest.mark.parametrize("case", GOLDEN["text_normalize"], ids=lambda case: case["text"][:12])
def test_segments_and_wording_match_the_golden(case: dict[str, object]) -> None:
    text = str(case["text"])
    assert segments(text, str.split) == case["split=True"]
    assert normalise(text).text == case["split=False"]


@pytest.mark.parametrize("case", GOLDEN["split_paragraph"], ids=lambda c: f"{c['lang']}-{c['token_max_n']}")
def test_split_paragraph_matches_the_golden(case: dict[str, object]) -> None:
    limits = {"max_length": case["token_max_n"], "min_length": case["token_min_n"], "merge_length": case["merge_len"]}
    out = split_paragraph(case["text"], str.split, script=case["lang"], comma_split=case["comma_split"], **limits)  # type: ignore[arg-type]
    assert out == case["out"]


@pytest.mark.parametrize("name", GOLDEN["functions"])
def test_each_rule_matches_the_golden(name: str) -> None:
    for given_text, expected in GOLDEN["functions"][name]:
        assert getattr(rules, name)(given_text) == expected


def test_wetext_reads_amounts_dates_and_abbreviations(wetext: TextVerbaliser) -> None:
    spoken = normalise("Mr. Smith owes $45.20 by 10:30.", verbalise=wetext).text
    assert spoken == "Mister Smith owes forty-five dollars and twenty cents by ten thirty."
    assert normalise("3.5天前发货，共￥56.20", verbalise=wetext).text == "三点五天前发货，共五十六点二零元"


@pytest.mark.parametrize(
    ("text", "language", "spoken"),
    [
        ("**Important:** press *1 or #.", "en", "Important: press star one or pound."),
        ("# Heading 😀", "", "Heading"),
        ("Your code is 482913.", "en-US", "Your code is four eight two, nine one three."),
        ("Call 5551234567, open 24/7.", "en",
         "Call five five five, one two three, four five six seven, open twenty-four seven."),
        ("In the 1990s, £3.50, or ₹1,500", "en",
         "In the nineteen nineties, three pounds and fifty pence, or one thousand five hundred rupees"),
        ("482913", "zh-CN", "四八二九幺三"),
        ("¥1,234.50", "zh", "一千二百三十四点五零元"),
        ("50%-60%", "zh", "百分之五十到百分之六十"),
        ("120/80mmHg", "zh", "一百二十比八十毫米汞柱"),
        ("**重要**：请按*键", "", "重要：请按星号键"),
        ("Your order 15 is ready", "zh", "Your order fifteen is ready"),
    ],
)  # fmt: skip
def test_text_is_cleaned_and_spelled_as_for_other_voices(
    wetext: TextVerbaliser, text: str, language: str, spoken: str
) -> None:
    assert normalise(text, language, verbalise=wetext).text == spoken


def test_what_wetext_cannot_read_spoils_nothing_else(wetext: TextVerbaliser, monkeypatch: pytest.MonkeyPatch) -> None:
    chinese = wetext._chinese
    assert chinese is not None

    def refuses(text: str) -> str:
        if "囧" in text:
            raise RuntimeError("no path")
        return str(chinese(text))

    monkeypatch.setattr(wetext, "_chinese", refuses)
    assert wetext("还有3天，囧，共5个", "zh") == "还有三天，囧，共五个"


@pytest.mark.parametrize("text", ['He said  "ok" twice.', "a\\b", "x\n\ny", "(", "5", "😀 3 pm", "a/b 1/2"])
def test_text_that_trips_wetext_is_still_read(wetext: TextVerbaliser, text: str) -> None:
    spoken = normalise(text, verbalise=wetext).text
    assert spoken and '\\"' not in spoken and "\\\\" not in spoken


def test_inline_controls_are_not_shown_to_the_rules() -> None:
    seen: list[str] = []

    def verbalise(text: str, script: rules.Script) -> str:
        seen.append(text)
        return text.upper()

    result = normalise("so [laughter] it <strong>is</strong> [AA1] ok", verbalise=verbalise)
    assert result.text == "SO [laughter] IT <strong>IS</strong> [AA1] OK"
    assert seen == ["so", "it", "is", "ok"]


def test_text_with_model_marks_is_taken_as_it_is() -> None:
    assert normalise("<|endofprompt|>5 x").text == "<|endofprompt|>5 x"


def test_language_decides_where_the_script_does_not() -> None:
    assert detect_script("3 Äpfel", "sv-SE") == ""
    assert normalise("3 Äpfel", "de-DE").text == "3 Äpfel"  # English number words would be wrong
    assert detect_script("日本", "ja") == ""
    assert detect_script("日本") == "zh"
    assert detect_script("3 apples") == "en"
    assert detect_script("482913。", "zh-CN") == "zh"  # a text without letters is in the language of its turn
    assert detect_script("iPhone 15 Pro", "zh-CN") == "zh"
    assert detect_script("Your order 15 is ready", "zh-CN") == "en"
    assert detect_script("3 manzanas", "es-MX") == "es"
    assert detect_script("3 Äpfel", "de-DE") == "de"
    assert detect_script("3 äpplen", "sv") == ""


@given(st.text(alphabet=st.sampled_from("ab1 .,，你好[]<>|-'\"$5\n"), max_size=40))
def test_blocks_cover_both_texts_without_holes(text: str) -> None:
    result = normalise(text)
    spoken_at = at = 0
    for block in result.blocks:
        assert (block.spoken_start, block.start) == (spoken_at, at)
        spoken_at, at = block.spoken_end, block.end
    assert (spoken_at, at) == (len(result.text), len(text))


@given(st.text(max_size=60))
def test_any_text_is_normalised_split_and_weighed(text: str) -> None:
    result = normalise(text)
    position = 0
    for start, end, weight in expected_words(result):
        assert position <= start < end <= len(text) and weight > 0
        assert text[start:end].strip() == text[start:end]
        position = end
    segments(text, str.split)


def test_words_keep_the_callers_spelling_and_weigh_what_is_said(wetext: TextVerbaliser) -> None:
    text = "Order 4512, Mr. Smith, costs $45.20."
    words = {text[a:b]: w for a, b, w in expected_words(normalise(text, verbalise=wetext))}
    assert list(words) == ["Order", "4512,", "Mr.", "Smith,", "costs", "$45.20."]
    assert words["4512,"] == syllables("four five one two") + 1.0  # and the comma's pause
    assert words["$45.20."] == syllables("forty-five dollars and twenty cents.")


def test_chinese_words_are_characters(wetext: TextVerbaliser) -> None:
    text = "已于3天前，发货"
    words = [(text[a:b], w) for a, b, w in expected_words(normalise(text, verbalise=wetext))]
    assert words == [("已", 1.0), ("于", 1.0), ("3", 1.0), ("天", 1.0), ("前，", 2.0), ("发", 1.0), ("货", 1.0)]


def test_controls_weigh_what_they_sound() -> None:
    text = "a [laughter] <strong>b</strong> [j][ǐ] [HH][AA1]"
    words = [(text[a:b], w) for a, b, w in expected_words(normalise(text))]
    assert words == [("a", 1.0), ("[laughter]", 2.0), ("b", 1.0), ("[ǐ]", 1.0), ("[AA1]", 1.0)]


@pytest.mark.parametrize(
    ("word", "count"),
    [
        ("hello", 2),
        ("three", 1),
        ("time", 1),
        ("table", 2),
        ("order", 2),
        ("BBC", 3),
        ("WWW", 9),
        ("don't", 1),
        ("x", 1),
    ],
)
def test_syllables(word: str, count: int) -> None:
    assert syllables(word) == count


def test_a_latin_word_next_to_chinese_is_a_word_of_its_own() -> None:
    normalised = normalise("用iPhone付款5元。", verbalise=lambda text, script: text.replace("5", "五"))
    assert normalised.spoken_for(7, 9) == "付款"
    assert normalised.spoken_for(9, 10) == "五"
    assert normalised.source_for(1, 7) == (1, 7)
    assert normalised.source_for(9, 10) == (9, 10)


def test_what_is_read_names_the_source_that_it_is_read_for() -> None:
    normalised = normalise("共 12 元", verbalise=lambda text, script: text.replace("12", "十二"))
    assert normalised.text == "共十二元"
    assert normalised.source_for(0, 1) == (0, 1)
    assert normalised.source[slice(*normalised.source_for(1, 2))].strip() == "12"
    assert normalised.source_for(3, 4) == (5, 6)
