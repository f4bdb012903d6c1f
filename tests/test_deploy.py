"""What is shipped to run it elsewhere (H1, H4): the chart, the manifests made from it, compose, systemd, the container file.

Neither Helm nor a cluster, a container engine or systemd is at hand: schemas, renderers and the product's own checks are.
"""

from __future__ import annotations

import configparser
import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from headworks.config import build
from headworks.config.load import load_bytes
from headworks.config.schema import Config

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "headworks"
ENVIRONMENT = {
    "ACME_KEY": "acme-key-of-the-test-1234",
    "HEADWORKS_ADMIN_KEY": "admin-key-of-the-test-1234",
    "LEDGER_URL": "valkey://store:6379/0",
}
OF_OTHERS = {"ServiceMonitor", "PrometheusRule", "ScaledObject"}
"""Kinds that Kubernetes itself has no schema of."""
ALL_ON: dict[str, Any] = {
    "tls": {"secretName": "gateway-tls"},
    "scaledObject": {"enabled": True},
    "grpc": {"enabled": True},
    "podAnnotations": {"team": "inference"},
    "imagePullSecrets": [{"name": "pull"}],
    "nodeSelector": {"pool": "cpu"},
    "tolerations": [{"key": "cpu", "operator": "Exists"}],
    "extraEnv": [{"name": "UV", "value": "1"}],
}


