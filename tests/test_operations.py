"""What operators copy: the container file, the systemd unit and the proxies' configurations, and the options they use."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from modalhash.cli import app

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def block(language):
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return found


def container_instructions():
    text = (ROOT / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]


def test_the_container_runs_a_pinned_base_without_rights():
    instructions = container_instructions()
    assert {name for name, _ in instructions} <= {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}  # fmt: skip
    for image in (rest.split()[0] for name, rest in instructions if name == "FROM"):
        tag = image.partition(":")[2]
        assert re.match(r"\d+\.\d+", tag), f"{image} is not pinned to a version"
    names = [name for name, _ in instructions]
    last_user = next(rest for name, rest in reversed(instructions) if name == "USER")
    assert int(last_user.partition(":")[0]) > 0
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert "RUN" not in names[names.index("USER") :], "nothing is built as the service's user, or as root after it"


def test_the_container_copies_what_is_there():
    ignore = (ROOT / ".dockerignore").read_text().split()
    for rest in (rest for name, rest in container_instructions() if name == "COPY" and not rest.startswith("--from")):
        for source in rest.split()[:-1]:
            assert (ROOT / source).exists()
            assert f"!{source}" in ignore


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed")
def test_hadolint_finds_nothing():
    subprocess.run(["hadolint", ROOT / "Containerfile"], check=True)


def unit():
    lines = [line.partition("=") for line in block("ini").splitlines() if "=" in line]
    return [(name, value) for name, _, value in lines]


def test_the_unit_is_hardened():
    settings = dict(unit())
    assert settings["User"] not in ("", "root")
    assert settings["CapabilityBoundingSet"] == ""
    for name in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectKernelTunables"):
        assert settings[name] == "yes"
    assert settings["ProtectSystem"] == "strict"


def test_a_reload_of_the_unit_replaces_workers():
    """One process alone would end at the signal, and not be started again."""
    settings = dict(unit())
    assert settings["ExecReload"] == "/bin/kill -HUP $MAINPID"
    words = shlex.split(settings["ExecStart"])
    assert int(words[words.index("--workers") + 1]) > 1


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit(tmp_path):
    path = tmp_path / "modalhash.service"
    path.write_text(block("ini").replace("/opt/modalhash/bin/modalhash", shutil.which("true")))
    done = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=60)
    complaints = [line for line in done.stderr.splitlines() if path.name in line]
    assert not complaints


@pytest.mark.parametrize("language", ["nginx", "caddy"])
def test_the_proxies_pass_on_what_the_service_needs(language):
    text = block(language)
    assert text.count("{") == text.count("}")
    assert "127.0.0.1:8000" in text
    assert "rate_limit" in text or "limit_req " in text
    if language == "nginx":
        assert all(line.rstrip().endswith((";", "{", "}", "")) for line in text.splitlines())
        for name in ("Host", "X-Forwarded-For", "X-Forwarded-Proto"):
            assert re.search(rf"proxy_set_header {name} \S+;", text)


DEPLOY = ROOT / "deploy"


def in_services():
    """The commands that deploy/compose.yaml and the Kubernetes manifests run."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    for service in compose["services"].values():
        if str(service["image"]).startswith("modalhash"):
            words = [*service.get("entrypoint", ["modalhash"]), *service.get("command", ["list", "/secrets/tokens"])]
            text = words[-1] if words[0] == "sh" else shlex.join(words)
            yield from (line.strip() for line in re.findall(r"modalhash (?!;)[^;&}]+", text))
    for manifest in manifests("Deployment"):
        pod = manifest["spec"]["template"]["spec"]
        for container in (*pod["initContainers"], *pod["containers"]):
            yield "modalhash " + " ".join(arg.replace("=", " ", 1) for arg in container["args"])


def manifests(kind):
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "modalhash.yaml").read_text(encoding="utf-8"))
    return [document for document in documents if document["kind"] == kind]


def test_probes_restart_only_what_does_not_answer():
    (deployment,) = manifests("Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == container["startupProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for kind in ("PodDisruptionBudget", "Deployment"):
        assert manifests(kind)[0]["spec"]["selector"]["matchLabels"] == labels


def test_alerts_and_dashboard_use_metrics_that_exist():
    from modalhash.serve.monitoring import Metrics

    metrics = Metrics()
    metrics.count_in_flight(1)
    metrics.count_request("/search", "POST", 200, 0.01)
    metrics.count_search("text")
    metrics.count_batch("search", 2)
    known = set(re.findall(r"^(\w+)", metrics.text({"image": 1}).decode(), re.MULTILINE))
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    panels = json.loads((DEPLOY / "grafana" / "modalhash.json").read_text(encoding="utf-8"))["panels"]
    expressions = [rule["expr"] for rule in rules]
    expressions += [target["expr"] for panel in panels for target in panel["targets"]]
    used = {name for text in expressions for name in re.findall(r"(?:modalhash|process)_\w+", text)}
    assert len(rules) == 5
    assert len(used) > 8
    assert used <= known


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_alerts_fire_when_they_should():
    subprocess.run(["promtool", "test", "rules", "alerts_test.yml"], cwd=DEPLOY / "prometheus", check=True)


@pytest.mark.skipif(shutil.which("caddy") is None, reason="caddy is not installed")
def test_caddy_takes_its_file():
    subprocess.run(["caddy", "validate", "--config", "Caddyfile", "--adapter", "caddyfile"], cwd=DEPLOY, check=True)


def commands():
    """The commands of the page and of the files in deploy/, as words after ``modalhash``."""
    starts = [dict(unit())["ExecStart"]]
    (container,) = (rest for name, rest in container_instructions() if name == "CMD")
    starts.append("modalhash " + " ".join(re.findall(r'"([^"]+)"', container)))
    for text in re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        starts += [line for line in text.splitlines() if line.startswith("modalhash ")]
    starts += in_services()
    return [shlex.split(line, comments=True)[1:] for line in starts]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_commands_and_options_exist(words):
    command = get_command(app)
    while (found := getattr(command, "commands", {}).get(words[0])) is not None:
        command, words = found, words[1:]
    assert not hasattr(command, "commands"), f"there is no command {words[0]}"
    options = {name for parameter in command.params for name in parameter.opts}
    assert not [word for word in words if word.startswith("--") and word not in options]
