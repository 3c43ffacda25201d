"""Slots and blocks: nothing is in two hands, prompts are shared, and all is free after a cancel."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tts_engine.cosyvoice.token2wav.block_manager import BlockManager
from tts_engine.cosyvoice.token2wav.rendering import Rendering, Voice
from tts_engine.errors import Exhausted, InvalidRequest
from tts_engine.synthesizer import Playhead

CHUNK = 25


def manager(*, clauses: int = 4, voices: int = 2, blocks: int = 12, room: int = 22) -> BlockManager:
    return BlockManager(clauses=clauses, voices=voices, blocks=blocks, chunk_tokens=CHUNK, max_chunks=8, room=room)


def kept(blocks: BlockManager, key: str, tokens: int, *, now: float = 0.0) -> Voice:
    voice = blocks.place(list(range(tokens)), now=now)
    blocks.keep(key, voice)
    return voice


def opened(blocks: BlockManager, voice: Voice, *, now: float = 0.0) -> Rendering:
    rendering = Rendering(voice=voice, playhead=Playhead(), first_hop=22)
    blocks.open(rendering, now=now)
    return rendering


def closed(blocks: BlockManager, rendering: Rendering) -> None:
    rendering.voice.clauses -= 1
    blocks.free(rendering)


def test_a_prompt_is_cut_at_its_head_to_what_the_first_chunk_leaves_of_it() -> None:
    voice = kept(manager(), "a", 60)
    assert voice.prompt_tokens == list(range(60))[-53:], "whole chunks, and three tokens for the first hop of 22"
    assert (voice.shared, len(voice.blocks)) == (50, 2)
    assert kept(manager(), "a", 2).prompt_tokens == []


def test_of_a_prompt_that_ends_in_whole_chunks_the_last_is_not_shared() -> None:
    voice = kept(manager(room=25), "a", 50)
    assert (voice.shared, len(voice.blocks)) == (25, 1), "it looks three tokens into the clause"


def test_a_clause_lacks_a_block_for_each_chunk_that_the_prompt_does_not_hold() -> None:
    blocks = manager()
    rendering = opened(blocks, kept(blocks, "a", 53))
    assert blocks.missing(rendering) == 1
    blocks.grow(rendering, 1)
    assert blocks.missing(rendering) == 0
    rendering.fed += CHUNK
    assert blocks.missing(rendering) == 1


def test_a_clause_that_loses_its_blocks_keeps_its_slot_and_begins_again_behind_the_prompt() -> None:
    blocks = manager()
    rendering = opened(blocks, kept(blocks, "a", 53))
    blocks.grow(rendering, 1)
    rendering.fed, slot = 75, rendering.slot
    blocks.evict(rendering)
    assert (rendering.fed, rendering.blocks, rendering.slot) == (50, [], slot)


def test_the_prompt_not_used_for_longest_makes_room_unless_a_clause_counts_on_it() -> None:
    blocks = manager()
    old, young = kept(blocks, "old", 53, now=1.0), kept(blocks, "young", 53, now=2.0)
    rendering = opened(blocks, old, now=3.0)
    kept(blocks, "new", 53, now=4.0)
    assert young.gone and not old.gone
    closed(blocks, rendering)
    kept(blocks, "newer", 53, now=5.0)
    assert old.gone, "it was used at 3, the other one made at 4"
    with pytest.raises(Exhausted, match="again"):
        opened(blocks, old)


def test_without_a_prompt_that_could_go_a_new_one_is_refused() -> None:
    blocks = manager(voices=1)
    opened(blocks, kept(blocks, "a", 53))
    with pytest.raises(Exhausted, match="all places"):
        blocks.place(list(range(53)), now=1.0)


def test_a_prompt_that_leaves_no_room_for_a_clause_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="178 tokens, expected fewer: prompt and clause may have 200"):
        manager().place(list(range(180)), now=0.0)


def test_few_blocks_are_refused_before_anybody_waits_for_them() -> None:
    with pytest.raises(ValueError, match="7 cache blocks, expected at least 8"):
        manager(blocks=7)


@pytest.mark.parametrize("seed", range(50))
def test_no_slot_and_no_block_is_in_two_hands_and_all_are_free_in_the_end(seed: int) -> None:
    rng = random.Random(seed)
    blocks = manager(clauses=5, voices=3, blocks=14)
    free_blocks, free_slots = blocks.free_blocks, blocks.free_slots
    live: list[Rendering] = []
    made = 0

    def check() -> None:
        voices = list(blocks.voices.values())
        slots = [r.slot for r in live if r.slot] + [v.slot for v in voices]
        held = [block for holder in (*live, *voices) for block in holder.blocks]
        assert 0 not in slots and 0 not in held
        assert max(Counter(slots).values(), default=0) <= 1
        assert max(Counter(held).values(), default=0) <= 1
        assert len(held) + blocks.free_blocks == free_blocks
        assert sum(bool(r.slot) for r in live) + blocks.free_slots == free_slots
        assert not any(r.voice.gone for r in live), "a clause counts on its prompt"
        own = sum(len(r.blocks) for r in live)
        assert all(blocks.free_blocks + own >= 8 - len(v.blocks) for v in voices), "the longest clause can go on"
        assert all(v.clauses == sum(r.voice is v for r in live) for v in voices)

    for step in range(300):
        now = float(step)
        match rng.choice(["place", "fail", "open", "feed", "feed", "feed", "evict", "close"]):
            case "place" | "fail" as what:
                made += 1
                try:
                    voice = blocks.place(list(range(rng.randrange(120))), now=now)
                except Exhausted:
                    continue
                if what == "place":
                    blocks.keep(made, voice)
                else:  # it could not be computed
                    blocks.release(voice)
            case "open" if blocks.voices and len(live) < blocks.clauses:
                live.append(opened(blocks, rng.choice(list(blocks.voices.values())), now=now))
            case "feed" if live:
                rendering = rng.choice(live)
                if (needed := blocks.missing(rendering)) <= blocks.free_blocks:
                    blocks.grow(rendering, needed)
                    rendering.fed += CHUNK
            case "evict" if live:
                blocks.evict(rng.choice(live))
            case "close" if live:
                closed(blocks, live.pop(rng.randrange(len(live))))
        check()
    while live:
        closed(blocks, live.pop())
    check()
    for voice in blocks.voices.values():
        blocks.release(voice)
    assert (blocks.free_blocks, blocks.free_slots) == (free_blocks, free_slots)
