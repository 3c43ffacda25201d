"""The answer that the bot expects, and whether what the caller has said so far completes it. Pure.

The dialogue manager may name the expectation (``expect``). Without that, the bot's last question is read: "What is your
phone number?" expects digits.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.call.hearing.wordings import LanguageWords, is_made_of, plain, wording
from gateway.seams.messages import ExpectedReply


class AnswerProgress(enum.Enum):
    """The state of an answer, as its words show it."""

    COMPLETE = "complete"  # all that was expected has been said
    PARTIAL = "partial"  # a part of what was expected has been said
    NUMBER = "number"  # ends within a number or a spelled word of unknown length
    SENTENCE = "sentence"  # ends with a word that ends no sentence
    CLAUSE = "clause"  # ends with a comma, so the recogniser has heard that more follows
    UNKNOWN = "unknown"  # the words do not show it


PHONE_DIGITS: Mapping[str, int] = {"es": 9, "it": 9, "pt": 9, "zh": 11}
"""Digits of a complete phone number by language; 10 in all others (ITU-T E.164 allows up to 15)."""

_QUESTIONS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "en": (
        ("last four", "4"),
        ("zip code", "5"),
        (r"(?:phone|telephone|mobile|cell|contact|callback|call back) number|number to reach", "phone"),
        (r"e ?mail", "email"),
        (r"date of birth|birth ?date|birthday|(?:what|which) (?:date|day)|when were you born", "date"),
        (r"\baddress\b|where do you live|street", "address"),
        (r"\bspell", "spelling"),
        (r"number|\bpin\b|\bcode\b|digits", "number"),
        (r"your (?:full |first |last )?name|who am i speaking|surname", "name"),
        (r"^(?:is|are|was|were|do|does|did|have|has|can|could|would|will|shall|should|may)\b|right$|correct$", "yesNo"),
    ),
    "es": (
        (r"últim[oa]s cuatro|cuatro últim[oa]s", "4"),
        (r"código postal", "5"),
        (r"teléfono|móvil|celular", "phone"),
        (r"correo|e ?mail", "email"),
        (r"fecha|cumpleaños|cuándo nació|qué día", "date"),
        (r"dirección|dónde vive|calle|domicilio", "address"),
        (r"deletre", "spelling"),
        (r"número|código|pin|dígitos", "number"),
        (r"nombre|apellido|cómo se llama|cómo te llamas|con quién hablo", "name"),
        (r"es correcto|verdad$|de acuerdo$|correcto$", "yesNo"),
    ),
    "fr": (
        (r"quatre derniers", "4"),
        (r"code postal", "5"),
        (r"téléphone|portable|mobile", "phone"),
        (r"e ?mail|mail|courriel|adresse électronique", "email"),
        (r"date|quel jour|anniversaire|né le|née le", "date"),
        (r"adresse|où habitez|rue", "address"),
        (r"épel", "spelling"),
        (r"numéro|code|chiffres", "number"),
        (r"votre (?:pré)?nom|comment vous appelez|qui est à l'appareil", "name"),
        (r"^(?:est ce|êtes|avez|voulez|souhaitez|pouvez)|n'est ce pas$|correct$|c'est bien ça$", "yesNo"),
    ),
    "it": (
        (r"ultime quattro|quattro ultime", "4"),
        (r"codice postale|\bcap\b", "5"),
        (r"telefono|cellulare", "phone"),
        (r"e ?mail|posta elettronica", "email"),
        (r"data|che giorno|quando è nat", "date"),
        (r"indirizzo|dove abita|via e", "address"),
        (r"sillab|lettera per lettera", "spelling"),
        (r"numero|codice|\bpin\b|cifre", "number"),
        (r"nome|cognome|come si chiama|con chi parlo", "name"),
        (r"è corretto|giusto$|va bene$|vero$", "yesNo"),
    ),
    "pt": (
        (r"últimos quatro|quatro últimos", "4"),
        (r"telefone|telemóvel|celular", "phone"),
        (r"e ?mail|correio eletr", "email"),
        (r"data|aniversário|que dia|quando nasceu", "date"),
        (r"endereço|morada|onde mora|\brua\b", "address"),
        (r"soletr", "spelling"),
        (r"número|código|\bcep\b|\bpin\b|dígitos", "number"),
        (r"nome|como se chama|com quem falo", "name"),
        (r"está certo|correto$|certo$|pode ser$", "yesNo"),
    ),
    "de": (
        (r"letzten vier", "4"),
        (r"postleitzahl", "5"),
        (r"telefon|handy|mobilnummer|rufnummer|rückruf", "phone"),
        (r"e ?mail|mailadresse", "email"),
        (r"geburtsdatum|geburtstag|wann (?:sind|bist)|welche[rsmn]? (?:tag|datum)|datum", "date"),
        (r"adresse|anschrift|wo wohnen|straße", "address"),
        (r"buchstab", "spelling"),
        (r"nummer|\bpin\b|code|ziffern", "number"),
        (r"name|wie heißen|mit wem spreche", "name"),
        (r"^(?:ist|sind|haben|hat|möchten|wollen|können|soll|sollen|darf|passt|stimmt)\b|richtig$|okay$", "yesNo"),
    ),
    "zh": (
        (r"后 四 位|最 后 四", "4"),
        (r"邮 编|邮 政 编 码", "6"),
        (r"电 话|手 机", "phone"),
        (r"邮 箱|邮 件", "email"),
        (r"日 期|生 日|哪 天|几 号", "date"),
        (r"地 址|住 哪|住 在", "address"),
        (r"拼 写|怎 么 写", "spelling"),
        (r"号 码|编 号|密 码|验 证 码|单 号", "number"),
        (r"名 字|姓 名|贵 姓|怎 么 称 呼", "name"),
        (r"吗$|对 不 对|是 不 是|好 不 好", "yesNo"),
    ),
}
"""Regular expressions for a question in the spelling of ``plain``, in the order in which they are tried, and what the
question expects. A number is a count of digits."""

_COUNTED = re.compile(r"\b(\d{1,2}|four|five|six|seven|eight|nine|ten) ?digits?\b")
_NUMBER_WORDS = {"four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
_SENTENCE = re.compile(r"[^.!?。！？¿¡]*[?？]|[^.!?。！？¿¡]+")


_LAST_CHARS = 1000
"""Characters at the end of a text that are read. A question or a number is shorter."""


@dataclass(frozen=True, slots=True)
class Expected:
    """An expected answer: its kind, and for digits their number (0: unknown)."""

    kind: str
    digits: int = 0


ANYTHING = Expected("any")
"""Nothing in particular."""


def expected(expect: ExpectedReply | None, said: str, language: str) -> Expected:
    """Return what the bot expects, from the manager's ``expect`` or else from the text that the bot has said."""
    if expect is not None:
        return Expected(expect.kind, expect.digits)
    sentences = [found[0].strip() for found in _SENTENCE.finditer(said[-_LAST_CHARS:]) if found[0].strip()]
    asked = next((each for each in reversed(sentences) if each[-1] in "?？"), sentences[-1] if sentences else "")
    question = plain(asked)
    counted = _COUNTED.search(question)
    if counted is not None:
        return Expected("digits", _NUMBER_WORDS.get(counted[1]) or int(counted[1]))
    primary = language.lower().replace("_", "-").split("-")[0]
    for pattern, kind in _QUESTIONS.get(primary, ()):
        if (kind != "yesNo" or asked.endswith(("?", "？"))) and re.search(pattern, question):
            if kind == "phone":
                return Expected("phone", PHONE_DIGITS.get(primary, 10))
            return Expected("digits", int(kind)) if kind.isdigit() else Expected(kind)
    return ANYTHING


