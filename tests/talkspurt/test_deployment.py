"""The files that deploy: the image, the compose file, the scrape configuration."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tts_engine import telemetry

ROOT = Path(__file__).parent.parent.parent


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile as (INSTRUCTION, rest), comments gone and continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [(head, rest.strip()) for head, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of every stage, by its name."""
    out: dict[str, list[tuple[str, str]]] = {}
    for head, rest in instructions():
        if head == "FROM":
            name = rest.split(" AS ")[1]
            out[name] = []
        out[name].append((head, rest))
    return out


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_the_image_is_pinned_and_not_root(target: str) -> None:
    final = stages()[target]
    bases = [rest.split()[0] for head, rest in instructions() if head == "FROM"]
    assert all(re.fullmatch(r"python:3\.\d+-slim-\w+", base) for base in bases)
    users = [rest for head, rest in final if head == "USER"]
    assert users and users[-1].split(":")[0] not in ("root", "0")
    assert any(head == "HEALTHCHECK" and "/healthz" in rest for head, rest in final)
    assert not any("pip" in rest for head, rest in final if head == "RUN")
    runs = [rest for head, rest in instructions() if head == "RUN"]
    assert all("--no-cache-dir" in run for run in runs if re.search(r"\bpip\b.* (install|wheel) ", run))
    assert all("/var/lib/apt/lists" in run for run in runs if "apt-get" in run)


def test_the_default_image_needs_no_gpu() -> None:
    assert list(stages())[-1] == "cpu"


def test_the_cuda_image_has_the_vllm_of_the_extra_and_pins_its_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = project["optional-dependencies"]["vllm"]
    listed = {name: (ROOT / f"requirements/{name}.txt").read_text() for name in ("vllm", "cosyvoice")}
    (vllm,) = re.findall(r"^vllm==([\d.]+)", listed["vllm"], flags=re.M)
    assert wanted == f"vllm=={vllm.rpartition('.')[0]}.*"
    first, second = (set(re.findall(r"^(?:torch|numpy|onnx.*)==\S+", text, flags=re.M)) for text in listed.values())
    assert {"torch", "numpy"} <= {line.partition("==")[0] for line in first & second}, "the second must not exchange it"


def test_the_image_copies_what_is_there_and_not_ignored() -> None:
    allowed = {
        line[1:].strip("/") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    for head, rest in instructions():
        if head == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert source in allowed, source
                assert (ROOT / source).exists() or source == "README.md"


def test_an_image_starts_with_an_example() -> None:
    commands = [json.loads(rest) for head, rest in instructions() if head == "CMD"]
    assert commands == [["serve", "-c", "configs/gpu-cosyvoice3.yaml"], ["demo"]]
    assert (ROOT / commands[0][2]).is_file()


def test_the_compose_file_pins_images_and_mounts_what_is_there() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())["services"]
    assert services.keys() == {"talkspurt", "prometheus", "grafana"}
    for service in services.values():
        if "image" in service:
            assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), service["image"]
        assert all(port.startswith(("127.0.0.1:", "${PUBLIC_ADDRESS:-127.0.0.1}:")) for port in service["ports"])
        for source in (volume.split(":")[0] for volume in service.get("volumes", [])):
            assert not source.startswith(".") or (ROOT / source).exists(), source
    assert services["talkspurt"]["build"]["target"] in stages()


def test_no_service_of_the_compose_file_has_a_password_that_others_know() -> None:
    """Grafana makes an account admin:admin unless told otherwise."""
    services = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())["services"]
    grafana = services["grafana"]["environment"]
    assert {
        "GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION": "true",
        "GF_AUTH_DISABLE_LOGIN_FORM": "true",
        "GF_AUTH_BASIC_ENABLED": "false",
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
    }.items() <= grafana.items()
    for name, service in services.items():
        for variable, value in service.get("environment", {}).items():
            assert not re.search("PASSWORD|SECRET|TOKEN|API_KEY", variable) or value.startswith("${"), (name, variable)
    guides = [
        ROOT / "README.md",
        ROOT / "docker-compose.yaml",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("configs/**/*.y*ml"),
    ]
    known = re.compile(r"admin\s*[:/]\s*admin|(default )password (is|of) .?admin", re.IGNORECASE)
    assert [path.name for path in guides if known.search(path.read_text())] == []


def test_prometheus_asks_the_service_of_the_compose_file() -> None:
    (scrape,) = yaml.safe_load((ROOT / "configs/prometheus.yml").read_text())["scrape_configs"]
    assert scrape["job_name"] == "talkspurt" and scrape["static_configs"] == [{"targets": ["talkspurt:8080"]}]


@pytest.mark.parametrize(("server", "make"), [(130, 0), (0, 0), (1, 2)])
def test_ctrl_c_is_no_error_of_makes(tmp_path: Path, server: int, make: int) -> None:
    """A stand-in of the server that ends as an interrupted one does."""
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    program = tmp_path / ".venv/bin/talkspurt"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\nexit {server}\n")
    program.chmod(0o755)
    done = subprocess.run(["make", "-o", ".venv/.run", "run"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == make and ("Error" in done.stderr) == (make != 0)


def test_the_image_hears_and_its_media_ports_are_the_published_ones() -> None:
    for target in ("cpu", "cuda"):
        settings = " ".join(rest for head, rest in stages()[target] if head == "ENV")
        (ports,) = re.findall(r"TALKSPURT__WEBRTC__PORTS=(\S+)", settings)
        assert f"{ports}/udp" in " ".join(rest for head, rest in stages()[target] if head == "EXPOSE")
        installed = " ".join(rest for head, rest in stages()[f"build{target.replace('cpu', '').replace('cu', '-cu')}"])
        assert "moonshine" in installed or "recogniser.txt" in installed
    service = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())["services"]["talkspurt"]
    assert service["environment"]["TALKSPURT__WEBRTC__PORTS"] == ports
    assert f"{service['environment']['TALKSPURT__WEBRTC__PUBLIC_ADDRESS']}:{ports}:{ports}/udp" in service["ports"]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_libraries_of_an_image_do_not_report(target: str) -> None:
    settings = " ".join(rest for head, rest in stages()[target] if head == "ENV").split()
    assert {f"{variable}={value}" for variable, value in telemetry.OFF.items()} <= set(settings)


def test_no_service_of_the_compose_file_reports() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())["services"]
    assert telemetry.OFF.items() <= services["talkspurt"]["environment"].items()
    off = {
        *("GF_ANALYTICS_REPORTING_ENABLED", "GF_ANALYTICS_CHECK_FOR_UPDATES", "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES"),
        *("GF_NEWS_NEWS_FEED_ENABLED", "GF_SNAPSHOTS_EXTERNAL_ENABLED"),
    }
    disabled = {
        *("GF_PLUGINS_PREINSTALL_DISABLED", "GF_PLUGINS_PUBLIC_KEY_RETRIEVAL_DISABLED"),
        "GF_SECURITY_DISABLE_GRAVATAR",
    }
    wanted = dict.fromkeys(off, "false") | dict.fromkeys(disabled, "true")
    assert wanted.items() <= services["grafana"]["environment"].items()
