"""docs/tutorial.md: every command of kubectl, helm and gputopo runs, and prints what the page shows.

The cluster is the control plane of these tests instead of kind: the test creates kind's nodes, and starts the programs
of the installed manifests as processes with their accounts, as kubelets would. Commands of docker, kind and pip do not
run.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.api_client import ApiError
from tests.api_objects import Object, node, pod
from tests.daemonset.tools import DAEMONSET, ROOT, tool
from tests.e2e.background import ClusterWork
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.daemonset.installed import NAMESPACE, agent_token, wait_for_policies
from tests.e2e.fixtures import StartScheduler
from tests.e2e.process import Server
from tests.ports import free_port

pytestmark = pytest.mark.e2e
PAGE = ROOT / "docs/tutorial.md"
WORKERS = ("gputopo-worker", "gputopo-worker2", "gputopo-worker3")
CONTROL_PLANE = "gputopo-control-plane"
# Not run: programs that need a container engine or the network, and waits for pods that a kubelet would start.
NOT_RUN = ("kind ", "docker ", "pip ", "kubectl -n gputopo-agent rollout", "kubectl -n gputopo rollout", "gputopo ui")
# Different in each run: ages and times, names with a hash, versions, which worker, the order of equal workers.
VOLATILE = (
    (r"\b\d+(\.\d+)?\s?(ms|s|m|h|seconds?|minutes?)\b", "TIME"),
    (r"\bv1\.\d+\.\d+\b", "VERSION"),
    (r"\bgputopo-worker\d?", "WORKER"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?Z?", "TIME"),
    (r"[ \t]+", " "),
)


class Command(NamedTuple):
    """One command of the page, and the lines that the page shows below it."""

    line: str
    shown: list[str]


def commands() -> list[Command]:
    """Every command of the page in order. A line that ends with a backslash continues on the next one."""
    found: list[Command] = []
    for block in re.findall(r"^```console\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Command(line[2:], []))
            elif found[-1].line.endswith("\\") and not found[-1].shown:
                found[-1] = found[-1]._replace(line=f"{found[-1].line}\n{line}")
            else:
                found[-1].shown.append(line)
    return found


def masked(lines: list[str]) -> list[str]:
    """Lines without what differs in each run."""
    text = "\n".join(lines)
    for pattern, replacement in VOLATILE:
        text = re.sub(pattern, replacement, text)
    return sorted(line.strip() for line in text.splitlines() if line.strip())


@pytest.fixture
def shell(cluster: Cluster, tmp_path: Path) -> dict[str, str]:
    """The environment of the commands: an administrator's kubeconfig, and our kubectl, helm and gputopo on PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("kubectl", "helm"):
        (programs / name).symlink_to(tool(name))
    (programs / "gputopo").write_text(f'#!/bin/sh\nexec {sys.executable} -m gputopo "$@"\n')
    (programs / "gputopo").chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("GPUTOPO_", "KUBE", "HELM"))}
    config = cluster.kubeconfig(tmp_path / "admin.kubeconfig")
    home = {"HOME": str(tmp_path), "COLUMNS": "120", "PYTHONPATH": str(ROOT)}
    return clean | home | {"KUBECONFIG": str(config), "PATH": f"{programs}:{os.environ['PATH']}"}


@pytest.fixture
def programs(cluster: Cluster, scheduler: StartScheduler, tmp_path: Path) -> Iterator[Programs]:
    """The programs that kubelets would start after `helm install`."""
    with ExitStack() as stack:
        yield Programs(cluster, scheduler, tmp_path, stack)