def progress(text: str, wanted: Expected, language: str) -> AnswerProgress:
    """Return how far the words ``text`` answer what is wanted."""
    words = wording(language)
    text = text[-_LAST_CHARS:]
    said = plain(text)
    if not said:
        return AnswerProgress.UNKNOWN
    if is_made_of(said, words.yes_no):
        return AnswerProgress.COMPLETE if wanted.kind == "yesNo" else AnswerProgress.UNKNOWN
    judged = _JUDGES.get(wanted.kind, _free)(said, text, wanted, words)
    if judged is not AnswerProgress.UNKNOWN:
        return judged
    if ends_openly(said, words):
        return AnswerProgress.SENTENCE
    return AnswerProgress.CLAUSE if ends_with_comma(text, said) else AnswerProgress.UNKNOWN


def ends_openly(said: str, words: LanguageWords) -> bool:
    """Return True if the last word or words end no sentence."""
    tail = said.split()[-3:]
    return any(" ".join(tail[-size:]) in words.open_ends for size in range(1, len(tail) + 1))


def ends_with_comma(text: str, said: str) -> bool:
    """Return True if the recogniser has ended a clause with a comma or dots. Of a few words it often does so without
    reason: it has heard little of their melody."""
    return text.rstrip().endswith(_COMMAS) and len(said.split()) >= _CLAUSE_WORDS


