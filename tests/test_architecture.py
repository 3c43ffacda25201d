"""The import rules of ARCHITECTURE.md, watched: who may import whom, and who must stay free of I/O."""

import ast
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FORBIDDEN = {
    "codecs/voicecodecs": {"asyncio", "torch", "gateway", "tts_engine", "sip_bridge", "talkspurt"},
    "tts_engine": {"gateway", "sip_bridge", "talkspurt"},
    "gateway": {"torch", "sip_bridge", "talkspurt"},
    "sip_bridge": {"torch", "tts_engine", "talkspurt"},
}
"""Folder -> top-level modules that no file below it may import."""

PURE = [
    "gateway/carriers/dialect.py",
    "gateway/carriers/reading.py",
    "gateway/carriers/*/dialect.py",
    "gateway/carriers/*/proof.py",
    "gateway/carriers/*/settings.py",
    "gateway/carriers/call_control.py",
    "gateway/carriers/carrier.py",
    "gateway/carriers/proof.py",
    "gateway/carriers/signatures.py",
    "gateway/model_trial.py",
    "gateway/tokens.py",
    "gateway/carriers/freeswitch/esl_messages.py",
    "gateway/carriers/asterisk/audiosocket.py",
    "gateway/carriers/table.py",
    "gateway/seams/media_messages.py",
    "gateway/seams/messages.py",
    "gateway/dialogue/wire.py",
    "gateway/dialogue/script.py",
    "gateway/seams/recogniser.py",
    "gateway/recognition/listen.py",
    "gateway/seams/leg.py",
    "gateway/media/[!t]*.py",
    "gateway/mixing",
    "gateway/call/answering/phrases.py",
    "gateway/answering/progress_tones.py",
    "gateway/answering/tonal_sound.py",
    "gateway/answering/tones.py",
    "gateway/call/answering/verdict.py",
    "gateway/call/turn_taking",
    "gateway/call/hearing/echo.py",
    "gateway/call/hearing/end_of_thought.py",
    "gateway/call/hearing/expectation.py",
    "gateway/call/hearing/wordings.py",
    "gateway/call/defaults.py",
    "gateway/call/journal.py",
    "gateway/call/settings.py",
    "gateway/uplink/echo_guard.py",
    "gateway/uplink/hidden_keys.py",
    "gateway/uplink/pieces.py",
    "gateway/uplink/recogniser_feed.py",
    "gateway/uplink/timeline.py",
    "gateway/uplink/windows.py",
    "gateway/uplink/vad.py",
    "gateway/limits/quota.py",
    "gateway/listener/request_rate.py",
    "gateway/listener/source_limit.py",
    "gateway/principal.py",
    "tts_engine/cosyvoice/token2wav/admission.py",
    "tts_engine/cosyvoice/token2wav/block_manager.py",
    "tts_engine/cosyvoice/token2wav/rendering.py",
    "tts_engine/cosyvoice/token2wav/scheduler.py",
    "tts_engine/api.py",
    "tts_engine/speech_marks.py",
    "tts_engine/correlation.py",
    "tts_engine/voice_model/hearing.py",
    "tts_engine/voice_model/messages.py",
    "tts_engine/text",
    "tts_engine/pipeline/silence.py",
    "tts_engine/pipeline/clause_cache.py",
    "codecs/voicecodecs",
    "sip_bridge/message",
    "sip_bridge/dialog",
    "sip_bridge/local.py",
    "sip_bridge/trunks.py",
    "sip_bridge/targets.py",
]
"""Bytes in, messages out; time is an argument."""

IMPURE = {"asyncio", "socket", "threading", "torch", "time", "aiohttp", "grpc"}


@cache
def imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """All imports of a file, wherever in it. Several tests ask, and parsing is what takes their time."""
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(path: Path) -> Iterator[str]:
    for node in imports(path):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif node.module and node.level == 0:
            yield node.module.split(".")[0]


def files(entry: str) -> list[Path]:
    path = ROOT / entry
    found = sorted(path.rglob("*.py")) if path.is_dir() else sorted(ROOT.glob(entry))
    assert found, f"{entry} names no file"
    return found


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_imports_point_one_way(folder: str) -> None:
    wrong = {str(p.relative_to(ROOT)): bad for p in files(folder) if (bad := FORBIDDEN[folder] & set(imported(p)))}
    assert not wrong


