"""The kustomizations and commands that docs/scheduler.md tells people to use do what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from gputopo import __version__
from scheduler_core.extender.scheduler_config import SERVICE
from tests.daemonset.tools import DAEMONSET, kustomized, name_of, run
from tests.daemonset.workloads import containers, deployment


def documented(language: str) -> list[str]:
    """The blocks of a language in docs/scheduler.md."""
    text = (DAEMONSET.parent / "docs/scheduler.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_documented_kustomization_brings_the_users_file_and_images(tmp_path: Path) -> None:
    text = documented("yaml")[0]
    here = os.path.relpath(DAEMONSET / "scheduler/default", tmp_path)
    changed = re.sub(r"https://\S+", here, text)
    assert changed != text
    (tmp_path / "kustomization.yaml").write_text(changed)
    (tmp_path / "scheduler-config.yaml").write_text("mine: true\n")

    objects = tuple(yaml.safe_load_all(run("kubectl", "kustomize", tmp_path)))

    (config,) = (each for each in objects if each["kind"] == "ConfigMap")
    spec = deployment(objects)["spec"]["template"]["spec"]
    assert config["data"] == {"scheduler-config.yaml": "mine: true\n"}
    assert spec["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]
    assert {name: each["image"] for name, each in containers(spec).items()} == {
        "extender": f"registry.example.com/gputopo:{__version__}",
        "scheduler": "registry.k8s.io/kube-scheduler:v1.36.3",
    }


def test_agent_and_scheduler_go_into_one_kustomization(tmp_path: Path) -> None:
    """So neither has an object of the other: the namespace and the definition are the agent's."""
    here = os.path.relpath(DAEMONSET, tmp_path)
    parts = [f"{here}/overlays/default", *(f"{here}/scheduler/{each}" for each in ("default", "observe"))]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({"resources": parts}))

    together = [name_of(each) for each in yaml.safe_load_all(run("kubectl", "kustomize", tmp_path))]

    assert (
        len(set(together))
        == len(together)
        == sum(len(kustomized(each)) for each in ("overlays/default", "scheduler/default", "scheduler/observe"))
    )


def test_the_certificates_go_with_the_extender_behind_a_service(tmp_path: Path) -> None:
    here = os.path.relpath(DAEMONSET / "scheduler", tmp_path)
    document = {"resources": [f"{here}/cluster-scheduler"], "components": [f"{here}/components/cert-manager"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(document))

    objects = tuple(yaml.safe_load_all(run("kubectl", "kustomize", tmp_path)))

    (serving,) = (each for each in objects if name_of(each) == ("Certificate", "gputopo", "gputopo-extender"))
    assert (serving["spec"]["dnsNames"], serving["spec"]["usages"]) == ([SERVICE], ["server auth"])
    (client,) = (each for each in objects if name_of(each) == ("Certificate", "gputopo", "gputopo-extender-client"))
    assert (client["spec"]["dnsNames"], client["spec"]["usages"]) == (["kube-scheduler"], ["client auth"])
    (volume,) = deployment(objects)["spec"]["template"]["spec"]["volumes"]
    assert volume["secret"]["secretName"] == serving["spec"]["secretName"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_the_documented_commands_make_certificates_that_hold(tmp_path: Path) -> None:
    commands = [line[2:] for block in documented("console") for line in block.splitlines() if line.startswith("$ ")]
    first = next(place for place, line in enumerate(commands) if line.startswith("alias key="))
    script = [line for line in commands[first : first + 7] if not line.startswith("kubectl")]

    done = subprocess.run(
        ["/bin/sh", "-ec", "\n".join(script)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    usages = {"tls.crt": "TLS Web Server Authentication", "client.crt": "TLS Web Client Authentication"}
    for leaf, usage in usages.items():
        checked = subprocess.run(
            ["openssl", "verify", "-CAfile", "ca.crt", leaf], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert checked.stdout == f"{leaf}: OK\n"
        command = ["openssl", "x509", "-in", leaf, "-noout", "-ext", "extendedKeyUsage"]
        shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        assert shown.splitlines()[1].strip() == usage
