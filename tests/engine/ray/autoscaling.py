"""A cluster on this machine whose nodes Ray's autoscaler starts and ends.

`ray.cluster_utils.AutoscalingCluster` needs a file that Ray's wheel lacks, and ends every Ray on the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

HEAD_TYPE, NODE_TYPE = "ray.head.default", "worker"  # the provider expects this type of the head node
HEAD = "f" * 51 + "00000"  # the id of the head node that the provider expects
LISTS = (
    "initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands",
    "head_start_ray_commands", "worker_start_ray_commands", "cluster_synced_files", "rsync_exclude", "rsync_filter",
)  # fmt: skip


@contextlib.contextmanager
def autoscaling_cluster(cpus: int, most: int) -> Iterator[str]:
    """Yield the address of a cluster: a head node without CPUs, and at most `most` further nodes with `cpus` CPUs each.

    Nodes end when they have been idle for 6 s. Call it in a process of its own that has not imported ray, which reads
    environment variables at its import.
    """
    node_type = {"RAY_NODE_TYPE_NAME": HEAD_TYPE, "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD}
    os.environ |= {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_AUTH_MODE": "disabled"}
    os.environ["RAY_NODE_TYPE_NAME"] = HEAD_TYPE  # as for `ray start` on a head node of `ray up` or KubeRay
    os.environ |= {"RAY_enable_autoscaler_v2": "1", "RAY_CLOUD_INSTANCE_ID": HEAD}
    os.environ["RAY_OVERRIDE_NODE_ID_FOR_TESTING"] = HEAD
    import ray
    from ray.cluster_utils import Cluster

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    module = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
    config = {
        "cluster_name": "fake",
        "max_workers": 100,
        "provider": {
            "type": "external", "module": module, "use_node_id_as_ip": True, "disable_node_updaters": True,
            "disable_launch_config_check": True, "head_node_id": HEAD,
            "gcs_address": f"{ray._private.services.get_node_ip_address()}:{port}", "launch_multiple": True,
        },
        "available_node_types": {
            HEAD_TYPE: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            NODE_TYPE: {"resources": {"CPU": cpus}, "node_config": {}, "min_workers": 0, "max_workers": most},
        },
        "head_node_type": HEAD_TYPE,
        "upscaling_speed": 10.0,
        "idle_timeout_minutes": 0.1,
        "file_mounts_sync_continuously": False,
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        **{name: [] for name in LISTS},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "autoscaler.yaml"
        path.write_text(json.dumps(config))
        head = {"num_cpus": 0, "include_dashboard": False, "gcs_server_port": port, "env_vars": node_type}
        cluster = Cluster(initialize_head=True, head_node_args={**head, "autoscaling_config": str(path)})
        try:
            yield cluster.address
        finally:
            started = psutil.Process().children(recursive=True)  # the autoscaler's nodes would outlive it
            ray.shutdown()
            cluster.shutdown()
            for process in started:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


def autoscaler() -> psutil.Process:
    """Return the process of the autoscaler that this process has started."""
    return next(
        one
        for one in psutil.Process().children(recursive=True)
        if any(text.startswith("--autoscaling-config=") for text in one.cmdline())
    )