class Programs:
    """The programs of the installed manifests, as processes with their accounts."""

    def __init__(self, cluster: Cluster, scheduler: StartScheduler, folder: Path, stack: ExitStack) -> None:
        self._cluster, self._scheduler, self._folder, self._stack = cluster, scheduler, folder, stack

    def start(self) -> None:
        """Start agents, extender, kube-scheduler and planner; return when all labels are published."""
        wait_for_policies(self._cluster)
        source = ROOT / "fixtures/machines/8h100-2n-nvswitch18/snapshot.json"
        for name in (CONTROL_PLANE, *WORKERS):
            options = ("--node", name, "--node-source", str(source), "--socket", "off", "--listen", "off")
            self._run(f"agent-{name}", agent_token(self._cluster, name), "agent", *options)
        verbs, pages = free_port(), f"127.0.0.1:{free_port()}"
        extender = self._token("gputopo-scheduler", "gputopo-scheduler-0")
        identity = {"POD_NAMESPACE": NAMESPACE, "POD_NAME": "gputopo-scheduler-0"}
        listeners = ("--verbs", f"127.0.0.1:{verbs}", "--listen", pages)
        self._run("extender", extender, "extender", *listeners, **identity)
        config: Object = yaml.safe_load(self._config_map("gputopo-scheduler-config")["scheduler-config.yaml"])
        config["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{verbs}"
        config["leaderElection"] = {"leaderElect": False}
        config["clientConnection"] = {"kubeconfig": str(self._kubeconfig("scheduler", extender))}
        self._scheduler(yaml.safe_dump(config))
        planner = self._token("gputopo-planner", "gputopo-planner-0")
        lease = ("--lease", f"{NAMESPACE}/gputopo-planner", "--listen", f"127.0.0.1:{free_port()}")
        self._run("planner", planner, "planner", *lease, "--annotations", "guarded")
        wait_for(self._labelled, "the labels of all nodes", 60.0)

    def _labelled(self) -> bool:
        found = self._cluster.api.items("/api/v1/nodes")
        return all("gputopo.io/gpus" in each["metadata"]["labels"] for each in found)

    def _config_map(self, name: str) -> dict[str, str]:
        return dict(self._cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{name}")["data"])

    def _token(self, account: str, name: str) -> str:
        """A token as the kubelet mounts it into a pod of the Deployment."""
        made = pod(name, serviceAccountName=account, nodeName=CONTROL_PLANE)
        made["metadata"]["namespace"] = NAMESPACE
        return self._cluster.token(account, self._cluster.create_pod(made), NAMESPACE)

    def _kubeconfig(self, name: str, token: str) -> Path:
        return self._cluster.kubeconfig(self._folder / f"{name}.kubeconfig", token)

    def _run(self, name: str, token: str, *command: str, **environ: str) -> None:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("GPUTOPO_", "KUBE"))}
        environment = clean | environ | {"KUBECONFIG": str(self._kubeconfig(name, token))}
        server = Server(name, [sys.executable, "-m", "gputopo", *command], self._folder / f"{name}.log", environment)
        self._stack.callback(server.stop)


class Kubelets(ClusterWork):
    """The kubelets of all nodes: bound pods run, and terminating pods end."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__("kubelets", cluster)
        self._path = cluster.pods(namespace="default")

    def _turn(self) -> None:
        for each in self._api.items(self._path):
            path = f"{self._path}/{each['metadata']['name']}"
            if "deletionTimestamp" in each["metadata"]:
                self._api.delete(path)
            elif "nodeName" in each["spec"] and each["status"]["phase"] == "Pending":
                with contextlib.suppress(ApiError):  # deleted meanwhile
                    self._api.patch(f"{path}/status", {"status": {"phase": "Running"}})


def create_nodes(cluster: Cluster) -> None:
    """The nodes that kind creates from docs/examples/tutorial/kind.yaml."""
    info = {"nodeInfo": {"kubeletVersion": "v1.37.1"}}
    capacity = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    linux = {"kubernetes.io/os": "linux"}
    for name in WORKERS:
        cluster.api.create("/api/v1/nodes", node(name, capacity, linux | {"kubernetes.io/hostname": name}))
    role = "node-role.kubernetes.io/control-plane"
    made = node(CONTROL_PLANE, capacity, linux | {role: "", "kubernetes.io/hostname": CONTROL_PLANE})
    made["spec"] = {"taints": [{"key": role, "effect": "NoSchedule"}]}
    cluster.api.create("/api/v1/nodes", made)
    for name in (CONTROL_PLANE, *WORKERS):
        cluster.api.patch(f"/api/v1/nodes/{name}/status", {"status": info})


def run_command(command: Command, shell: dict[str, str], programs: Programs) -> list[str]:
    """Run a command of the page as a reader does; return the lines that it prints, masked."""
    done = subprocess.run(
        ["bash", "-c", command.line], cwd=ROOT, env=shell, capture_output=True, text=True, check=False, timeout=300
    )
    print(f"$ {command.line}\n{done.stdout}{done.stderr}")  # pytest shows it if the test fails
    assert done.returncode == 0, f"{command.line}\n{done.stdout}{done.stderr}"
    if command.line.startswith("helm install"):
        programs.start()
    return masked(done.stdout.splitlines())


def test_every_command_runs_and_prints_what_the_page_shows(
    cluster: Cluster, programs: Programs, shell: dict[str, str]
) -> None:
    create_nodes(cluster)
    cluster.api.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
    with Kubelets(cluster):
        differences = {
            command.line: printed
            for command in commands()
            if not command.line.startswith(NOT_RUN)
            and (printed := run_command(command, shell, programs)) != masked(command.shown)
            and command.shown
        }

    assert differences == {}
    assert cluster.api.items("/apis/apps/v1/deployments") == []


def test_the_commands_of_the_page_are_all_known() -> None:
    """A command of another program must be added to the list of commands that do not run, or run."""
    unknown = [
        each.line for each in commands() if not each.line.startswith((*NOT_RUN, "kubectl ", "helm ", "gputopo "))
    ]

    assert unknown == []
    assert len(commands()) > 15
    assert (DAEMONSET / "chart/values-demo.yaml").is_file()
