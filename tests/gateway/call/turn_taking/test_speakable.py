"""The spoken part of a turn's tokens, and the way from its positions back to the tokens."""

from __future__ import annotations

import random

import pytest

from gateway.call.turn_taking.speakable import MAX_TAG_CHARS, Lexicon, Speakable

WORDS = Lexicon({"nginx": "engine x", "SQL": "sequel", "SQL Server": "sequel server", "C++": "C plus plus"})


def spoken(text: str, words: Lexicon | None = None) -> str:
    made = Speakable(words)
    made.feed(text)
    made.close()
    return made.text


@pytest.mark.parametrize(
    ("written", "heard"),
    [
        ("Hello there.", "Hello there."),
        ('Say <phoneme alphabet="ipa" ph="təˈmeɪtoʊ">tomato</phoneme> now.', "Say tomato now."),
        ('One.<break time="1s"/>Two.', "One.\n\nTwo."),
        ("One.<break time='300ms' />Two.", "One.\nTwo."),
        ('One,<break time="0.1s"/>two', "One, two"),
        ("One<break strength='x-strong'/>two<break/>three", "One\n\ntwo\nthree"),
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
        ("<prosody rate=\"slow\" pitch='low'>Slowly</prosody> now", "Slowly now"),
        ('In <lang xml:lang="fr-FR">Paris</lang>.', "In Paris."),
        ("<speak><p>One</p><p>Two</p></speak>", " One\n Two\n"),
        ('<emphasis level="strong">Now</emphasis><amazon:effect name="whispered">psst</amazon:effect>', "Nowpsst"),
        ("AT&amp;T &#65;&#x42; &lt;3", "AT&T AB <3"),
        ('<SUB alias="yes">ja</SUB>', "yes"),
        ("One.<break time=1s/>Two.", "One.\n\nTwo."),
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
        ("<prosody rate='slow'>SQL</prosody>", "sequel"),
        ("ng<break/>inx", "ng\ninx"),
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
    assert made.feed("eak/>on") == "\non"
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
    assert made.text == "I \n\nlike World Wide Web & sequel."
    for word, behind in (("I", "I"), ("like", "like"), ("World", "W3C"), ("Web", "W3C"), ("&", "&amp;")):
        end = made.text.index(word) + len(word)
        assert text[: made.written(end)].endswith(behind), word
    assert text[: made.written(len(made.text) - 1)].endswith("SQL")
    assert made.written(len(made.text)) == len(text)
    assert (made.written(0), made.written(10_000)) == (0, len(text))


PARTS = (
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
