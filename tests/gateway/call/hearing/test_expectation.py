"""The bot's question, and the caller's words so far: how much of the answer is there."""

from __future__ import annotations

import pytest

from gateway.call.hearing.expectation import AnswerProgress, Expected, count_digits, expected, progress
from gateway.call.hearing.wordings import WORDINGS, is_made_of, plain, wording
from gateway.seams.messages import ExpectedReply

PHONE = {
    "en": "Thank you. And what is your phone number?",
    "es": "¿Cuál es su número de teléfono?",
    "fr": "Quel est votre numéro de téléphone ?",
    "it": "Qual è il suo numero di telefono?",
    "pt": "Qual é o seu número de telefone?",
    "de": "Wie lautet Ihre Telefonnummer?",
    "zh": "您的电话号码是多少？",
}
"""The same question in each language."""


@pytest.mark.parametrize(
    ("said", "so_far"),
    [
        ("When I open the page,", AnswerProgress.CLAUSE),
        ("Quand je veux me connecter,", AnswerProgress.CLAUSE),
        ("我 登 录 的 时 候，", AnswerProgress.CLAUSE),
        ("When I open the page...", AnswerProgress.CLAUSE),
        ("When I open the page.", AnswerProgress.UNKNOWN),
        ("On Friday,", AnswerProgress.UNKNOWN),
        ("No, thank you,", AnswerProgress.UNKNOWN),
        ("I want to go to the,", AnswerProgress.SENTENCE),
        ("My number is five five five,", AnswerProgress.NUMBER),
    ],
)
def test_a_clause_that_ends_with_a_comma_goes_on(said: str, so_far: AnswerProgress) -> None:
    assert progress(said, Expected("any"), "en-US") is so_far


@pytest.mark.parametrize("language", WORDINGS)
def test_a_question_for_a_phone_number_is_understood_in_each_language(language: str) -> None:
    wanted = expected(None, PHONE[language], f"{language}-XX")
    assert wanted.kind == "phone" and 9 <= wanted.digits <= 11


@pytest.mark.parametrize("language", WORDINGS)
def test_a_number_waits_after_each_group_until_its_last_digit_in_each_language(language: str) -> None:
    wanted = expected(None, PHONE[language], language)
    digits = [word for word, value in wording(language).units.items() if value in (3, 5, 7)]
    number = (digits * 4)[: wanted.digits]
    for said in range(2, wanted.digits):
        assert progress(" ".join(number[:said]), wanted, language) in (AnswerProgress.PARTIAL, AnswerProgress.NUMBER), (
            said
        )
    assert progress(" ".join(number), wanted, language) is AnswerProgress.COMPLETE


@pytest.mark.parametrize(
    ("said", "language", "digits"),
    [
        ("five five five, oh one double two", "en", 7),
        ("0171 555", "en", 7),
        ("forty two twenty", "en", 4),
        ("eight hundred five five five", "en", 6),
        ("null drei null zweiundvierzig", "de", 5),
        ("seis uno dos treinta y cuatro", "es", 5),
        ("zéro six douze trente quatre cinquante six soixante dix huit", "fr", 10),
        ("quatre vingt dix neuf", "fr", 2),
        ("soixante et onze", "fr", 2),
        ("trentatré venti", "it", 4),
        ("vinte e um meia", "pt", 3),
        ("一三八零零", "zh", 5),
        ("einen Tisch", "de", 0),
        ("a table for one hour", "en", 0),
    ],
)
def test_digits_are_counted_however_they_are_said(said: str, language: str, digits: int) -> None:
    assert count_digits(plain(said), wording(language))[0] == digits