def make_manifests() -> Any:
    spec = importlib.util.spec_from_file_location("make_manifests", ROOT / "scripts" / "make_manifests.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKE = make_manifests()
each_way = pytest.mark.parametrize(
    "over", [{}, ALL_ON, {"networkPolicy": {"enabled": False}}], ids=["as shipped", "all on", "open"]
)


def documents(over: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    texts = MAKE.rendered(over)
    return [document for text in texts.values() for document in yaml.safe_load_all(text) if document]


def one(kind: str, over: dict[str, Any] | None = None) -> dict[str, Any]:
    found = [document for document in documents(over) if document["kind"] == kind]
    assert found, kind
    return found[0]


def configuration(text: str, exposed_ok: bool) -> Config:
    return load_bytes(text.encode(), "headworks.yaml", ENVIRONMENT, exposed_ok=exposed_ok).config_or_raise()


# Kubernetes


def test_the_manifests_are_what_the_chart_comes_to() -> None:
    shipped = {path.name: path.read_text() for path in (DEPLOY / "kubernetes").glob("*.yaml")}
    assert shipped == {name: MAKE.MADE + text for name, text in MAKE.rendered().items()}, "run scripts/manifests"
    assert (CHART / "alerts.yaml").read_text() == (ROOT / "dashboards" / "alerts.yaml").read_text(), "run scripts/manifests"


@each_way
def test_every_manifest_is_valid_by_the_schemas_of_kubernetes(over: dict[str, Any]) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    kinds = []
    for document in documents(over):
        kinds.append(document["kind"])
        assert document["metadata"]["namespace"] == "serving"
        if document["kind"] not in OF_OTHERS:
            validator.validate(document, "1.31", strict=True)
    expected = {"ConfigMap", "Deployment", "Service", "PodDisruptionBudget", "ServiceMonitor", "PrometheusRule"}
    expected |= {"NetworkPolicy"} if over.get("networkPolicy") is None else set()
    expected |= {"ScaledObject"} if over.get("scaledObject") else set()
    assert set(kinds) == expected


def test_a_manifest_that_is_wrong_is_found_by_them() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    deployment = one("Deployment")
    deployment["spec"]["template"]["spec"]["terminationGracePeriodsSeconds"] = 1
    with pytest.raises(validator.ValidationError):
        validator.validate(deployment, "1.31", strict=True)


@pytest.mark.parametrize("tls", [False, True])
def test_H1_the_configuration_in_it_is_one_that_serve_takes(tls: bool) -> None:
    over = {"tls": {"secretName": "gateway-tls"}} if tls else {}
    (container,) = one("Deployment", over)["spec"]["template"]["spec"]["containers"]
    exposed = "--exposed" in container["args"]
    assert exposed is not tls, "without TLS it has to be said that something else protects the ports"
    config = configuration(one("ConfigMap", over)["data"]["headworks.yaml"], exposed)
    settings = build.settings(config, ENVIRONMENT)
    assert (str(settings.listen), str(settings.admin)) == ("0.0.0.0:8080", "0.0.0.0:8081")
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert container["args"][2] == "/etc/headworks/config/headworks.yaml" and "/etc/headworks/config" in mounts
    assert ("/etc/headworks/tls" in mounts) is tls
    if tls:
        assert settings.tls is not None and settings.tls.cert == "/etc/headworks/tls/tls.crt"
        assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
        assert one("ServiceMonitor", over)["spec"]["endpoints"][0]["scheme"] == "https"


def test_H5_the_grpc_port_is_there_where_it_is_asked_for_and_open_to_who_may_ask() -> None:
    over = {"grpc": {"enabled": True}}
    config = configuration(one("ConfigMap", over)["data"]["headworks.yaml"], True)
    assert config.server.grpc == "0.0.0.0:9002"
    (container,) = one("Deployment", over)["spec"]["template"]["spec"]["containers"]
    assert {"name": "grpc", "containerPort": 9002} in container["ports"]
    (service,) = [one for one in documents(over) if one["kind"] == "Service" and one["metadata"]["name"] == "headworks-grpc"]
    assert service["spec"]["ports"] == [{"name": "grpc", "port": 9002, "targetPort": "grpc"}]
    (open_to,) = [rule for rule in one("NetworkPolicy", over)["spec"]["ingress"] if rule["ports"] == [{"port": "grpc"}]]
    assert len(open_to["from"]) == 2
    assert "grpc" not in json.dumps(documents({})), "nobody listens who was not asked to"


@pytest.mark.parametrize("longest_s", [1, 900, 7200])
def test_H4_a_pod_is_not_killed_before_its_longest_answer_has_ended(longest_s: int) -> None:
    over = {"longestAnswerSeconds": longest_s}
    pod = one("Deployment", over)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    config = configuration(one("ConfigMap", over)["data"]["headworks.yaml"], True)
    before_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert config.server.drain_s == longest_s
    assert pod["terminationGracePeriodSeconds"] >= before_s + config.server.drain_s + 30


def test_H1_pods_run_as_nobody_and_write_to_one_place() -> None:
    pod = one("Deployment", ALL_ON)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
    assert not pod["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")} == {"/var/lib/headworks"}
    (public, admin) = one("NetworkPolicy")["spec"]["ingress"]
    assert [port["port"] for port in public["ports"]] == ["public"] and [port["port"] for port in admin["ports"]] == ["admin"]
    assert admin["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


WRONG_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"replicas": 3, "config": {"ledger": {"url": "sqlite:headworks.db"}}}, "does not match"),
    ({"config": {"server": {"listen": "0.0.0.0:1"}}}, "should not be valid under"),
    ({"replicaCount": 2}, "Additional properties"),
    ({"scaledObject": {"tokensPerReplica": 24000}}, "is not of type 'string'"),
]


