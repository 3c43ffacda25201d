"""The spoken part of a turn's tokens, and the way from its positions back to the tokens."""

from __future__ import annotations

import random
import re

import pytest

from gateway.call.turn_taking.speakable import MAX_TAG_CHARS, Lexicon, Speakable
from tts_engine.speech_marks import STYLE, Style, applied, pronounced, without_marks

WORDS = Lexicon({"nginx": "engine x", "SQL": "sequel", "SQL Server": "sequel server", "C++": "C plus plus"})


def shown(text: str) -> str:
    """Return a text with its marks as words in brackets."""
    for each in reversed(pronounced(text)):
        text = f"{text[: each.start]}[{without_marks(text[each.start : each.end])} = {each.ipa}]{text[each.end :]}"

    def words(match: re.Match[str]) -> str:
        style, pause_ms = applied(match[0], Style(speed=-1, gain_db=-1, pitch=-1, language="-"))
        changes = [
            *([f"{style.speed:g} times"] if style.speed != -1 else []),
            *([f"{style.gain_db:g} dB"] if style.gain_db != -1 else []),
            *([f"{style.pitch:g} st"] if style.pitch != -1 else []),
            *([style.language or "its language"] if style.language != "-" else []),
            *([f"{pause_ms:g} ms"] if pause_ms else []),
        ]
        return f"[{', '.join(changes)}]"

    return STYLE.sub(words, text)


def spoken(text: str, words: Lexicon | None = None) -> str:
    made = Speakable(words)
    made.feed(text)
    made.close()
    return shown(made.text)