@pytest.mark.parametrize(
    ("said", "wanted", "so_far"),
    [
        ("one two three", Expected("digits", 4), AnswerProgress.PARTIAL),
        ("one two three four", Expected("digits", 4), AnswerProgress.COMPLETE),
        ("I don't have one.", Expected("digits", 10), AnswerProgress.UNKNOWN),
        ("no", Expected("digits", 10), AnswerProgress.UNKNOWN),
        ("john dot smith at", Expected("email"), AnswerProgress.PARTIAL),
        ("john dot smith at example dot", Expected("email"), AnswerProgress.PARTIAL),
        ("john dot smith at example dot com", Expected("email"), AnswerProgress.COMPLETE),
        ("john.smith@example.com.", Expected("email"), AnswerProgress.COMPLETE),
        ("I do not have an email", Expected("email"), AnswerProgress.UNKNOWN),
        ("March", Expected("date"), AnswerProgress.PARTIAL),
        ("the third of March", Expected("date"), AnswerProgress.UNKNOWN),
        ("tomorrow", Expected("date"), AnswerProgress.COMPLETE),
        ("24.12.2026", Expected("date"), AnswerProgress.COMPLETE),
        ("yes", Expected("yesNo"), AnswerProgress.COMPLETE),
        ("yes but", Expected("yesNo"), AnswerProgress.SENTENCE),
        ("yes", Expected("any"), AnswerProgress.UNKNOWN),
        ("12 Main Street", Expected("address"), AnswerProgress.PARTIAL),
        ("12 Main Street, Springfield 62701", Expected("address"), AnswerProgress.UNKNOWN),
        ("Brown, B R O", Expected("name"), AnswerProgress.NUMBER),
        ("Brown, B R O W N", Expected("name"), AnswerProgress.UNKNOWN),
        ("five five five", Expected("any"), AnswerProgress.NUMBER),
        ("T", Expected("any"), AnswerProgress.NUMBER),
        ("B please", Expected("any"), AnswerProgress.UNKNOWN),
        ("in 1995", Expected("any"), AnswerProgress.UNKNOWN),
        ("forty two", Expected("any"), AnswerProgress.UNKNOWN),
        ("I would like to", Expected("any"), AnswerProgress.SENTENCE),
        ("I want, um,", Expected("any"), AnswerProgress.SENTENCE),
        ("Where is my order?", Expected("any"), AnswerProgress.UNKNOWN),
        ("", Expected("digits", 4), AnswerProgress.UNKNOWN),
    ],
)
def test_words_so_far(said: str, wanted: Expected, so_far: AnswerProgress) -> None:
    assert progress(said, wanted, "en-US") is so_far


@pytest.mark.parametrize(
    ("said", "language"),
    [
        ("quisiera una mesa para", "es"), ("je voudrais une table pour", "fr"), ("vorrei un tavolo per", "it"),
        ("queria uma mesa para", "pt"), ("ich möchte einen Tisch für", "de"), ("我想订一个", "zh"),
    ],
)  # fmt: skip
def test_half_a_sentence_in_each_language(said: str, language: str) -> None:
    assert progress(said, Expected("any"), language) is AnswerProgress.SENTENCE


@pytest.mark.parametrize(
    ("asked", "language", "wanted"),
    [
        ("Please tell me the last four digits of your card.", "en", Expected("digits", 4)),
        ("Please enter the 6-digit code.", "en", Expected("digits", 6)),
        ("What is your zip code?", "en", Expected("digits", 5)),
        ("And your e-mail address?", "en", Expected("email")),
        ("What is your name?", "en-GB", Expected("name")),
        ("Is that right?", "en", Expected("yesNo")),
        ("Your phone number is noted. How can I help?", "en", Expected("any")),
        ("Wie lautet Ihre Postleitzahl?", "de-DE", Expected("digits", 5)),
        ("Ist das richtig?", "de", Expected("yesNo")),
        ("What is your phone number?", "xx", Expected("any")),
        ("", "en", Expected("any")),
    ],
)
def test_a_question_says_what_it_expects(asked: str, language: str, wanted: Expected) -> None:
    assert expected(None, asked, language) == wanted


def test_the_manager_s_word_counts_more_than_the_question() -> None:
    assert expected(ExpectedReply(kind="any"), "What is your phone number?", "en") == Expected("any")
    assert expected(ExpectedReply(kind="digits", digits=7), "And?", "en") == Expected("digits", 7)


REFUSALS = ["no", "non", "nein", "nee", "não", "不", "不是", "nope", "stop", "wait", "halt", "alto", "basta", "arrête"]


@pytest.mark.parametrize("language", WORDINGS)
def test_no_refusal_is_an_acknowledgement(language: str) -> None:
    known = wording(language).backchannels
    assert all(plain(phrase) == phrase for phrase in known), "the spelling of plain"
    assert not any(is_made_of(plain(refusal), known) for refusal in REFUSALS)
    assert is_made_of("mhm mhm", known)
