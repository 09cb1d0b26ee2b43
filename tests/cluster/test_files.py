"""The files of cluster/: valid, consistent with each other and with the versions in use, closed to strangers."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "cluster"
FILES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file())
YAMLS = [name for name in FILES if name.endswith((".yaml", ".yml"))]
RAY_UP = [name for name in YAMLS if name.startswith("ray-")]
KUBERAY = [name for name in YAMLS if name.startswith("kuberay-")]
STARTS_RAY = [*RAY_UP, "kuberay-cluster.yaml", "kuberay-job.yaml", "slurm.sh", "Dockerfile", "README.md"]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINNED = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
IMAGE = f"raysim:{PROJECT['project']['version']}"


def read(name: str) -> str:
    return (FOLDER / name).read_text()


def load(name: str) -> list[Any]:
    return list(yaml.safe_load_all(read(name)))


def values(tree: Any, key: str) -> Iterator[Any]:
    """Every value that `key` has anywhere in a document."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            if name == key:
                yield value
            yield from values(value, key)
    elif isinstance(tree, list):
        for item in tree:
            yield from values(item, key)


# ---------------------------------------------------------------------------------------------- all files


@pytest.mark.parametrize("name", FILES)
def test_dashboards_listen_on_loopback(name: str) -> None:
    text = read(name)
    assert "0.0.0.0" not in text
    given = r"(?:--host|dashboard-host|listen-address|HTTP_ADDR)[\s=:]+\"?([^\s,}\"]+)"
    assert {host.partition(":")[0] for host in re.findall(given, text)} <= {"127.0.0.1"}


@pytest.mark.parametrize("name", STARTS_RAY)
def test_token_authentication_is_on(name: str) -> None:
    text = read(name)
    assert not re.search(r"RAY_AUTH_MODE\W+disabled", text)
    if name in KUBERAY:
        modes = [options["mode"] for options in values(load(name), "authOptions")]
        clusters = len(list(values(load(name), "rayVersion")))
        assert modes == ["token"] * clusters and clusters
        return
    assert "RAY_AUTH_MODE=token" in text
    if name in RAY_UP:
        assert "--env RAY_AUTH_MODE=token" in load(name)[0]["docker"]["run_options"]


@pytest.mark.parametrize("name", FILES)
def test_versions_are_those_in_use(name: str) -> None:
    text = read(name)
    assert set(re.findall(r"\braysim:[\w.]+", text)) <= {IMAGE}
    assert set(re.findall(r"rayVersion: (\S+)", text)) <= {PINNED["ray"]}
    python = PROJECT["tool"]["mypy"]["python_version"]
    assert set(re.findall(r"python:([\d.]+)-", text)) <= {python}
    assert set(re.findall(r"torch \(([\d.]+)\+", text)) <= {PINNED["torch"]}
    for document in load(name) if name in YAMLS else []:
        for image in values(document, "image"):
            assert image == IMAGE or re.fullmatch(r"(prom/prometheus|grafana/grafana):v?\d+\.\d+\.\d+", image)


# ---------------------------------------------------------------------------------------------- ray up


def validate_as_ray_up_does(config: dict[str, Any]) -> dict[str, Any]:
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(deepcopy(config))
    validate_config(prepared)
    return prepared


@pytest.mark.parametrize("name", RAY_UP)
def test_ray_up_accepts(name: str) -> None:
    config = load(name)[0]
    prepared = validate_as_ray_up_does(config)
    assert prepared["max_workers"] >= 2
    with pytest.raises(Exception, match="Additional properties"):
        validate_as_ray_up_does({**config, "dockr": {}})


@pytest.mark.parametrize("name", RAY_UP)
def test_head_node_holds_no_clients(name: str) -> None:
    config = load(name)[0]
    if "head_node_type" in config:
        types = config["available_node_types"]
        assert types[config["head_node_type"]]["resources"]["CPU"] == 0
        assert all(kind["resources"]["CPU"] for other, kind in types.items() if other != config["head_node_type"])
    else:
        assert "--num-cpus=0 --num-gpus=0" in config["head_start_ray_commands"][1]


# ---------------------------------------------------------------------------------------------- Kubernetes

