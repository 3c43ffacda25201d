"""More languages by Kokoro: phonemes, words and their places, and which voice speaks."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from tts_engine.config import EmbeddedConfig, MandarinConfig
from tts_engine.embedded import espeak_text
from tts_engine.embedded.espeak_text import EspeakReader
from tts_engine.embedded.hibari_text import PhonemeReader
from tts_engine.embedded.kokoro import read_tables
from tts_engine.embedded.romance_text import LANGUAGES, RomanceReader
from tts_engine.embedded.synthesizer import EmbeddedSynthesizer
from tts_engine.embedded.word_reader import WordReader
from tts_engine.errors import InvalidRequest
from tts_engine.synthesizer import ClauseRequest, PcmChunk, Playhead
from voicecodecs.pcm import dbov

pytest.importorskip("piper_plus_g2p")
pytestmark = pytest.mark.asyncio(loop_scope="module")
IDS = PhonemeReader().ids


def phonemes(reader: WordReader, text: str) -> str:
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


@pytest.fixture(scope="module", autouse=True)
def espeak() -> None:
    pytest.importorskip("espeakng_loader")


@pytest.mark.parametrize(
    ("language", "text", "said"),
    [
        ("it", "Gli anni passano, perché?", "ʎɪ ˈannɪ pˈaSano, perkˈe?"),
        ("it", "Ci vediamo il 25 maggio.", "ʧɪ vedjˈamo il ventiʧˈinkwe mˈaʤːo."),
        ("fr", "Les amis sont là.", "lez amˈi sˈɔ̃ lˈa."),
    ],
)
async def test_the_phonemes_of_espeak_become_the_symbols_of_kokoro(language: str, text: str, said: str) -> None:
    assert phonemes(EspeakReader(language, IDS), text) == said


@pytest.mark.parametrize("language", espeak_text.LANGUAGES)
async def test_each_word_of_espeaks_languages_has_its_characters(language: str) -> None:
    text = "La (prima) 1, e a 25!"
    (piece,) = EspeakReader(language, IDS).read(text)
    assert [text[word.start_char : word.end_char] for word in piece.words] == text.split()


async def test_the_library_of_espeak_is_not_imported_without_such_a_voice(tmp_path: Path) -> None:
    """It is GPL: who has it installed and uses other voices must not load it."""
    (tmp_path / "ef_test.bin").write_bytes(next(iter(read_tables("").values())).tobytes())
    code = (
        "import sys\n"
        "from tts_engine.config import EmbeddedConfig, MandarinConfig\n"
        "from tts_engine.embedded.synthesizer import EmbeddedSynthesizer\n"
        f"made = EmbeddedSynthesizer(EmbeddedConfig(mandarin=MandarinConfig(voices_folder={str(tmp_path)!r})))\n"
        "made._load()\n"
        "made._others[0]._load()\n"
        "assert 'es' in made._others[0]._readers and 'espeakng_loader' not in sys.modules\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await process.wait() == 0


async def test_another_script_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="the voice speaks Spanish"):
        RomanceReader("es", IDS).read("Hola, 您好")
    with pytest.raises(InvalidRequest, match="the voice speaks Italian"):
        EspeakReader("it", IDS).read("Ciao, नमस्ते")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def voice(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedSynthesizer]:
    """Voices by tables of the package under other names: only their sound differs from the real ones."""
    folder: Path = tmp_path_factory.mktemp("voices")
    table = next(iter(read_tables("").values()))
    for name in ("ef_test", "pf_test", "if_test", "hf_test"):
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
    assert languages == {"heart": ["en-US"], "ef_test": ["es"], "if_test": ["it-IT"], "pf_test": ["pt-BR"]}
    for text, language in (("Hola.", "es-MX"), ("Ciao!", "it-CH")):
        (chunk,) = await spoken(voice, text, language)
        assert dbov(np.asarray(chunk.pcm)) > -40
        assert [(word.start_char, word.end_char) for word in chunk.words] == [(0, 5)]


async def test_a_language_without_a_voice_is_refused(voice: EmbeddedSynthesizer) -> None:
    with pytest.raises(InvalidRequest, match="'hi-IN'"):
        await spoken(voice, "Namaste.", "hi-IN")
    with pytest.raises(InvalidRequest, match="speaks Spanish"):
        await spoken(voice, "Bom dia.", "pt-BR", "ef_test")
