"""Spanish and Portuguese by Kokoro: phonemes, words and their places, and which voice speaks."""

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from tts_engine.config import EmbeddedConfig, MandarinConfig
from tts_engine.embedded.hibari_text import PhonemeReader
from tts_engine.embedded.kokoro import read_tables
from tts_engine.embedded.romance_text import LANGUAGES, RomanceReader
from tts_engine.embedded.synthesizer import EmbeddedSynthesizer
from tts_engine.errors import InvalidRequest
from tts_engine.synthesizer import ClauseRequest, PcmChunk, Playhead
from voicecodecs.pcm import dbov

pytest.importorskip("piper_plus_g2p")
pytestmark = pytest.mark.asyncio(loop_scope="module")
IDS = PhonemeReader().ids


def phonemes(reader: RomanceReader, text: str) -> str:
    names = {number: symbol for symbol, number in IDS.items()}
    return "".join(names[number] for piece in reader.read(text) for number in piece.ids[1:-1]).strip()


@pytest.mark.parametrize(
    ("language", "text", "said"),
    [
        ("es", "Buenos días, hoy es el 3.", "bwˈenos dˈias, ˈoi es el tɾes."),
        ("es", "Mucho gusto.", "mˈuʧo ɡˈusto."),
        ("pt", "Bom dia.", "bo\u0303 ʤˈia."),
    ],
)
async def test_text_becomes_the_symbols_of_kokoro(language: str, text: str, said: str) -> None:
    assert phonemes(RomanceReader(language, IDS), text) == said


@pytest.mark.parametrize("language", LANGUAGES)
async def test_each_word_has_its_characters(language: str) -> None:
    text = "La 1, e a 25."
    (piece,) = RomanceReader(language, IDS).read(text)
    assert [text[word.start_char : word.end_char] for word in piece.words] == text.split()


async def test_another_script_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="the voice speaks Spanish"):
        RomanceReader("es", IDS).read("Hola, 您好")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def voice(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedSynthesizer]:
    """Two voices, by tables of the package under other names: only their sound differs from the real ones."""
    folder: Path = tmp_path_factory.mktemp("voices")
    table = next(iter(read_tables("").values()))
    for name in ("ef_test", "pf_test", "if_test"):
        (folder / f"{name}.bin").write_bytes(table.tobytes())
    config = EmbeddedConfig(mandarin=MandarinConfig(voices_folder=str(folder)))
    synthesizer = EmbeddedSynthesizer(config, cache_folder=tmp_path_factory.mktemp("cache"))
    await synthesizer.start()
    yield synthesizer
    await synthesizer.aclose()


async def spoken(voice: EmbeddedSynthesizer, text: str, language: str, name: str = "") -> list[PcmChunk]:
    clause = ClauseRequest(text=text, voice=name, language=language, speed=1.0, instruct="", first=True)
    return [chunk async for chunk in voice.synthesize(clause, Playhead())]


async def test_the_language_of_a_clause_chooses_the_voice(voice: EmbeddedSynthesizer) -> None:
    languages = {each.voice_id: list(each.languages) for each in voice.voices()}
    assert languages == {"heart": ["en-US"], "ef_test": ["es"], "pf_test": ["pt-BR"]}
    (chunk,) = await spoken(voice, "Hola.", "es-MX")
    assert dbov(np.asarray(chunk.pcm)) > -40
    assert [(word.start_char, word.end_char) for word in chunk.words] == [(0, 5)]


async def test_a_language_without_a_voice_is_refused(voice: EmbeddedSynthesizer) -> None:
    with pytest.raises(InvalidRequest, match="'it-IT'"):
        await spoken(voice, "Ciao.", "it-IT")
    with pytest.raises(InvalidRequest, match="speaks Spanish"):
        await spoken(voice, "Bom dia.", "pt-BR", "ef_test")
