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

EVERYWHERE = {"algorithm", "scenario", "run"}
METRICS = {
    "raysim_round": ("gauge", set()),
    "raysim_accuracy": ("gauge", {"over"}),
    "raysim_memory_mb": ("gauge", {"where"}),
    "raysim_restarts": ("counter", set()),
    "raysim_bytes": ("counter", {"direction"}),
    "raysim_round_seconds": ("histogram", set()),
    "raysim_train_seconds": ("histogram", set()),
    "raysim_aggregate_seconds": ("histogram", set()),
}
"""What the engine hands to ray.util.metrics: kind and tags besides those that all have."""


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


@pytest.mark.parametrize("name", STARTS_RAY)
def test_ray_reports_no_usage_statistics(name: str) -> None:
    """By the flag where the file starts a head node itself, otherwise by the environment of its containers."""
    text = read(name)
    assert text.count("--disable-usage-stats") == text.count("ray start --head")
    if name in RAY_UP:
        assert "--env RAY_USAGE_STATS_ENABLED=0" in load(name)[0]["docker"]["run_options"]
    for environment in values(load(name), "env") if name in KUBERAY else ():
        assert {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"} in environment
    if name == "Dockerfile":
        assert "RAY_USAGE_STATS_ENABLED=0" in text


@pytest.mark.parametrize("name", FILES)
def test_no_address_of_anybody(name: str) -> None:
    """Examples are of example.org; the only address is loopback; what images are called names no registry."""
    text = read(name)
    assert set(re.findall(r"\b\d+\.\d+\.\d+\.\d+\b", text)) <= {"127.0.0.1"}
    assert not re.search(r"(?<![\w/.~])/(work|root|home/(?!ray\b))", text)
    assert not re.search(r"\b[0-9a-f]{32,}\b", text), "looks like a secret"


@pytest.mark.parametrize("name", FILES)
def test_dashboards_listen_on_loopback(name: str) -> None:
    text = read(name)
    assert "0.0.0.0" not in text
    given = r"(?:--host|dashboard-host|listen-address|HTTP_ADDR)[\s=:]+\"?([^\s,}\"]+)"
    assert {host.partition(":")[0] for host in re.findall(given, text)} <= {"127.0.0.1"}


@pytest.mark.parametrize("name", [*RAY_UP, "slurm.sh"])
def test_dashboard_host_is_said(name: str) -> None:
    """It is Ray's default today; that it stays so is not to be relied on."""
    assert re.search(r"ray start --head[^&]*--dashboard-host=127\.0\.0\.1", read(name))


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


RAY_START = re.compile(r"ray start ((?:--[^\s;&|`#]+(?: (?!-)[\w.:$]+)?\s*)+)")


@pytest.mark.parametrize("name", [*RAY_UP, "slurm.sh", "README.md"])
def test_options_of_ray_start_exist(name: str) -> None:
    from ray.scripts.scripts import start

    known = {option for parameter in start.params for option in parameter.opts}
    text = re.sub(r"\\?\n\s+(?=-)", " ", read(name))
    found = RAY_START.findall(text)
    assert len(found) >= 2, "a head node and workers"
    common = re.findall(r"^common=\(([^\n]*(?:\n[^\n]*)?)\)$", text, re.MULTILINE)
    for options in [*found, *common]:
        assert set(re.findall(r"--[a-z-]+", options)) <= known


# ---------------------------------------------------------------------------------------------- the image


def test_image_takes_what_is_there_and_nothing_else() -> None:
    text = read("Dockerfile")
    copied = {word for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for word in line.split()}
    let_in = set(re.findall(r"^!(\S+)$", read("Dockerfile.dockerignore"), re.MULTILINE))
    assert copied == let_in
    assert all((ROOT / name).exists() for name in copied)
    assert read("Dockerfile.dockerignore").splitlines()[1] == "*"
    assert text.count("-c constraints.txt -r /dev/stdin") == 1
    # raysim's folders of methods and scenarios are links: pip leaves out what is not there yet, without a word.
    links = [path for path in (ROOT / "raysim").iterdir() if path.is_symlink()]
    assert {link.resolve().name for link in links} == {"algorithms", "scenarios"}
    assert all(text.index(f"COPY {link.resolve().name} ") < text.index("--no-deps .") for link in links)


def test_another_build_of_torch_brings_its_own_cuda() -> None:
    """With the pinned CUDA packages, pip would take PyPI's torch, but keep the torchvision of the other build."""
    found = re.search(
        r"if \[ -n \"\$TORCH_INDEX\" \]; then sed -i -E '/(\S+)/d' constraints\.txt; fi", read("Dockerfile")
    )
    assert found
    removed = {name for name in PINNED if re.search(found[1], name)}
    assert {"cuda-toolkit", "cuda-bindings", "nvidia-cudnn-cu13"} <= removed
    assert {"torch", "torchvision", "triton", "ray"}.isdisjoint(removed)


def test_image_fits_ray_up_and_kubernetes() -> None:
    """`ray up` reads HOME from the image; pods and bind mounts go by the number of the user."""
    text = read("Dockerfile")
    assert re.search(r"^ENV HOME=/home/ray\b", text, re.MULTILINE)
    user = re.search(r"^ARG USER_ID=(\d+)$", text, re.MULTILINE)
    assert user and int(user[1]) > 0
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE) == ["${USER_ID}"]
    for name in ("kuberay-cluster.yaml", "kuberay-job.yaml"):
        for key in ("runAsUser", "runAsGroup", "fsGroup"):
            assert set(values(load(name), key)) == {int(user[1])}


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


