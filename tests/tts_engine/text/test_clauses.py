"""The places at which a stream of tokens is cut."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_engine.text import clauses
from tts_engine.text.clauses import ClauseConfig, ClauseSplitter, Pause


def split(text: str, *, size: int | None = None, config: ClauseConfig | None = None) -> list[str]:
    splitter = ClauseSplitter(config)
    pieces = [text] if size is None else [text[i : i + size] for i in range(0, len(text), size)]
    clauses = [clause for piece in pieces for clause in splitter.feed(piece)] + splitter.flush()
    assert all(clause.text == text[clause.start_char : clause.end_char] for clause in clauses)
    return [clause.text for clause in clauses]


ONE_CLAUSE = [
    "It costs 1,234.50 dollars today.",
    "Dr. Smith and Prof. Jones know Mr. Ng.",
    "Try fruit, e.g. apples or pears.",
    "Visit https://example.com/a.b?c=d,e for help.",
    "Write to first.last@mail.example.org today.",
    "We open at 10:30 and close at 5 p.m. today.",
    "The U.S. team won.",
    "Pi is 3.14159 or so.",
    "Order no. 5 is version 2.0.1 of J. K. Rowling.",
    "It is 3.5% or .5 less.",
    "1. First of all.",
    "现在是3.5万元",
    "We are open on Sat. and Sun. only.",
    "It takes 20 min. or more.",
    "He is 6 in. tall and 10 ft. away.",
    "Send it to P.O. Box 12 today.",
    "Come at 3 p.m. Tuesday for it.",
    "Come at 3 p.m. EST for it.",
    "Our plan has a max. 5 users.",
    "The U.S. Navy sailed.",
    "She lives on Elm Dr. near us.",
    "Your appt. is at noon.",
    "A deal with Co. Ltd. on Monday.",
    "El Sr. Pérez vive en EE. UU. hoy.",
    "Il gent. Rossi ecc. sono qui.",
    "Apto. 3 no 5.º piso.",
    "Die Fa. Weiß und Dr. med. Koch.",
    "It is 5 lbs. of J. R. R. Tolkien.",
]


@pytest.mark.parametrize("text", ONE_CLAUSE)
@pytest.mark.parametrize("size", [1, 3, None])
def test_never_cuts_inside_numbers_abbreviations_and_addresses(text: str, size: int | None) -> None:
    assert split(text, size=size) == [text]


CUTS = [
    ("Hello there. How are you? Fine!", ["Hello there.", "How are you?", "Fine!"]),
    ("Thank you very much, your order is on the way.", ["Thank you very much,", "your order is on the way."]),
    ("Well, your order is on the way.", ["Well, your order is on the way."]),
    ("We close at 5 p.m. Please call again.", ["We close at 5 p.m.", "Please call again."]),
    ('He said "stop." Then he left.', ['He said "stop."', "Then he left."]),
    ("It takes 20 min. Please wait here.", ["It takes 20 min.", "Please wait here."]),
    ("Please come in. Sit down here.", ["Please come in.", "Sit down here."]),
    ("We left the U.S. Then we came back.", ["We left the U.S.", "Then we came back."]),
    ("So did I. Then we left.", ["So did I.", "Then we left."]),
    ("你好！请问有什么可以帮您？我在。", ["你好！", "请问有什么可以帮您？", "我在。"]),
    ("今天天气非常非常好，我们去公园。", ["今天天气非常非常好，", "我们去公园。"]),
    ("first line\nsecond line\n\nthird", ["first line", "second line", "third"]),
    ("What?! Really... yes.", ["What?", "Really... yes."]),
    ('He said "stop!" Then he left.', ['He said "stop!', "Then he left."]),
    ("Is it https://a.example/b?c=d or not?", ["Is it https://a.example/b?c=d or not?"]),
    ("**Great!** Shall we?", ["**Great!", "Shall we?"]),
]


@pytest.mark.parametrize(("text", "clauses"), CUTS)
@pytest.mark.parametrize("size", [1, 2, 5, None])
def test_cuts_at_punctuation(text: str, clauses: list[str], size: int | None) -> None:
    assert split(text, size=size) == clauses


def test_a_full_stop_waits_for_the_next_character_and_no_longer() -> None:
    splitter = ClauseSplitter()
    assert splitter.feed("It costs 3.") == []
    assert splitter.feed("50 now.") == []
    (clause,) = splitter.feed(" ")
    assert clause.text == "It costs 3.50 now."


AT_ONCE, LIKELY, DOUBTFUL, NO_END = "at once", "likely", "doubtful", "no end"
ENDS = [
    ("Hello there!", AT_ONCE, "nothing changes this"),
    ("How can I help you?", AT_ONCE, ""),
    ("(Really?", AT_ONCE, "quotes and brackets after it are not spoken"),
    ("你好！", AT_ONCE, ""),
    ("今天天气非常非常好，", AT_ONCE, ""),
    ("你好吗?", AT_ONCE, "ASCII behind Han"),
    ("One moment please.", LIKELY, "unless it is please.com, or an ellipsis"),
    ('He said "stop."', LIKELY, ""),
    ("So did I.", LIKELY, "the only word of one letter"),
    ("你好.", LIKELY, ""),
    ("Thank you very much,", LIKELY, ""),
    ("Thank you very much;", LIKELY, ""),
    ("It costs 3.", DOUBTFUL, "3.5 percent"),
    ("It costs 1,", DOUBTFUL, "1,234"),
    ("It starts at 3:", DOUBTFUL, "3:30"),
    ("Please go to https:", DOUBTFUL, "https://"),
    ("See https://a.example/b?", DOUBTFUL, "c=d"),
    ("We close at 5 p.m.", DOUBTFUL, "today, or the next sentence"),
    ("Apples, pears etc.", DOUBTFUL, ""),
    ("We are Meyer Inc.", DOUBTFUL, ""),
    ("Let me think here...", DOUBTFUL, "perhaps more dots"),
    ("I know Dr.", NO_END, "Meyer"),
    ("I know J.", NO_END, "an initial"),
    ("Well,", NO_END, "too short for a comma"),
    ("Well...", NO_END, ""),
    ("Hello there", NO_END, ""),
]


@pytest.mark.parametrize(("text", "ends", "why"), ENDS)
@pytest.mark.parametrize("size", [1, None])
def test_when_a_clause_may_be_sent(text: str, ends: str, why: str, size: int | None) -> None:
    splitter = ClauseSplitter()
    pieces = [text] if size is None else text
    cut = [clause.text for piece in pieces for clause in splitter.feed(piece)]
    tentative = splitter.tentative()
    assert splitter.tentative() == tentative, "asking changes nothing"
    if ends in (AT_ONCE, NO_END):
        assert (cut, tentative) == ([text] if ends == AT_ONCE else [], None), why
    else:
        assert tentative is not None
        assert (cut, tentative.clause.text, tentative.likely) == ([], text, ends == LIKELY), why
        assert [tentative.clause] == splitter.feed(" Next") + splitter.feed(" word")


GOES_ON = [
    ("It costs 3.", "5 percent more.", "It costs 3.5 percent more."),
    ("Go to amazon.", "com today.", "Go to amazon.com today."),
    ("Let me see.", ".. yes.", "Let me see..."),
    ("He said stop.", '" Then.', 'He said stop."'),
    ("We close at 5 p.m.", " today.", "We close at 5 p.m. today."),
]


@pytest.mark.parametrize(("text", "more", "clause"), GOES_ON)
def test_a_clause_that_went_on_was_never_cut(text: str, more: str, clause: str) -> None:
    splitter = ClauseSplitter()
    assert splitter.feed(text) == []
    tentative = splitter.tentative()
    assert tentative is not None and tentative.clause.text == text
    assert (splitter.feed(more) + splitter.flush())[0].text == clause


def test_a_pause_in_the_stream_sends_a_likely_clause_and_no_number() -> None:
    splitter = ClauseSplitter()
    splitter.feed("Thank you very much,")
    assert [clause.text for clause in splitter.settle()] == ["Thank you very much,"]
    splitter.feed(" it costs one thousand, two, three, four, and 1,")
    assert splitter.settle() == []


def test_a_pause_in_the_stream_settles_a_sentence_but_not_half_a_one() -> None:
    splitter = ClauseSplitter()
    assert splitter.feed("One moment please.") == []
    assert [c.text for c in splitter.settle()] == ["One moment please."]
    splitter.feed(" Let me see")
    assert splitter.settle() == []
    assert splitter.pending == "Let me see"


@pytest.mark.parametrize(
    "text",
    ["Please see Dr.", "It costs 3.", "Your total is 1,", "We met J.", "It begins at 3:", "Open Mon.", "Mr.",
     "We are in Rm.", "Pay to acct.", "Go to www.", "Go to get.acme.", "See https://acme.", "Is it https://a.io/b?",
     "Write to me@acme."],
)  # fmt: skip
def test_a_pause_does_not_end_a_clause_that_must_continue(text: str) -> None:
    splitter = ClauseSplitter()
    assert splitter.feed(text) + splitter.settle() == []
    assert splitter.pending == text


def test_a_phrase_ends_after_a_whole_word_that_may_end_it() -> None:
    splitter = ClauseSplitter()
    splitter.feed("I am for the")
    assert splitter.phrase() == []  # "the" may be the beginning of "these"
    splitter.feed(" order that you made on Mon")
    assert [clause.text for clause in splitter.phrase()] == ["I am for the order that you made"]
    assert splitter.pending == "on Mon"
    assert splitter.phrase() == []
    splitter.feed("day, and then it will come.")
    assert [clause.text for clause in splitter.flush()] == ["on Monday, and then it will come."]


def test_a_phrase_does_not_end_in_a_number() -> None:
    splitter = ClauseSplitter()
    splitter.feed("your balance is now 1 ")
    assert [clause.text for clause in splitter.phrase()] == ["your balance is now"]


@pytest.mark.parametrize(
    ("text", "phrase"),
    [("please send it to 221B Baker ", "please send it"), ("they came from 12 Elm ", "they came"),
     ("that is the fee per month >= ", "that is the fee per month")],
)  # fmt: skip
def test_a_phrase_does_not_end_next_to_a_number(text: str, phrase: str) -> None:
    splitter = ClauseSplitter()
    splitter.feed(text)
    assert [clause.text for clause in splitter.phrase()] == [phrase]


def test_a_text_without_punctuation_is_cut_at_spaces() -> None:
    cut = split("word " * 43, config=ClauseConfig(first_max_words=5))
    assert [len(c.split()) for c in cut] == [5, clauses.MAX_WORDS, 8]


def test_a_text_without_spaces_is_cut_at_the_character_limit() -> None:
    most = clauses.MAX_CHARS
    assert [len(c) for c in split("x" * (2 * most + 20))] == [most, most, 20]


def test_pauses_follow_the_punctuation() -> None:
    splitter = ClauseSplitter()
    clauses = splitter.feed(
        "Is it you? I think so. \n\nThis here is a new paragraph; it has two rather long halves, see? "
    )
    assert [c.pause for c in clauses] == [Pause.NONE, Pause.QUESTION, Pause.PARAGRAPH, Pause.COMMA]
    assert [c.first for c in clauses] == [True, False, False, False]


@given(st.text(alphabet=st.sampled_from(list("ab1 .,;!?\n\"'—。，你好-:@/")), max_size=120), st.randoms())
def test_cuts_do_not_depend_on_how_the_text_was_fed_and_lose_nothing(text: str, rng: random.Random) -> None:
    splitter = ClauseSplitter()
    clauses, at = [], 0
    while at < len(text):
        size = rng.randint(1, 7)
        clauses += splitter.feed(text[at : at + size])
        at += size
    clauses += splitter.flush()
    assert splitter.pending == ""
    whole = ClauseSplitter()
    assert clauses == whole.feed(text) + whole.flush()
    end = 0
    for clause in clauses:
        assert text[clause.start_char : clause.end_char] == clause.text == clause.text.strip() != ""
        assert text[end : clause.start_char].strip(" \n。，—!?.\"'") == ""
        end = clause.end_char
    assert text[end:].strip(" \n。，—!?.\"'") == ""


def test_blanks_before_a_clause_are_not_kept_to_be_read_again() -> None:
    splitter = ClauseSplitter()
    for _ in range(1000):
        assert splitter.feed(" ") == []
        assert splitter._text == ""
    (clause,) = [*splitter.feed("Hello there."), *splitter.flush()]
    assert (clause.text, clause.start_char, clause.pause) == ("Hello there.", 1000, Pause.NONE)


def test_a_word_is_weighed_once_however_many_marks_follow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    weighed: list[str] = []
    weigh = clauses._weight

    def counting(word: str) -> float:
        weighed.append(word)
        return weigh(word)

    monkeypatch.setattr(clauses, "_weight", counting)
    ClauseSplitter().feed(", " * 1000)
    assert len(weighed) < 3 * 1000


def test_blanks_before_a_clause_do_not_count_for_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clauses, "MAX_CHARS", 40)
    fed, dripped = ClauseSplitter(), ClauseSplitter()
    text = " " * 30 + "x" * 60
    (at_once,) = fed.feed(text)
    (in_pieces,) = [clause for character in text for clause in dripped.feed(character)]
    assert at_once == in_pieces
    assert at_once.text == "x" * 40