_COMMAS = (",", "，", "、", "...", "…")
_CLAUSE_WORDS = 4
"""Words from which a comma is believed."""
_SHORT_PHONE_DIGITS = 7
"""Digits of the shortest phone number that callers give."""
_WORDS_WITH_ONE_DIGIT = 3
"""Most words of an unfinished number with one digit. In a longer text, one digit is a word like "one"."""

# --- numbers and letters ---------------------------------------------------------------------------------------------


def count_digits(said: str, words: LanguageWords) -> tuple[int, bool]:
    """Count the digits of the last number in words in the spelling of ``plain``, however they are grouped.

    Returns:
        The number of digits at the end of the text, and True if they were read one by one, as a phone number is.
    """
    count, singles, tens, times = 0, 0, False, 1
    for word in said.split():
        value = words.units.get(word)
        if word.isdecimal():
            count += len(word) * times
            singles += len(word) if len(word) > 2 or word[0] == "0" or len(word) == 1 else 0
            tens, times = False, 1
        elif value is not None and (count or tens or times > 1 or not _is_article(word, words)):
            count += 0 if tens else times
            singles += times
            tens, times = False, 1
        elif word in words.two_digits:
            count += 0 if tens else 2  # French: soixante et onze
            tens, times = False, 1
        elif word in words.tens:
            if word.startswith("vingt") and singles and count == singles:  # French: quatre-vingt
                count, singles = count + 1, 0
            else:
                count += 0 if tens else 2  # French: soixante-dix
            tens, times = True, 1
        elif words.joined and re.fullmatch(words.joined, word):
            count, tens, times = count + 2, False, 1
        elif word in words.twice:
            times = 2
        elif word in words.thrice:
            times = 3
        elif not (tens and word in words.between):
            if word in _HUNDRED:
                count += 2 * bool(count)
            elif word not in _WITHIN_NUMBERS:
                count, singles = 0, 0
            tens, times = False, 1
    return count, singles >= 2 and singles * 2 >= count


_HUNDRED = frozenset("hundred hundert cien ciento cento cent cem thousand tausend mil mille".split())
_WITHIN_NUMBERS = frozenset(
    "and plus minus dash hyphen space guion tiret trattino hífen strich bindestrich 减 杠".split()
)
"""Words that do not end a number."""


def _is_article(word: str, words: LanguageWords) -> bool:
    """Return True if a unit is also an article ("ein", "un"), which alone is no number."""
    return word in words.open_ends


def all_digits(said: str, words: LanguageWords) -> int:
    """Return the number of digits anywhere in the text."""
    tokens = said.split()
    known = words.units.keys() | words.two_digits | words.tens | words.twice | words.thrice | words.between
    numeric = [
        token
        for token in tokens
        if token.isdecimal() or token in known or (words.joined and re.fullmatch(words.joined, token))
    ]
    return count_digits(" ".join(numeric), words)[0]


def spelled(said: str) -> int:
    """Return the number of single letters at the end, unless they spell a word that came before them."""
    tokens = said.split()
    letters: list[str] = []
    while tokens and len(tokens[-1]) == 1 and tokens[-1].isalpha() and tokens[-1].isascii():
        letters.insert(0, tokens.pop())
    return 0 if "".join(letters) in tokens else len(letters)


def _digits(said: str, text: str, wanted: Expected, words: LanguageWords) -> AnswerProgress:
    count = all_digits(said, words)
    if count == 0 or (count == 1 < wanted.digits and len(said.split()) > _WORDS_WITH_ONE_DIGIT):
        return AnswerProgress.UNKNOWN
    if count >= wanted.digits > 0:
        return AnswerProgress.COMPLETE
    # The length of a number is known if the manager or the question names it, and that of a phone number is at least 7.
    known = wanted.digits > 0 and (wanted.kind == "digits" or count < _SHORT_PHONE_DIGITS)
    return AnswerProgress.PARTIAL if known else AnswerProgress.NUMBER


