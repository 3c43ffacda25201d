"""The host's description of a prefill: the place of each prompt's ids, and the prefixes that are read and written."""

from __future__ import annotations

import numpy as np
import pytest

from tts_engine.cosyvoice.lm.api import SequencePrefill
from tts_engine.cosyvoice.lm.flat_prompts import BLOCK, LINES, ROWS, buffer_size, lay_out, views
from tts_engine.cosyvoice.lm.prefixes import LEAST_IDS, Prefixes


def clause(slot: int, count: int, shared: int = 0, *, voice: int = 1) -> SequencePrefill:
    """The ids of a voice that counts from its number, then others that count from the slot's."""
    ids = np.concatenate([voice + np.arange(shared), 100 * slot + np.arange(count - shared)])
    return SequencePrefill(slot=slot, ids=ids, seed=2**63 - 1 - slot, min_tokens=slot - 1, shared=shared)


CASES = {
    "one": ([clause(3, 1)], [-1]),
    "blocks": ([clause(1, 64), clause(4, 65), clause(2, 130)], [-1, -1, -1]),
    "prefixes": ([clause(2, 130, 20), clause(0, 21, 20), clause(5, 40, 20)], [-1, 7, 7]),
    "most": ([clause(slot, 65) for slot in range(ROWS)], [-1] * ROWS),
}


@pytest.mark.parametrize("padding", [0, 1, 64, 300])
@pytest.mark.parametrize("case", CASES)
def test_each_line_has_the_id_and_the_place_of_one_position_and_is_in_one_block(case: str, padding: int) -> None:
    admissions, read = CASES[case]
    begin = [a.shared if slot >= 0 else 0 for a, slot in zip(admissions, read, strict=True)]
    want = [
        (a.ids[position], a.slot, position)
        for a, first in zip(admissions, begin, strict=True)
        for position in range(first, len(a.ids))
    ]
    lines = len(want) + padding
    written = [6, *[-1] * (len(read) - 1)]
    buffer = np.full(buffer_size(lines), 12345, np.int64)
    lay_out(buffer, lines, admissions, read=read, written=written, scratch=20)
    prompts = views(buffer, lines)
    assert prompts.lines[:, : len(want)].T.tolist() == [list(map(int, line)) for line in want]
    assert (prompts.lines[2, len(want) :] < 0).all() and not prompts.lines[0, len(want) :].any()

    slots, lengths, seeds, least, last, *prefixes = prompts.rows
    used = len(admissions)
    assert [(a.slot, len(a.ids), a.seed, a.min_tokens) for a in admissions] == list(
        zip(*(column[:used].tolist() for column in (slots, lengths, seeds, least)), strict=True)
    )
    assert prompts.lines[1, last[:used]].tolist() == slots[:used].tolist()
    assert (prompts.lines[2, last[:used]] == lengths[:used] - 1).all()
    assert [column[:used].tolist() for column in prefixes] == [read, written, [a.shared for a in admissions]]
    assert (slots[used:] == 20).all() and (prompts.rows[5:7, used:] == -1).all()

    covered = np.zeros(lines, int)
    for slot, first, end, position in prompts.blocks.T.tolist():
        here = slice(first, min(first + BLOCK, end))
        covered[here] += 1
        assert (prompts.lines[1, here] == slot).all()
        assert (prompts.lines[2, here] == position + np.arange(here.stop - first)).all()
        assert here.stop == first or position >= 0 or position + here.stop - first <= 0, "padding sees no keys"
    assert (covered == 1).all()


def test_a_size_is_seldom_much_larger_than_what_is_computed() -> None:
    sizes = np.array(LINES)
    assert sizes[-1] == 4096 and (np.diff(sizes) > 0).all() and (sizes % 32 == 0).all()
    assert (sizes[1:] / sizes[:-1] <= 1.26).all()


def placed(prefixes: Prefixes, *admissions: SequencePrefill) -> tuple[list[int], list[int]]:
    with prefixes.placed(admissions) as slots:
        return slots


def test_a_prefix_is_written_once_and_read_from_then_on() -> None:
    prefixes = Prefixes([8, 9])
    here = clause(0, 30, 20)
    assert prefixes.computed(here) == 30
    assert placed(prefixes, clause(1, 25), here, here, clause(2, 40, 20, voice=2)) == ([-1] * 4, [-1, 9, -1, -1])
    assert prefixes.computed(here) == 10
    assert placed(prefixes, here, clause(2, 40, 20, voice=2)) == ([9, -1], [-1, 8])
    assert placed(prefixes, clause(2, 40, 20, voice=2), clause(1, 70, 20)) == ([8, 9], [-1, -1])
    assert prefixes.computed(clause(0, 30, 21)) == 30, "a longer prefix is another one"


def test_the_prefix_not_used_for_longest_goes() -> None:
    prefixes = Prefixes([8, 9])
    first, second, third = (clause(0, 30, 20, voice=voice) for voice in (1, 2, 3))
    placed(prefixes, first)
    placed(prefixes, second)
    placed(prefixes, first)
    assert placed(prefixes, third) == ([-1], [8])
    assert [prefixes.computed(a) for a in (first, second, third)] == [10, 30, 10]
    assert placed(prefixes, first, third, second) == ([9, 8, -1], [-1, -1, 9]), "it is read before it is written anew"
    assert [prefixes.computed(a) for a in (first, second, third)] == [30, 10, 10]


def test_a_prefix_that_was_not_written_is_not_known_and_its_slot_is_free() -> None:
    prefixes = Prefixes([8])
    first, second = clause(0, 30, 20), clause(0, 30, 20, voice=2)
    placed(prefixes, first)
    with pytest.raises(MemoryError), prefixes.placed([second]):
        raise MemoryError
    assert [prefixes.computed(a) for a in (first, second)] == [30, 30], "the old one may be overwritten already"
    assert placed(prefixes, second) == ([-1], [8])
    assert prefixes.computed(second) == 10


@pytest.mark.parametrize(("shared", "count"), [(LEAST_IDS - 1, 40), (20, 20), (30, 20)])
def test_a_short_prefix_and_one_with_nothing_behind_it_are_not_kept(shared: int, count: int) -> None:
    admission = SequencePrefill(slot=0, ids=np.arange(count), seed=0, min_tokens=0, shared=shared)
    prefixes = Prefixes([8])
    assert placed(prefixes, admission) == ([-1], [-1])
    assert prefixes.computed(admission) == count