@pytest.mark.parametrize(
    ("written", "heard"),
    [
        ("Hello there.", "Hello there."),
        ('Say <phoneme alphabet="ipa" ph="təˈmeɪtoʊ">tomato</phoneme>!', "Say [tomato = təˈmeɪtoʊ]!"),
        ('<phoneme alphabet="x-sampa" ph=\'t@"meItoU\'>tomato</phoneme>', "[tomato = təˈmeɪtoʊ]"),
        ('<phoneme alphabet="cmu-arpabet" ph="T AH0 M EY1 T OW2">tomato</phoneme>', "[tomato = təmˈeɪtˌoʊ]"),
        ("<phoneme ph='nuː jɔːk'>New York</phoneme> city", "[New York = nuː jɔːk] city"),
        ('<phoneme alphabet="sapi" ph="t ax">tomato</phoneme>', "tomato"),
        ('<phoneme alphabet="cmu-arpabet" ph="QQ1">tomato</phoneme>', "tomato"),
        ('<phoneme ph="">tomato</phoneme><phoneme ph="x"></phoneme><phoneme ph="x"/>', "tomato"),
        ('One.<break time="1s"/>Two.', "One.[1000 ms]Two."),
        ("One.<break time='300ms' />Two.", "One.[300 ms]Two."),
        ('One,<break time="+.25s"/>two', "One,[250 ms]two"),
        ('One<break time="0s"/>two<break time="soon"/>three', "One two[400 ms]three"),
        ('One<break time="1h" strength="weak"/>two<break time="60000ms"/>three', "One[200 ms]two[10000 ms]three"),
        ("One<break strength='x-strong'/>two<break/>three", "One[1000 ms]two[400 ms]three"),
        ("One<break strength='none'/>two<break strength='strong'></break>three", "One two[700 ms]three"),
        ('<sub alias="World Wide Web Consortium">W3C</sub> says', "World Wide Web Consortium says"),
        ('Pin <say-as interpret-as="digits">402</say-as>.', "Pin 4 0 2 ."),
        ('<say-as interpret-as="telephone">+1 555-0199</say-as>', "+ 1  5 5 5 , 0 1 9 9 "),
        ('<say-as interpret-as="characters">A-1</say-as>', "A , 1 "),
        ('<say-as interpret-as="cardinal">12345</say-as>', "12'345"),
        ('<say-as interpret-as="number">1999</say-as>', "1'999"),
        ('<say-as interpret-as="ordinal">22</say-as>', "22nd"),
        ('<say-as interpret-as="ordinal">113</say-as>', "113th"),
        ('<say-as interpret-as="date" format="dmy">1/2/2026</say-as>', "2026-02-01"),
        ('<say-as interpret-as="date">20260102</say-as>', "2026-01-02"),
        ('<say-as interpret-as="currency">$5</say-as>', "$5"),
        ('<say-as interpret-as="characters">AB1</say-as>', "A B 1 "),
        ('<say-as interpret-as="date" format="mdy">1/2/2026</say-as>', "2026-01-02"),
        ("<prosody rate=\"slow\" pitch='low'>Slowly</prosody> now", "[0.75 times][-3 st]Slowly[1 times][0 st] now"),
        (
            '<prosody rate="50%">a</prosody><prosody rate="+50%">b</prosody>',
            "[0.5 times]a[1 times][1.5 times]b[1 times]",
        ),
        ('<prosody rate="-20%">a</prosody><prosody rate="0.8">b', "[0.8 times]a[1 times][0.8 times]b"),
        ('<prosody rate="9">a</prosody><prosody rate="fastest" range="5st">b</prosody>', "[4 times]a[1 times]b"),
        ('<prosody volume="x-soft">a</prosody><prosody volume="+6dB">b</prosody>', "[-12 dB]a[0 dB][6 dB]b[0 dB]"),
        ('<prosody volume="50">a</prosody><prosody volume="-50%">b</prosody>', "[-6 dB]a[0 dB][-6 dB]b[0 dB]"),
        ('<prosody volume="silent">a</prosody><prosody volume="0">b</prosody>', "[-64 dB]a[0 dB][-64 dB]b[0 dB]"),
        ('<prosody pitch="+2st">a</prosody><prosody pitch="200Hz">b</prosody>', "[2 st]a[0 st]b"),
        (
            '<prosody rate="fast">a<prosody rate="fast" volume="loud">b</prosody>c</prosody>d',
            "[1.3 times]a[1.69 times][4 dB]b[1.3 times][0 dB]c[1 times]d",
        ),
        ('<prosody rate="slow"/>a</prosody>b', "ab"),
        ('say <lang xml:lang="es-MX">25</lang> now', "say [es]25[its language] now"),
        ('<lang xml:lang="yue">a<prosody rate="fast">b</prosody></lang>', "[zh]a[1.3 times]b[1 times][its language]"),
        ('<lang xml:lang="x-klingon">a</lang><lang>b</lang>', "ab"),
        ('In <lang xml:lang="fr-FR">Paris</lang>.', "In [fr]Paris[its language]."),
        ('<say-as interpret-as="date" format="md">9/22</say-as>', "--09-22"),
        ('<say-as interpret-as="date" format="dm">22.9.</say-as>', "--09-22"),
        ('<say-as interpret-as="date" format="my">03/2025</say-as>', "--03 2025"),
        ('<say-as interpret-as="date" format="ym">2025-3</say-as>', "--03 2025"),
        ('<say-as interpret-as="date" format="m">9</say-as>', "--09"),
        ('<say-as interpret-as="date">????0922</say-as>', "--09-22"),
        ('<say-as interpret-as="date" format="yyyymmdd" detail="1">1960-09-10</say-as>', "1960-09-10"),
        ('<say-as interpret-as="date" format="mdy">13/13/2025</say-as>', "13/13/2025"),
        ('<say-as interpret-as="date" format="mdy">May 4</say-as>', "May 4"),
        ('<say-as interpret-as="time" format="hms12">2:30pm</say-as>', "2:30pm"),
        ('<say-as interpret-as="time">1\'21"</say-as>', "1 min 21 s"),
        ('<say-as interpret-as="duration" format="hms">01:18:30</say-as>', "1 h 18 min 30 s"),
        ('<say-as interpret-as="fraction">2/9</say-as> <say-as interpret-as="fraction">1+1/2</say-as>', "2⁄9 1 1⁄2"),
        ('<say-as interpret-as="unit">10foot</say-as> <say-as interpret-as="unit">5 kg</say-as>', "10 foot 5 kg"),
        ('<say-as interpret-as="currency" language="en-US">99.9 USD</say-as>', "99.90 USD"),
        ('Oh <say-as interpret-as="expletive">darn</say-as> it', "Oh [300 ms] it"),
        ('<say-as interpret-as="spell-out">NASA</say-as>', "N A S A "),
        (
            '<say-as interpret-as="telephone" format="1">(555)<break time="1s"/>0199</say-as>',
            "5 5 5 , [1000 ms]0 1 9 9 ",
        ),
        ('<say-as interpret-as="spell">4F7K</say-as>', "4  F 7  K "),
        ('<say-as interpret-as="vxml:date">20260102</say-as>', "2026-01-02"),
        ('<say-as interpret-as="date_dmy">1/2/2026</say-as>', "2026-02-01"),
        ('<say-as interpret-as="number:digits">402</say-as>', "4 0 2 "),
        ('<say-as interpret-as="number_ordinal">3</say-as>', "3rd"),
        ('<say-as interpret-as="address">150 Main St.</say-as>', "150 Main St."),
        ('<say-as interpret-as="name">ED</say-as><say-as>1</say-as>', "ED1"),
        ('<mstts:express-as style="cheerful" styledegree="2">Hi</mstts:express-as>', "Hi"),
        ('<audio src="http://127.0.0.1/a.mp3"><desc>a cat</desc>meow</audio><mark name="x"/>', "meow"),
        (
            '<voice name="en-US-AvaNeural" xml:lang="en-US">Hi</voice><mstts:silence type="Leading" value="200ms"/>',
            "Hi",
        ),
        ('<speak version="1.0" xmlns="http://www.w3.org/2001/10/synthesis" xmlns:mstts="http://x/y">Hi</speak>', "Hi"),
        ("<![CDATA[2 < 3 & <b>]]> <b>x</b>", "2 < 3 & <b> x"),
        ("<![CDATA[never ]] closed", "never ]] closed"),
        ("a\U00100064b\U00104000c\U000f0061 &#x100064;", "abc &#x100064;"),
        ("<speak><p>One</p><p>Two</p></speak>", " One\n Two\n"),
        ('<emphasis level="strong">Now</emphasis><amazon:effect name="whispered">psst</amazon:effect>', "Nowpsst"),
        ("AT&amp;T &#65;&#x42; &lt;3", "AT&T AB <3"),
        ('<SUB alias="yes">ja</SUB>', "yes"),
        ("One.<break time=1s/>Two.", "One.[1000 ms]Two."),
        ("<b>bold</b> <i class='x'>and</i> <custom-tag/>more<br/>lines", "bold and more lines"),
        ("<vendor:style degree=2 name='sad'>Oh</vendor:style>", "Oh"),
        ("<think>The caller is angry. 2 < 3</think>Hello", "Hello"),
        ("Hi.<thinking>hm <b>x</b></thinking> There", "Hi. There"),
        ("<think>never closed", ""),
        ('<?xml version="1.0"?><!DOCTYPE speak><!-- a -- b --><speak>Hi</speak>', "Hi"),
    ],
)
def test_ssml_is_spoken_or_dropped_and_never_read_aloud(written: str, heard: str) -> None:
    assert spoken(written) == heard