@pytest.mark.parametrize(("over", "why"), WRONG_VALUES)
def test_values_that_would_not_work_are_refused_by_their_schema(over: dict[str, Any], why: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.validate(values, schema)
    jsonschema.validate(MAKE.merged(values, {"replicas": 1, "config": {"ledger": {"url": "sqlite:headworks.db"}}}), schema)
    with pytest.raises(jsonschema.ValidationError, match=why):
        jsonschema.validate(MAKE.merged(values, over), schema)


@pytest.mark.parametrize(
    "text",
    [
        "{{ .Values.nothing }}",
        "{{ upper .Values.replicas }}",
        "{{- if .Values.replicas }}",
        "{{ .Values.replicas -}}",
        '{{ .Values.replicas | ternary "a" "b" }}',
    ],
)
def test_what_the_renderer_does_not_know_is_an_error(text: str) -> None:
    with pytest.raises(MAKE.TemplateError):
        MAKE.Template({"Values": {"replicas": 1}}).render(text)


# compose


def test_H4_compose_names_files_that_are_there_and_stops_after_the_drain() -> None:
    folder = DEPLOY / "compose"
    compose = yaml.safe_load((folder / "compose.yaml").read_text())
    config = configuration((folder / "headworks.yaml").read_text(), True)
    gateways = [service for name, service in compose["services"].items() if name.startswith("gateway-")]
    assert len(gateways) == 3
    for gateway in gateways:
        assert gateway["read_only"] and gateway["cap_drop"] == ["ALL"] and "ports" not in gateway
        assert int(gateway["stop_grace_period"].removesuffix("s")) >= config.server.drain_s + 10
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (folder / source).is_file(), volume
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    scraped = yaml.safe_load((folder / "prometheus.yaml").read_text())["scrape_configs"][0]["static_configs"][0]["targets"]
    assert [target.split(":")[0] for target in scraped] == [name for name in compose["services"] if name.startswith("gateway-")]
    assert {target.split(":")[1] for target in scraped} == {str(config.server.admin).split(":")[1]}


@pytest.mark.skipif(shutil.which("nginx", path="/usr/sbin:/usr/bin") is None, reason="no nginx here")
def test_the_proxy_in_front_takes_its_file(tmp_path: Path) -> None:
    text = re.sub(r"gateway-\d", "127.0.0.1", (DEPLOY / "compose" / "nginx.conf").read_text())
    file = tmp_path / "nginx.conf"
    file.write_text(f"pid {tmp_path}/pid;\nerror_log {tmp_path}/error.log;\n{text}")
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin")
    ran = subprocess.run([program, "-t", "-q", "-c", file, "-e", tmp_path / "e"], capture_output=True, text=True)  # type: ignore[list-item]
    assert ran.returncode == 0, ran.stderr


# systemd


def unit(name: str) -> configparser.RawConfigParser:
    parsed = configparser.RawConfigParser(strict=False, comment_prefixes=("#",))
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read_string((DEPLOY / "systemd" / name).read_text())
    return parsed


def test_H4_the_units_fit_what_serve_expects() -> None:
    defaults = Config.model_validate({"pools": {"p": {"replicas": [{"url": "http://127.0.0.1:1", "engine": "vllm"}]}}}).server
    public, admin, service = unit("headworks.socket"), unit("headworks-admin.socket"), unit("headworks.service")
    assert public["Socket"]["ListenStream"] == defaults.listen and public["Socket"]["FileDescriptorName"] == "public"
    assert admin["Socket"]["ListenStream"] == defaults.admin and admin["Socket"]["FileDescriptorName"] == "admin"
    for socket in (public, admin):
        assert socket["Socket"]["Service"] == "headworks.service"
    assert int(service["Service"]["TimeoutStopSec"]) >= defaults.drain_s + 30
    assert service["Service"]["ExecReload"] == "/bin/kill -HUP $MAINPID"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    for path in (DEPLOY / "systemd").iterdir():
        text = re.sub(r"/opt/headworks/bin/headworks", "/bin/true", path.read_text())
        (tmp_path / path.name).write_text(text)
    ran = subprocess.run(["systemd-analyze", "verify", tmp_path / "headworks.service"], capture_output=True, text=True)
    assert ran.returncode == 0 and not ran.stderr, ran.stderr


# the container


def test_H1_the_image_runs_as_a_number_and_is_pinned() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    last = text.rsplit("\nFROM ", 1)[1]
    assert "USER 10001:10001" in last and 'ENTRYPOINT ["headworks"]' in last and "STOPSIGNAL SIGTERM" in last
    assert re.search(r"^ARG PYTHON=\d+\.\d+-slim-", text, re.M)
    assert "latest" not in text
