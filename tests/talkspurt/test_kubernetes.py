"""The manifests in ``configs/k8s``: valid by Kubernetes' own schemas, closed, and in accord with what they deploy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from talkspurt.config.settings import Config
from tests.gateway.test_metrics import used
from tts_engine import metrics, telemetry

FOLDER = Path(__file__).parents[2] / "configs" / "k8s"
VERSION = "1.34"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())


def objects(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / file).read_text()))


ALL = [made for file in KUSTOMIZATION["resources"] for made in objects(file)]
BY_NAME = {(made["kind"], made["metadata"]["name"]): made for made in ALL}
WORKLOADS = {"gateway": BY_NAME["StatefulSet", "gateway"], "engine": BY_NAME["Deployment", "engine"]}


def config(name: str) -> Config:
    schemes = {"DIALOGUE_URL": "wss", "REDIS_URL": "redis"}
    text = (FOLDER / f"config/{name}.yaml").read_text()
    text = re.sub(r"\$\{(\w+)\}", lambda found: f"{schemes.get(found[1], 'https')}://{found[1].lower()}", text)
    return Config.model_validate(yaml.safe_load(text))


@pytest.mark.parametrize("made", ALL, ids=lambda made: f"{made['kind']}-{made['metadata']['name']}")
def test_every_object_is_valid_by_the_schema(made: dict[str, Any]) -> None:
    kubernetes_validate.validate(made, VERSION, strict=True)


def test_an_object_with_a_wrong_key_would_be_found() -> None:
    wrong = {**BY_NAME["Service", "engine"], "spec": {"selectors": {}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


@pytest.mark.parametrize("name", WORKLOADS)
def test_pods_are_closed(name: str) -> None:
    pod = WORKLOADS[name]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"startupProbe", "livenessProbe", "readinessProbe", "lifecycle"} <= container.keys()
    assert set(BY_NAME["NetworkPolicy", name]["spec"]["policyTypes"]) == {"Ingress", "Egress"}
    mounted, volumes = {each["name"] for each in container["volumeMounts"]}, {each["name"] for each in pod["volumes"]}
    claims = {each["metadata"]["name"] for each in WORKLOADS[name]["spec"].get("volumeClaimTemplates", ())}
    assert mounted == volumes | claims


@pytest.mark.parametrize("name", WORKLOADS)
def test_live_calls_have_their_time_when_a_pod_ends(name: str) -> None:
    pod = WORKLOADS[name]["spec"]["template"]["spec"]
    made = config(name)
    drain_s = made.server.drain_s if name == "gateway" else made.engine.drain_s
    first_s = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= first_s + drain_s + 10


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_selects_a_workload_selects_it(name: str) -> None:
    label = WORKLOADS[name]["spec"]["template"]["metadata"]["labels"]
    assert BY_NAME["Service", name]["spec"]["selector"] == label
    for kind, field in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        assert BY_NAME[kind, name]["spec"][field]["matchLabels"] == label
    scaled = BY_NAME["HorizontalPodAutoscaler", name]["spec"]["scaleTargetRef"]
    assert (scaled["kind"], scaled["name"]) == (WORKLOADS[name]["kind"], name)


def test_ports_and_names_are_those_of_the_configuration() -> None:
    gateway, engine = config("gateway"), config("engine")
    ports = {
        name: [each["containerPort"] for each in work["spec"]["template"]["spec"]["containers"][0]["ports"]]
        for name, work in WORKLOADS.items()
    }
    listens = int(engine.engine.listen.rpartition(":")[2])
    assert ports == {"gateway": [gateway.server.port], "engine": [listens, engine.engine.metrics_port]}
    namespace, service = KUSTOMIZATION["namespace"], BY_NAME["Service", "engine"]
    assert service["spec"]["clusterIP"] == "None", "its name has to stand for every engine"
    assert gateway.engine.targets == (f"engine.{namespace}.svc.cluster.local:{listens}",)


def test_libraries_of_a_pod_do_not_report() -> None:
    made = {each["name"]: each.get("literals") for each in KUSTOMIZATION["configMapGenerator"]}
    assert made["talkspurt-telemetry-off"] == [f"{variable}={value}" for variable, value in telemetry.OFF.items()]
    for work in WORKLOADS.values():
        (container,) = work["spec"]["template"]["spec"]["containers"]
        assert {"configMapRef": {"name": "talkspurt-telemetry-off"}} in container["envFrom"]


def test_secrets_are_named_and_not_contained() -> None:
    assert not [made for made in ALL if made["kind"] == "Secret"]
    for name in WORKLOADS:
        text = (FOLDER / f"config/{name}.yaml").read_text()
        for secret in re.findall(r"(?:token|secret|key|redis_url): *\"?([^\s,}\"]+)", text):
            assert secret.startswith(("${", "/tls/")), secret


def test_what_is_scaled_by_is_measured() -> None:
    rules = yaml.safe_load((FOLDER / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    wanted = {BY_NAME["HorizontalPodAutoscaler", n]["spec"]["metrics"][0]["pods"]["metric"]["name"] for n in WORKLOADS}
    assert {rule["name"]["as"] for rule in rules} == wanted
    exposed = used().exposition().decode() + metrics.exposition().decode()
    for rule in rules:
        for series in re.findall(r"talkspurt_\w+", rule["seriesQuery"] + rule["metricsQuery"]):
            assert re.search(rf"^{series}\b", exposed, flags=re.M), series