@pytest.mark.parametrize("name", RAY_UP)
def test_ray_up_brings_the_token_and_nothing_from_defaults(name: str) -> None:
    """The head node hands files on under the same path, so both sides must be equal."""
    config = load(name)[0]
    assert config["file_mounts"] == {"~/.ray/auth_token": "~/.ray/auth_token"}
    prepared = validate_as_ray_up_does(config)
    assert "whl" not in json.dumps(prepared), "Ray's defaults install a Ray of their own"
    # Docker would make a missing folder root's, and Ray in the container could not write.
    mounted = [option.split()[1].split(":")[0] for option in config["docker"]["run_options"] if "--volume" in option]
    made = " ".join(config["initialization_commands"])
    assert {"/shared", "/tmp/ray"} == set(mounted)
    assert "/tmp/ray" in made and (name == "ray-onprem.yaml" or "/shared" in made)


def test_what_to_fill_in_is_marked() -> None:
    for name in RAY_UP:
        for line in read(name).splitlines():
            if re.search(r"example\.org|ami-0|FAMILY|my-project|ssh_private_key|region: ", line):
                assert line.endswith("# change")


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


def test_schema_is_closed() -> None:
    """An object without the word would let misspelt fields through; those left open hold fields we do not use."""
    for name, definition in SCHEMA["$defs"].items():
        assert definition.get("additionalProperties") is False or name == "quantity"
    spec = deepcopy(load("kuberay-cluster.yaml")[0])
    spec["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "four"
    assert "four" in str(problem(spec))


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


def test_dashboards_in_kubernetes() -> None:
    """KubeRay opens the dashboard by default; a RayJob needs it, so a policy protects it."""
    [cluster], [job] = load("kuberay-cluster.yaml"), load("kuberay-job.yaml")
    head = cluster["spec"]["headGroupSpec"]["rayStartParams"]
    assert head == {"num-cpus": "0", "dashboard-host": "127.0.0.1"}
    assert job["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    policy = load("kuberay-base.yaml")[1]["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    others = [rule for rule in policy["ingress"] if "namespaceSelector" in rule["from"][0]]
    assert sorted(port["port"] for rule in others for port in rule["ports"]) == [8080, 8265]
    assert all(rule["from"][0]["podSelector"] for rule in others)
    # The label that the operator's pod has after an installation by Helm and after one by Kustomize.
    assert {"app.kubernetes.io/component": "kuberay-operator"} in values(others, "matchLabels")


def test_one_secret_under_one_name() -> None:
    secrets = {options["secretName"] for name in KUBERAY for options in values(load(name), "authOptions")}
    made = {
        word for name in ("README.md", "kuberay-base.yaml") for word in re.findall(r"secret generic (\S+)", read(name))
    }
    assert secrets == made and len(made) == 1


def test_job_runs_a_scenario_of_the_image() -> None:
    entrypoint = load("kuberay-job.yaml")[0]["spec"]["entrypoint"]
    words = shlex.split(entrypoint)
    assert words[:2] == ["raysim", "launch"]
    assert (ROOT / words[2].removeprefix("/opt/raysim/")).is_file()
    assert "WORKDIR /opt/raysim\n" in read("Dockerfile")
    check_raysim(entrypoint)


# ---------------------------------------------------------------------------------------------- MLflow and metrics


def test_compose_mounts_what_is_there() -> None:
    compose = load("compose.yaml")[0]
    for service in compose["services"].values():
        assert service["network_mode"] == "host" and "ports" not in service
        for volume in service["volumes"]:
            if isinstance(volume, dict):
                assert volume["bind"] == {"create_host_path": False} and volume["read_only"]
                continue
            source = volume.split(":")[0]
            assert (FOLDER / source).is_file() if source.startswith("./") else source in compose["volumes"]
    assert PINNED["mlflow"].startswith("3."), "the options of `mlflow server` were tried with 3.17"


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    compose = load("compose.yaml")[0]
    grafana = compose["services"]["grafana"]
    assert {entry["source"] for entry in grafana["configs"]} == set(compose["configs"])
    [source] = yaml.safe_load(compose["configs"]["datasource"]["content"])["datasources"]
    assert source["url"].removeprefix("http://") in compose["services"]["prometheus"]["command"]
    [provider] = yaml.safe_load(compose["configs"]["dashboards"]["content"])["providers"]
    mounted = next(volume for volume in grafana["volumes"] if "raysim.json" in volume).split(":")
    assert mounted[1] == grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert mounted[1].startswith(provider["options"]["path"])


def test_prometheus_reads_rays_list_of_nodes() -> None:
    from ray._private.ray_constants import PROMETHEUS_SERVICE_DISCOVERY_FILE

    [scrape] = load("prometheus.yml")[0]["scrape_configs"]
    [files] = scrape["file_sd_configs"]
    assert files["files"] == [f"/tmp/ray/{PROMETHEUS_SERVICE_DISCOVERY_FILE}"]
    assert files["refresh_interval"] == "30s"


DASHBOARD = json.loads(read("grafana/raysim.json"))
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
SUFFIXES = {"gauge": [""], "counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
EXPORTED = {
    f"ray_{name}{suffix}": (kind, EVERYWHERE | tags | ({"le"} if suffix == "_bucket" else set()))
    for name, (kind, tags) in METRICS.items()
    for suffix in SUFFIXES[kind]
}
"""The names and labels that Prometheus sees."""


def test_the_engine_exports_these_metrics() -> None:
    from ray.util.metrics import Metric

    from raysim.engine.ray.metrics import RayMetrics

    def metrics(tree: Any) -> Iterator[Metric]:
        if isinstance(tree, Metric):
            yield tree
        elif isinstance(tree, dict):
            for value in tree.values():
                yield from metrics(value)

    exported = {
        metric.info["name"]: (type(metric).__name__.lower(), set(metric.info["tag_keys"]) - EVERYWHERE)
        for metric in metrics(vars(RayMetrics()))
    }
    assert exported == METRICS


@pytest.mark.parametrize("query", QUERIES)
def test_queries_use_exported_metrics_and_their_tags(query: str) -> None:
    used = re.findall(r"\b(ray_\w+)\{([^}]*)\}", query)
    assert used and {name for name, _ in used} == set(re.findall(r"\bray_\w+", query)) <= set(EXPORTED)
    for name, selector in used:
        kind, tags = EXPORTED[name]
        assert set(re.findall(r"(\w+)=~", selector)) == {"scenario", "run"}
        for grouped in re.findall(r"by \(([^)]*)\)", query):
            assert set(grouped.split(", ")) <= tags
        assert ("rate(" + name in query) == (kind == "histogram"), "totals are shown, distributions over time"
    assert query.count("histogram_quantile") == query.count("le)")
    assert query.count("(") == query.count(")")


def test_every_metric_is_shown() -> None:
    shown = set(re.findall(r"\bray_\w+", " ".join(QUERIES)))
    assert all(any(f"ray_{name}{suffix}" in shown for suffix in SUFFIXES[kind]) for name, (kind, _) in METRICS.items())


def test_dashboard_is_one_that_grafana_takes() -> None:
    assert DASHBOARD["uid"] == "raysim" and DASHBOARD["schemaVersion"] >= 36
    assert "id" not in DASHBOARD, "an id is of one Grafana's database"
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24
    variables = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
    assert variables == ["datasource", "scenario", "run"]
    built_in = {"__rate_interval", "__all"}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) <= {*variables, *built_in}
    for variable in DASHBOARD["templating"]["list"][1:]:
        asked = re.fullmatch(r"label_values\((\w+)[{,].* (\w+)\)", variable["definition"])
        assert asked and asked[1] in EXPORTED and asked[2] in EXPORTED[asked[1]][1]
    for panel in panels:
        labels = set(re.findall(r"\{\{(\w+)\}\}", " ".join(target["legendFormat"] for target in panel["targets"])))
        grouped = [
            set(by.split(", ")) for target in panel["targets"] for by in re.findall(r"by \(([^)]*)\)", target["expr"])
        ]
        assert all(labels <= by for by in grouped)


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


def test_readme_names_files_that_exist() -> None:
    text = read("README.md")
    for name in re.findall(r"\]\(([^):]+)\)", text):
        assert (FOLDER / name).is_file(), name
    for name in re.findall(r"\b((?:cluster|scenarios)/[\w./-]+\w)", text):
        assert (ROOT / name).exists(), name
    linked = set(re.findall(r"\]\(([^):]+)\)", text))
    assert linked == set(FILES) - {"README.md", "Dockerfile.dockerignore"}, "every file is in the table"


def test_readme_resources_are_valid() -> None:
    from raysim.scenario.schema import Resources

    [block] = blocks("yaml")
    Resources(**yaml.safe_load(block)["resources"])