SCHEMA = json.loads((Path(__file__).parent / "schemas" / "kuberay.json").read_text())


def problem(manifest: dict[str, Any]) -> str | None:
    """What the schema has against a manifest."""
    error = best_match(Draft202012Validator({**SCHEMA, "$ref": f"#/$defs/{manifest['kind']}"}).iter_errors(manifest))
    return error and f"{error.json_path}: {error.message}"


def pods(name: str) -> Iterator[dict[str, Any]]:
    for key in ("template", "submitterPodTemplate"):
        yield from values(load(name), key)


@pytest.mark.parametrize("name", KUBERAY)
def test_manifests_fit_the_schema(name: str) -> None:
    for manifest in load(name):
        assert problem(manifest) is None
        assert "unknown" in str(problem({**manifest, "spec": {**manifest["spec"], "unknown": 1}}))


def test_pods_are_not_root_and_let_in_by_the_policy() -> None:
    claim, policy = load("kuberay-base.yaml")
    selected = policy["spec"]["podSelector"]["matchLabels"]
    for name in ("kuberay-cluster.yaml", "kuberay-job.yaml"):
        found = list(pods(name))
        assert len(found) == (2 if name == "kuberay-cluster.yaml" else 3)
        for pod in found:
            assert selected.items() <= pod["metadata"]["labels"].items()
            assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
            for container in pod["spec"]["containers"]:
                assert container["securityContext"]["allowPrivilegeEscalation"] is False
                assert container["resources"]["limits"]["memory"]
                for mount in container.get("volumeMounts", []):
                    volume = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == mount["name"])
                    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_job_runs_a_scenario_of_the_image() -> None:
    entrypoint = load("kuberay-job.yaml")[0]["spec"]["entrypoint"]
    words = shlex.split(entrypoint)
    assert words[:2] == ["raysim", "launch"]
    assert (ROOT / words[2].removeprefix("/opt/raysim/")).is_file()
    assert "WORKDIR /opt/raysim\n" in read("Dockerfile")
    check_raysim(entrypoint)


# ---------------------------------------------------------------------------------------------- MLflow and metrics


def test_the_dashboard_shows_the_metrics_that_the_engine_exports() -> None:
    from ray.util.metrics import Metric

    from raysim.engine.ray.metrics import RayMetrics

    def metrics(tree: Any) -> Iterator[Metric]:
        for value in tree.values() if isinstance(tree, dict) else [tree]:
            yield from metrics(value) if isinstance(value, dict) else [value] * isinstance(value, Metric)

    exported = {f"ray_{metric.info['name']}" for metric in metrics(vars(RayMetrics()))}
    assert {"ray_raysim_round", "ray_raysim_accuracy", "ray_raysim_bytes"} <= exported
    assert all(name in read("grafana/raysim.json") for name in exported)


# ---------------------------------------------------------------------------------------------- the README's commands


def check_raysim(line: str) -> None:
    """The command and all its options exist."""
    from raysim.cli.jobs import COMMANDS
    from raysim.cli.main import cli

    commands: dict[str, click.Command] = {**cli.commands, **{str(command.name): command for command in COMMANDS}}
    words = shlex.split(line, comments=True)
    command = words[words.index("raysim") + 1]
    assert command in commands, line
    known = {option for parameter in commands[command].params for option in parameter.opts}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known, line


def blocks(language: str) -> list[str]:
    """What stands between the README's fences of one language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", read("README.md"), re.MULTILINE | re.DOTALL)
    return [text for given, text in found if given == language]


def test_readme_commands_exist() -> None:
    from ray.scripts.scripts import cli as ray

    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", read("README.md"), flags=re.MULTILINE | re.DOTALL))
    lines = [line for block in blocks("") for line in block.splitlines()]
    seen = set()
    for line in [*lines, *inline]:
        if match := re.match(r"raysim (\w+)", line):
            check_raysim(line)
            seen.add(match[1])
        elif match := re.search(r"(?:^|\(umask 077 && |=token )ray ([a-z-]+)", line):
            assert match[1] in ray.commands, line
    assert seen >= {"launch", "submit", "status", "logs", "stop", "jobs", "fetch"}
