"""Text on its way to a voice: clauses, cleaning, readings of numbers and addresses."""

from __future__ import annotations

import contextlib
import tempfile
from functools import cache
from pathlib import Path

from gateway.call.hearing.expectation import AnswerProgress, expected, progress
from gateway.call.hearing.wordings import plain
from gateway.call.turn_taking.speakable import Lexicon, Speakable
from tests.fuzz.target import Target
from tts_engine.cosyvoice.frontend.normalise import normalise
from tts_engine.cosyvoice.frontend.words import expected_words
from tts_engine.embedded.hibari_text import PhonemeReader
from tts_engine.embedded.mandarin_text import MandarinReader
from tts_engine.errors import InvalidRequest
from tts_engine.text.clauses import MAX_CHARS, ClauseConfig, ClauseSplitter
from tts_engine.text.normalise import align, clean
from tts_engine.text.scripts import foreign_scripts, is_speakable
from tts_engine.text.verbalise.chinese import prepare
from tts_engine.text.verbalise.languages import LANGUAGES, verbalise

SEEDS = tuple(
    text.encode()
    for text in (
        "Hello there. It costs 1,234.50 dollars, e.g. at 10:30 p.m. — call +1 (555) 123-4567 now!",
        "**Bold** [label](https://example.com/a?b=c) first.last@mail.example.org # heading\n\n- item 482913 20 €",
        "你好，世界。今天是2024年5月1日，温度是３℃…… “好的！” 他说：走吧；再见",
        "Dr. Smith Inc. is 1990–2000; the U.S. team won... Ångström ﬁne ²³ m² ① 👍🏽 \u200b\u00ad\u2028",
        "<|endofprompt|>[laughter] sie <strong>geht</strong> 24/7 $5 million EUR 5k",
    )
)
WORDS = tuple(
    word.encode()
    for word in (". ", ", ", "! ", "? ", "\n\n", "—", "…", "。", "，", "Mr.", "e.g.", "U.S.", "www.", "@", "://", "**",
    "](", "½", "+49 ",
                 "\u3000", "\u0301", "👍", "ﬃ", "Ⅳ", "㎏", "'", '"', "”", "(", "0", "1.", "[breath]", "\ue000",
                 "\U0001d7d8")
)  # fmt: skip


_PLAIN = "the text was made plain where it came in, as a manager's message or a request"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "ignore")


def run_clauses(data: bytes) -> None:
    """Clauses are the text, verbatim and in order; nothing readable is lost; none is too long; neither how the text is
    cut nor who asks for a tentative clause matters."""
    config = ClauseConfig()
    size = data[0] % 16 + 1 if data else 1
    text = _text(data[1:])
    whole, piecewise = ClauseSplitter(config), ClauseSplitter(config)
    clauses = [*whole.feed(text), *whole.flush()]
    fed = []
    for at in range(0, len(text), size):
        fed += piecewise.feed(text[at : at + size])
        tentative = piecewise.tentative()
        if tentative is not None:
            maybe = tentative.clause
            assert maybe.text == text[maybe.start_char : maybe.end_char] == maybe.text.strip() != ""
            assert len(maybe.text) <= MAX_CHARS and maybe.end_char <= at + size
    assert [*fed, *piecewise.flush()] == clauses
    end = 0
    for clause in clauses:
        assert clause.text == text[clause.start_char : clause.end_char] == clause.text.strip() != ""
        assert clause.start_char >= end and len(clause.text) <= MAX_CHARS
        assert not any(char.isalnum() for char in text[end : clause.start_char])
        end = clause.end_char
    assert not any(char.isalnum() for char in text[end:]) and whole.pending == ""
    settled = ClauseSplitter(config)
    settled.feed(text)
    settled.settle()
    assert text.endswith(settled.pending)


LEXICON = Lexicon({"nginx": "engine x", "SQL": "sequel", "SQL Server": "sequel server", "C++": "C plus plus"})


def run_markup(data: bytes) -> None:
    """Cuts do not matter; each spoken character has a place in the tokens, and places never go back."""
    size = data[0] % 16 + 1 if data else 1
    words = LEXICON if data[:1] > b"\x7f" else None
    text = _text(data[1:])
    whole, pieces = Speakable(words), Speakable(words)
    said = whole.feed(text) + whole.close()
    told = "".join([*(pieces.feed(text[at : at + size]) for at in range(0, len(text), size)), pieces.close()])
    assert said == told == whole.text == pieces.text
    ends = [whole.written(spoken) for spoken in range(len(said) + 1)]
    assert ends == [pieces.written(spoken) for spoken in range(len(said) + 1)] == sorted(ends)
    assert ends[0] == 0 and ends[-1] <= len(text)


def run_normaliser(data: bytes) -> None:
    """The words that a voice reads are aligned with the text: every word once, in order, within the text."""
    text = _text(data)[:400]  # no clause is longer
    readable = clean(text)
    foreign_scripts(readable, {"Latin"})
    is_speakable(readable)
    for language in LANGUAGES:
        spoken = verbalise(readable, language)
    prepare(readable)
    matches = align(text, spoken)
    assert [word for match in matches for word in range(match.first_word, match.end_word)] == list(
        range(len(spoken.split()))
    )
    for match in matches:
        assert 0 <= match.start_char <= match.end_char <= len(text)