@pytest.mark.parametrize(
    "text",
    [
        "2 < 3 and 5 > 4",
        "a<b",
        "if x<s then y",
        "<",
        "<break",
        '<break time="1s',
        "<https://example.com>",
        "<<>>",
        "R&D & more &c; &#0; &#xD800; &unknown; &",
        "I <3 you",
        '<break time="1<2"/>',
        "<break/ >",
    ],
)
def test_what_is_no_well_formed_tag_is_text(text: str) -> None:
    assert spoken(text) == text


def test_what_is_never_closed_is_spoken_as_it_was_written() -> None:
    assert spoken('<sub alias="never said">W3C and more') == "W3C and more"
    assert spoken('<sub alias="x">' + "word " * MAX_TAG_CHARS) == "word " * MAX_TAG_CHARS
    assert spoken("</sub>Hello</prosody>") == "Hello"


@pytest.mark.parametrize(
    ("written", "heard"),
    [
        ("Nginx and NGINX, not nginxes", "engine x and engine x, not nginxes"),
        ("SQL, sql, MySQL", "sequel, sql, MySQL"),
        ("SQL Server or SQL Servers", "sequel server or sequel Servers"),
        ("C++ and C+", "C plus plus and C+"),
        ("<prosody rate='slow'>SQL</prosody>", "[0.75 times]sequel[1 times]"),
        ("ng<break/>inx", "ng[400 ms]inx"),
        ("nginx", "engine x"),
    ],
)
def test_a_lexicon_replaces_whole_words(written: str, heard: str) -> None:
    assert spoken(written, WORDS) == heard


def test_overlapping_words_of_a_lexicon_go_to_the_first() -> None:
    words = Lexicon({"new york": "big apple", "york city": "football"})
    for text in ("New York City", "New York Cafe", "York City"):
        whole = spoken(text, words)
        pieces = Speakable(words)
        for char in text:
            pieces.feed(char)
        pieces.close()
        assert pieces.text == whole
    assert spoken("New York City", words) == "big apple City"