@pytest.mark.parametrize("entry", PURE)
def test_pure_code_does_no_io(entry: str) -> None:
    wrong = {str(p.relative_to(ROOT)): bad for p in files(entry) if (bad := IMPURE & set(imported(p)))}
    assert not wrong


def test_gateway_reaches_the_engine_through_its_seam_only() -> None:
    # A child process is a child process: the recogniser's is watched as the engine's is. So are the files of keys and
    # certificates. Two workers talk as the engine and its model do.
    names = (
        "api",
        "changed_files",
        "correlation",
        "errors",
        "service.client",
        "service.child",
        "service.framing.message_connection",
        "onnx_runtime",
        "speech_marks",
        "supervision",
    )
    allowed = {f"tts_engine.{name}" for name in names}
    wrong = {}
    for path in files("gateway"):
        modules = {
            node.module
            for node in imports(path)
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tts_engine")
        }
        if modules - allowed:
            wrong[str(path.relative_to(ROOT))] = modules - allowed
    assert not wrong


def test_onnxruntime_is_imported_where_its_reports_are_switched_off() -> None:
    folders = ("codecs/voicecodecs", "tts_engine", "gateway", "sip_bridge", "talkspurt", "tests", "benchmarks")
    importing = [path for folder in folders for path in files(folder) if "onnxruntime" in imported(path)]
    assert importing == [ROOT / "tts_engine/onnx_runtime.py"]


PACKAGES = ("codecs/voicecodecs", "tts_engine", "gateway", "sip_bridge", "talkspurt")


@pytest.mark.parametrize("package", PACKAGES)
def test_no_part_of_a_server_imports_scipy(package: str) -> None:
    """It costs 2 s of processor time and 97 MB, and is not among the installed packages (docs/dependencies.md)."""
    assert not [path for path in files(package) if "scipy" in imported(path)]
    assert not re.search(r"^scipy==", (ROOT / "requirements/base.txt").read_text(), re.MULTILINE)


def _modules() -> dict[str, Path]:
    """Every module of the product but the generated ones, by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in files(package):
            if "proto" not in path.parts:
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("codecs.")
                found[name.removesuffix(".__init__")] = path
    return found


def _arrows() -> dict[str, set[str]]:
    """Module -> the product's modules that it imports, wherever in the file, imports for types alone included."""
    modules = _modules()
    arrows: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        for node in imports(path):
            if isinstance(node, ast.Import):
                arrows[name] |= {alias.name for alias in node.names} & modules.keys()
            elif node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    arrows[name] |= {whole if whole in modules else node.module} & modules.keys()
        arrows[name].discard(name)
    return arrows


def _circle(arrows: dict[str, set[str]]) -> list[str]:
    """One circle, as the path that closes it; empty where there is none."""
    done: set[str] = set()

    def walk(at: str, path: list[str]) -> list[str]:
        if at in path:
            return [*path[path.index(at) :], at]
        if at in done:
            return []
        for to in sorted(arrows[at]):
            if found := walk(to, [*path, at]):
                return found
        done.add(at)
        return []

    return next((found for start in sorted(arrows) if (found := walk(start, []))), [])


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert _circle(_arrows()) == []


def test_no_room_imports_itself_by_way_of_others() -> None:
    """A room is a folder; a file that lies directly in a package, or in ``gateway/carriers``, is one by itself."""
    loose = {*(package.split("/")[-1] for package in PACKAGES), "gateway.carriers", "tts_engine.cosyvoice"}

    def room(module: str) -> str:
        parent = module.rpartition(".")[0]
        return module if parent in loose or not parent else parent

    rooms: dict[str, set[str]] = {}
    for module, imported_modules in _arrows().items():
        rooms.setdefault(room(module), set()).update({room(to) for to in imported_modules} - {room(module)})
    assert _circle(rooms) == []