def run_cosyvoice_text(data: bytes) -> None:
    """The same of CosyVoice's text front end, whose blocks cover both texts."""
    text = _text(data)[:400]
    for language in ("", "zh", "en"):
        normal = normalise(text, language)
        expected_words(normal)
        start, end = normal.source_for(0, len(normal.text))
        assert 0 <= start <= end <= len(text)


@cache
def _reader() -> PhonemeReader:
    return PhonemeReader()


def run_reader(data: bytes) -> None:
    """A clause becomes ids of the voice's alphabet; each word has its characters and its ids."""
    text = _text(data)[:400]
    with contextlib.suppress(InvalidRequest):
        for piece in _reader().read(text):
            for word in piece.words:
                assert 0 <= word.start_char <= word.end_char <= len(text)
                assert 0 < word.first_id <= word.end_id <= len(piece.ids)


MARKUP = (
    b'<speak>One<break time="1s"/>two <sub alias="World Wide Web">W3C</sub> <say-as interpret-as="digits">40</say-as>',
    b"2 < 3 &amp; <prosody rate='x'>nginx</prosody>, SQL Server C++ &#65;<lang xml:lang=\"fr\">oui</lang> <b>no</b>",
    b'<phoneme alphabet="ipa" ph="t">tomato</phoneme><break strength="weak"/></sub><s>a</s><amazon:effect name="x">b',
)
MARKUP_WORDS = (
    b"<", b">", b"/>", b"</", b'="', b'"', b"'", b" ", b"break", b"sub", b"say-as", b" alias=", b"</sub>", b"</say-as>",
    b' interpret-as="characters"', b"&amp;", b"&#x41;", b"&", b";", b"SQL", b" Server", b"nginx", b"C++", b"\xc4\xb1",
)  # fmt: skip


@cache
def _mandarin_reader() -> MandarinReader:
    return MandarinReader(_reader(), Path(tempfile.gettempdir()) / "talkspurt-fuzz")


def run_mandarin(data: bytes) -> None:
    """The same of Mandarin with English words in it."""
    text = _text(data)[:400]
    with contextlib.suppress(InvalidRequest):
        for piece in _mandarin_reader().read(text):
            for word in piece.words:
                assert 0 <= word.start_char <= word.end_char <= len(text)
                assert 0 <= word.first_id <= word.end_id <= len(piece.ids)


def run_answer(data: bytes) -> None:
    """An answer of any words has a progress, whatever was asked, and all words are in one spelling."""
    language = ("en", "es", "fr", "it", "pt", "de", "zh", "xx")[data[0] % 8 if data else 0]
    question, _, answer = _text(data[1:]).partition("\n")
    wanted = expected(None, question, language)
    assert progress(answer, wanted, language) in AnswerProgress
    assert plain(plain(answer)) == plain(answer)


ANSWERS = (
    b"\x00What is your phone number?\n555 123 four five six seven",
    b"\x05Wie lautet Ihre E-Mail-Adresse?\nklaus at beispiel punkt de",
    "\x06您的电话号码是多少？\n一三八零零".encode(),
    b"\x00What is your date of birth?\nMarch 3/4/2020",
    b"\x00And your address?\n12 Main Street, B R O W N, and",
)

TARGETS = [
    Target(
        name="answer", run=run_answer, without_text=_PLAIN, seeds=ANSWERS, words=WORDS, quick=150,
        covers=("gateway/call/hearing/expectation.py", "gateway/call/hearing/wordings.py"),
    ),
    Target(
        name="markup", run=run_markup, without_text=_PLAIN,
        covers=("gateway/call/turn_taking/speakable.py",), words=MARKUP_WORDS,
        seeds=tuple(bytes((90 * at,)) + seed for at, seed in enumerate(MARKUP)),
    ),
    Target(
        name="clauses", run=run_clauses, without_text=_PLAIN, covers=("tts_engine/text/clauses.py",), words=WORDS,
        seeds=tuple(bytes((at,)) + seed for at, seed in enumerate(SEEDS)),
    ),
    Target(
        name="normaliser", run=run_normaliser, without_text=_PLAIN, words=WORDS, seeds=SEEDS, max_bytes=1600, quick=150,
        covers=("tts_engine/text/normalise.py", "tts_engine/text/verbalise/rules.py", "tts_engine/text/scripts.py"),
    ),
    Target(
        name="cosyvoice-text", run=run_cosyvoice_text, without_text=_PLAIN,
        words=WORDS, seeds=SEEDS, max_bytes=1600, quick=30,
        covers=("tts_engine/cosyvoice/frontend/normalise.py", "tts_engine/cosyvoice/frontend/words.py"),
    ),
    Target(
        name="english-reader", run=run_reader, without_text=_PLAIN,
        words=WORDS, seeds=SEEDS, max_bytes=400, wanted=10_000, quick=20,
        covers=("tts_engine/embedded/hibari_text.py",),
    ),
    Target(
        name="mandarin-reader", run=run_mandarin, without_text=_PLAIN,
        words=WORDS, seeds=SEEDS, max_bytes=800, wanted=10_000, quick=20,
        covers=("tts_engine/embedded/mandarin_text.py",),
    ),
]  # fmt: skip