def test_text_goes_on_at_once_unless_it_may_become_a_tag_or_a_word() -> None:
    made = Speakable(WORDS)
    assert made.feed("Hello there. ") == "Hello there. "
    assert made.feed("Use SQL") == "Use "
    assert made.feed(" a lot <") == "sequel a lot "
    assert made.feed(" 3 <br") == "< 3 "
    assert shown(made.feed("eak/>on")) == "[400 ms]on"
    assert made.close() == ""


def test_places_of_words_are_those_of_the_tokens() -> None:
    text = '<b>I</b> like <sub alias="World Wide Web">W3C</sub>, <break/>you?'
    made = Speakable()
    made.feed(text)
    made.close()
    places = {word: text[slice(*made.place(made.text.index(word), made.text.index(word) + len(word)))]
              for word in ("I", "like", "World", "you?")}  # fmt: skip
    assert places["I"] == "I" and places["like"] == "like" and places["you?"] == "you?"
    assert "W3C" in places["World"]


def test_positions_lead_back_to_the_tokens() -> None:
    text = 'I <break time="1s"/>like <sub alias="World Wide Web">W3C</sub> &amp; SQL.'
    made = Speakable(WORDS)
    made.feed(text)
    made.close()
    assert shown(made.text) == "I [1000 ms]like World Wide Web & sequel."
    for word, behind in (("I", "I"), ("like", "like"), ("World", "W3C"), ("Web", "W3C"), ("&", "&amp;")):
        end = made.text.index(word) + len(word)
        assert text[: made.written(end)].endswith(behind), word
    assert text[: made.written(len(made.text) - 1)].endswith("SQL")
    assert made.written(len(made.text)) == len(text)
    assert (made.written(0), made.written(10_000)) == (0, len(text))


def test_the_place_of_words_with_phonemes_is_in_the_tokens() -> None:
    text = 'Say <phoneme ph="təˈmeɪtoʊ">tomato</phoneme>, <prosody rate="slow">now</prosody>.'
    made = Speakable()
    made.feed(text)
    made.close()
    (given,) = pronounced(made.text)
    start, end = made.place(given.start, given.end)
    assert text[start:end].endswith(">tomato") and text[:start] == "Say "
    at = made.text.index("now")
    assert text[slice(*made.place(at, at + 3))] == "now"


def test_marks_alone_are_no_words() -> None:
    made = Speakable()
    made.feed('<prosody rate="slow"> <break time="1s"/></prosody>')
    assert made.text and not made.has_words
    made.feed("x")
    assert made.has_words


def test_a_thousand_open_elements_are_bounded() -> None:
    assert spoken('<prosody volume="-1dB">' * 1000 + "a" + "</prosody>" * 1000 + "b").endswith("[0 dB]b")


PARTS = (
    *('<prosody rate="slow">', "</prosody>", '<phoneme ph="x">', "</phoneme>", "<![CDATA[", "]]>", "]", "\U00100064"),
    *("<think>", "</think>", "<!--", "-->", "<?x", "?>", "-", "!", "<b>"),
    *("<", "</", ">", "/>", "break", "sub", "say-as", "p", "s", "b", " ", "=", '"', "'", "alias", "interpret-as"),
    *('<sub alias="x y">', "</sub>", '<say-as interpret-as="characters">', "</say-as>", '<break time="1s"/>', "&amp;"),
    *("&", "#", "x4", ";", "nginx", "SQL", "SQL S", "erver", "C++", "a", "é", "ı", "ß", "1", ".", "\n", "word"),
)


def test_pieces_give_what_the_whole_gives_and_positions_never_go_back() -> None:
    draw = random.Random(5)
    for _ in range(2000):
        text = "".join(draw.choice(PARTS) for _ in range(draw.randrange(1, 14)))
        words = draw.choice((None, WORDS))
        whole, pieces = Speakable(words), Speakable(words)
        said = whole.feed(text) + whole.close()
        at, told = 0, ""
        while at < len(text):
            step = draw.randrange(1, 5)
            told += pieces.feed(text[at : at + step])
            at += step
        told += pieces.close()
        assert said == told == whole.text == pieces.text, text
        ends = [whole.written(n) for n in range(len(said) + 1)]
        assert ends == [pieces.written(n) for n in range(len(said) + 1)], text
        assert ends == sorted(ends) and (not ends or ends[-1] <= len(text)), text
