"""Generates the standard load: sentences of a telephone bot, with every clause used only once.

A turn is an object with ``clauses`` (1 to 3; the first has 5 to 8 words), joined by a space, and ``pause_ms`` (2000 to
6000), the silence before it. Distinct clauses keep a clause cache from answering.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

TURNS = 3000
SEED = 1

WORDS: dict[str, list[str]] = {
    "name": "Anna Brown Carter Diaz Evans Foster Garcia Hughes Ivanov Jensen Keller Lopez Meyer Novak Olsen Parker "
    "Quinn Rossi Schmidt Turner Vargas Weber Young Zimmer".split(),
    "city": "Berlin Boston Chicago Denver Dublin Glasgow Hamburg Houston Leeds London Lyon Madrid Milan Munich Oslo "
    "Paris Phoenix Portland Prague Seattle Toronto Vienna Warsaw Zurich".split(),
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
    "part": ["morning", "afternoon", "evening"],
    "item": "parcel letter laptop router keyboard headset monitor printer bicycle suitcase mattress lamp camera tablet "
    "charger blender kettle toaster jacket backpack".split(),
    "colour": "black white silver blue green red grey brown".split(),
    "desk": "billing sales support returns delivery booking insurance warranty accounts complaints".split(),
    "thing": "invoice contract booking ticket policy voucher payment refund order appointment".split(),
    "state": "confirmed cancelled approved delayed extended corrected reopened completed".split(),
    "hour": "eight nine ten eleven twelve one two three four five six seven".split(),
    "number": [str(n) for n in range(12, 98)],
    "price": [f"${n}.{c:02d}" for n in range(11, 199, 4) for c in (5, 20, 49, 75, 99)],
    "street": "Oak Maple Cedar Station Church Mill Park River King Garden Market Harbour".split(),
    "count": "two three four five six seven eight nine ten twelve fifteen twenty thirty forty".split(),
}

FIRST = [
    "Your {thing} was {state} {day}",
    "The {item} costs {price} today",
    "Doctor {name} has time {day} {part}",
    "Your {colour} {item} is in {city}",
    "I booked {city} for {day} {part}",
    "Your {colour} {item} left {city} on {day}",
    "I found your {thing} from last {day}",
    "The {desk} desk in {city} opens {day}",
    "Thank you for calling about the {colour} {item}",
    "This is the {desk} team in {city}",
    "We have {state} your {thing} for {day}",
    "Mr. {name} from {desk} called you {day}",
    "Your {thing} of {price} has been {state}",
    "There are {count} seats left to {city}",
    "The {item} costs {price} in our {city} store",
    "I can offer you {day} at {hour}",
    "{name} Street {number} is the address I have",
    "Your {thing} with Doctor {name} was {state}",
    "The train to {city} leaves at {hour}",
    "Please bring the {colour} {item} on {day} {part}",
    "It takes {count} days to reach {city}",
    "I have moved your {thing} to {day} {part}",
    "The {colour} {item} is still in {city}",
]
MIDDLE = [
    "and the {desk} team in {city} will call you {day} {part}",
    "but the {colour} one is {count} days faster",
    "which means that {price} goes back to your card",
    "so {name} can meet you at {number} {street} Road",
    "because the warehouse in {city} was closed on {day}",
    "and I have sent the {thing} to your new address in {city}",
    "with {count} more on the way from {city} this {day}",
    "and your {thing} number ends in {number} {number}",
    "although {desk} may ask you for the {thing} again on {day}",
    "while the {item} itself stays at {street} Street until {day}",
]
LAST = [
    "Would {day} at {hour} work for you?",
    "Shall I send the {thing} to {number} {street} Street?",
    "Can I help you with the {colour} {item} too?",
    "Do you want me to call {name} in {city}?",
    "Just say yes and I will book {day} {part}.",
    "You can collect it in {city} from {hour} on {day}.",
    "The {desk} line is open until {hour} on {day}.",
    "You will get {price} back by {day} {part}.",
    "Please have the {thing} of {day} {part} with you.",
    "Is {number} {street} Road in {city} still right?",
]


def turns(count: int, seed: int) -> Iterator[dict[str, object]]:
    """Yield ``count`` turns, no two of which share a clause; equal arguments give equal turns.

    Raises:
        ValueError: there are not so many clauses.
    """
    rng = random.Random(seed)
    seen: set[str] = set()
    for _ in range(count):
        clauses = rng.choices((1, 2, 3), weights=(3, 4, 3))[0]
        texts = [_new(rng, FIRST, seen, words=range(5, 9))]
        if clauses == 3:
            texts.append(_new(rng, MIDDLE, seen))
        if clauses >= 2:
            # After a comma the sentence continues; after a full stop a new one begins.
            texts[:-1] = [f"{text}," for text in texts[:-1]]
            texts[-1] += "."
            texts.append(_new(rng, LAST, seen))
        else:
            texts[-1] += "."
        yield {"clauses": texts, "pause_ms": rng.randrange(2000, 6001)}


def _new(rng: random.Random, forms: list[str], seen: set[str], words: range = range(1, 99)) -> str:
    """Return a clause that was not used yet."""
    for _ in range(10_000):
        form = rng.choice(forms)
        clause = " ".join(_fill(rng, word) for word in form.split())
        if clause not in seen and len(clause.split()) in words:
            seen.add(clause)
            return clause
    raise ValueError("the grammar has no more clauses; add forms or words")


def _fill(rng: random.Random, word: str) -> str:
    """Replace each ``{slot}`` of a word by a draw of its own."""
    start, end = word.find("{"), word.find("}")
    return word[:start] + rng.choice(WORDS[word[start + 1 : end]]) + word[end + 1 :] if start >= 0 else word
