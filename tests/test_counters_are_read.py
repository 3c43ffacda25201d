"""Each counter of the product is read by the product: as a metric, in a report or in a decision."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("codecs/voicecodecs", "gateway", "sip_bridge", "tts_engine", "talkspurt")
FOR_TESTS = {"chunks_made": "the tone is the voice of the tests, which ask how much of it was made"}


@dataclass
class Uses:
    """The uses of attributes in all classes.

    A read through an object (``stats.gaps``) does not tell the class. So it vouches for one class that counts under
    this name, and two classes with equal names need two reads. A name that other classes use for something else can
    still hide a counter.
    """

    counted: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """Attribute -> class that increments it, or the object through which it is incremented -> place."""
    read_by_itself: set[tuple[str, str]] = field(default_factory=set)
    """Attribute, and class that reads it of ``self``."""
    read_by_others: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Attribute -> places that read it of another object."""
    no_counters: set[tuple[str, str]] = field(default_factory=set)
    """Attribute, and class that makes it something else: a text, a list, an object from elsewhere."""

    made: set[tuple[str, str]] = field(default_factory=set)
    """Attribute, and class that makes it. A class that only increments it has inherited it."""

    def unread(self) -> Iterator[str]:
        for name, owners in self.counted.items():
            closed = self.read_by_itself | self.no_counters
            unread = {owner: place for owner, place in owners.items() if (name, owner) not in closed}
            makers = {owner: place for owner, place in unread.items() if (name, owner) in self.made}
            if len(makers or unread) > len(self.read_by_others[name]):
                yield f"{name}: {', '.join(sorted(unread.values()))}"

    def see(self, tree: ast.AST, place: str, owner: str = "") -> None:
        """Note the uses in a piece of code, which belongs to a class."""
        for node in ast.iter_child_nodes(tree):
            match node:
                case ast.AugAssign(op=ast.Add(), target=ast.Attribute() as target):
                    self._count(target, f"{place}:{node.lineno}", owner)
                case ast.AugAssign(op=ast.Add(), target=ast.Subscript(value=ast.Attribute() as target)):
                    self._count(target, f"{place}:{node.lineno}", owner)
                    self.see(target.value, place, owner)
                    self.see(node.value, place, owner)
                    continue
                case (
                    ast.Assign(targets=[ast.Attribute(value=ast.Name("self"), attr=name)], value=value)
                    | ast.AnnAssign(target=ast.Attribute(value=ast.Name("self"), attr=name), value=ast.expr() as value)
                ):
                    self.made.add((name, owner))
                    if not _begins_a_count(value):
                        self.no_counters.add((name, owner))
                case ast.Attribute(value=ast.Name("self"), attr=name, ctx=ast.Load()):
                    self.read_by_itself.add((name, owner))
                case ast.Attribute(attr=name, ctx=ast.Load()):
                    self.read_by_others[name].add(f"{place}:{node.lineno}")
            self.see(node, place, node.name if isinstance(node, ast.ClassDef) else owner)

    def _count(self, target: ast.Attribute, place: str, owner: str) -> None:
        of = ast.unparse(target.value)
        self.counted[target.attr].setdefault(owner if of == "self" else of, place)


def _begins_a_count(value: ast.expr) -> bool:
    match value:
        case ast.Constant(value=int() | float()):
            return True
        case ast.Call(func=ast.Name("Counter" | "defaultdict")):
            return True
    return False


def unread(*modules: str) -> list[str]:
    uses = Uses()
    for number, text in enumerate(modules):
        uses.see(ast.parse(text), f"module {number}")
    return sorted(uses.unread())


def test_no_counter_is_written_and_never_read() -> None:
    uses = Uses()
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        uses.see(ast.parse(path.read_text()), str(path.relative_to(ROOT)))
    assert len(uses.counted) > 50
    assert [found for found in sorted(uses.unread()) if found.partition(":")[0] not in FOR_TESTS] == []


COUNTS = """
class A:
    def __init__(self): self.lost = 0
    def lose(self): self.lost += 1
"""
COUNTS_TOO = COUNTS.replace("A", "B")


def test_the_check_finds_a_counter_that_no_other_code_reads() -> None:
    assert unread(COUNTS) == ["lost: module 0:4"]
    assert unread(COUNTS.replace("lost += 1", "lost['why'] += 1")) == ["lost: module 0:4"]
    assert unread("def lose(stats): stats.lost += 1") == ["lost: module 0:1"]
    assert unread(COUNTS, "print(a.lost)") == []
    assert unread(COUNTS + "    def show(self): return self.lost") == []
    assert unread(COUNTS.replace("= 0", "= ''")) == [], "a text is no counter"


def test_a_read_vouches_for_one_of_two_counters_with_one_name() -> None:
    assert unread(COUNTS, COUNTS_TOO, "print(a.lost)") == ["lost: module 0:4, module 1:4"]
    assert unread(COUNTS, COUNTS_TOO, "print(a.lost)\nprint(b.lost)") == []