def test_vllm_loads_our_plugin_without_the_rest_of_the_engine() -> None:
    """vLLM imports it in each of its processes, from an environment that need not have what the engine needs."""
    arrows = _arrows()
    reached = {name for name in arrows if name.startswith("tts_engine.cosyvoice.vllm_plugin")}
    while more := {to for name in reached for to in arrows[name]} - reached:
        reached |= more
    others = {name for name in reached if ".vllm_plugin" not in name}
    assert others == {
        "tts_engine.cosyvoice.kernels.sampling",
        "tts_engine.cosyvoice.models.config",
        "tts_engine.supervision",
        "tts_engine.cosyvoice.sampling",
        "tts_engine.errors",
        "tts_engine.service.child",
    }


def test_no_class_and_no_folder_is_too_large_to_survey() -> None:
    large, in_folder = [], Counter[str]()
    for path in (path for package in PACKAGES for path in files(package) if "proto" not in path.parts):
        in_folder[str(path.parent.relative_to(ROOT))] += 1
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
                large += [f"{node.name}: {methods} methods"] if methods > 40 else []
    assert large + [f"{folder}: {count} files" for folder, count in in_folder.items() if count > 20] == []


@pytest.mark.parametrize("package", [p for p in PACKAGES if p != "codecs/voicecodecs"])
def test_every_room_says_what_it_is_for(package: str) -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in files(package)
        if path.name == "__init__.py"
        and "proto" not in path.parts
        and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent


def _named_paths(text: str) -> Iterator[str]:
    """Every path below a package that stands in backticks; ``a/{b,c}.py`` names two."""
    packages = "|".join(package.split("/")[0] for package in PACKAGES)
    for name in re.findall(rf"`((?:{packages})/[^\s`]*)`", text):
        pieces = [piece.split(",") for piece in re.split(r"[{}]", name)]
        yield from ("".join(choice) for choice in itertools.product(*pieces))


DECISIONS = sorted(set((ROOT / "docs/decisions").glob("*.md")) - {ROOT / "docs/decisions/README.md"})


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_the_files_that_a_page_names_exist(page: str) -> None:
    named = set(_named_paths((ROOT / page).read_text()))
    assert len(named) > 10
    assert not [name for name in sorted(named) if not list(ROOT.glob(name.replace("VENDOR", "*")))]


def test_architecture_is_short_and_names_every_room() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert len(text.encode()) <= 25_000
    rooms = {path.parent for package in PACKAGES for path in (ROOT / package).glob("*/__init__.py")} - {
        ROOT / "tts_engine/proto"
    }
    assert not [room for room in sorted(rooms) if f"`{room.relative_to(ROOT)}/`" not in text]


def test_the_files_that_architecture_starts_a_room_with_exist() -> None:
    rows = re.findall(r"^\| `([\w/]+/)` \|.*\| (.*) \|$", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    started = [(room, name) for room, cell in rows for name in re.findall(r"`([\w/]+\.(?:py|js))`", cell)]
    assert len(started) > 50
    assert not [
        (room, name)
        for room, name in started
        if not list((ROOT / room).rglob(name.replace("VENDOR", "*"))) and not (ROOT / name).exists()
    ]


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_context_choice_and_consequence(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"^\*\*(\w+)\.\*\* \S", text, re.MULTILINE) == ["Context", "Choice", "Consequence"]
    assert len(text.encode()) <= 1200
    missing = [name for name in sorted(set(_named_paths(text))) if not list(ROOT.glob(name))]
    assert not missing


def test_the_index_of_decisions_links_every_page_by_its_title() -> None:
    linked = re.findall(r"^\* \[(.*)\]\((.*)\)$", (ROOT / "docs/decisions/README.md").read_text(), re.MULTILINE)
    titles = {(page.read_text().splitlines()[0].removeprefix("# "), page.name) for page in DECISIONS}
    assert len(linked) == len(set(linked))
    assert set(linked) == titles


def test_the_decisions_that_other_files_name_exist() -> None:
    named = {
        (str(path.relative_to(ROOT)), name)
        for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *(p for package in PACKAGES for p in files(package))]
        for name in re.findall(r"docs/decisions/[\w-]+\.md", path.read_text())
    }
    assert named
    assert not [each for each in sorted(named) if not (ROOT / each[1]).is_file()]