def _free(said: str, text: str, wanted: Expected, words: LanguageWords) -> AnswerProgress:
    """Judge an answer of which nothing is expected."""
    count, one_by_one = count_digits(said, words)
    year = re.search(r"\b(?:19|20)\d\d$", said) is not None
    if one_by_one and 2 <= count < 10 and not (year and count == 4):
        return AnswerProgress.NUMBER
    # A single letter and nothing else begins a spelled word.
    return AnswerProgress.NUMBER if spelled(said) >= min(2, len(said)) else AnswerProgress.UNKNOWN


# --- other answers ---------------------------------------------------------------------------------------------------

_MAIL = re.compile(r"[^\s@]+@[^\s@]+\.[a-z]{2,}\W*$", re.IGNORECASE)
_REFUSAL_WORDS = 5
"""Words from which an answer without any part of an address is a sentence of its own."""


def _email(said: str, text: str, wanted: Expected, words: LanguageWords) -> AnswerProgress:
    if _MAIL.search(text.strip()):
        return AnswerProgress.COMPLETE
    tokens = said.split()
    signs = [at for at, token in enumerate(tokens) if token in words.at_signs]
    if signs or "@" in text:
        after = tokens[signs[-1] + 1 :] if signs else tokens[-3:]
        dot = max((at for at, token in enumerate(after) if token in words.dots), default=-1)
        return AnswerProgress.COMPLETE if 0 < dot < len(after) - 1 and len(after[-1]) > 1 else AnswerProgress.PARTIAL
    parts = spelled(said) or any(token in words.dots for token in tokens)
    return AnswerProgress.PARTIAL if parts or len(tokens) < _REFUSAL_WORDS else AnswerProgress.UNKNOWN


def _name(said: str, text: str, wanted: Expected, words: LanguageWords) -> AnswerProgress:
    if spelled(said) >= 2:
        return AnswerProgress.NUMBER
    return AnswerProgress.UNKNOWN


def _date(said: str, text: str, wanted: Expected, words: LanguageWords) -> AnswerProgress:
    tokens = said.split()
    if re.search(r"\d{1,4}[./-]\d{1,2}(?:[./-]\d{2,4})?\W*$|\d+\s*[日号]\W*$", text):
        return AnswerProgress.COMPLETE
    if any(" ".join(tokens[-size:]) in words.days for size in (1, 2, 3)):
        return AnswerProgress.COMPLETE
    months = [at for at, token in enumerate(tokens) if token in words.months]
    if months:
        day = any(any(ch.isdigit() for ch in token) for token in tokens) or all_digits(said, words)
        ordinal = re.search(r"\b\w+(?:st|nd|rd|th|ten|sten)\b", said) is not None
        return AnswerProgress.UNKNOWN if day or ordinal else AnswerProgress.PARTIAL
    return AnswerProgress.PARTIAL if all_digits(said, words) else AnswerProgress.UNKNOWN


def _address(said: str, text: str, wanted: Expected, words: LanguageWords) -> AnswerProgress:
    tokens = said.split()
    if re.search(r"\b\d{5,6}\b", said) or re.search(r"\b[a-z]{1,2}\d\w? ?\d[a-z]{2}\b", said):
        return AnswerProgress.UNKNOWN  # it has its postal code
    number = all_digits(said, words) > 0
    if number and len(tokens) >= _ADDRESS_WORDS and not count_digits(said, words)[0]:
        return AnswerProgress.UNKNOWN
    return AnswerProgress.PARTIAL if number or len(tokens) < _ADDRESS_WORDS else AnswerProgress.UNKNOWN


_ADDRESS_WORDS = 5
"""Words of the shortest address: number, street, kind of street, town, and one more."""


def _spelling(said: str, text: str, wanted: Expected, words: LanguageWords) -> AnswerProgress:
    return AnswerProgress.NUMBER if spelled(said) >= 1 or len(said.split()) <= 1 else AnswerProgress.UNKNOWN


_JUDGES = {
    "digits": _digits,
    "phone": _digits,
    "number": _digits,
    "email": _email,
    "name": _name,
    "date": _date,
    "address": _address,
    "spelling": _spelling,
}
