"""The sources of credentials, and the cost of opening a connection."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gputopo.kube.connect import connect, default_namespace, from_kubeconfig, in_cluster
from gputopo.kube.errors import ConfigError
from gputopo.kube.objects import PartialObject
from gputopo.kube.rbac import NODES, READER
from tests.api_server import Answer, api_server, kubeconfig

NODE = {"metadata": {"name": "n"}}
LIVE_AND_LOOK = """
import sys
from gputopo.kube.rbac import AGENT, NODES
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.objects import PartialObject
kube = from_kubeconfig(AGENT, sys.argv[1])
kube.get(NODES, "n", PartialObject)
kube.apply(NODES, "us", {"metadata": {"name": "n", "uid": "u"}})
from agent.publish.node import NodePublisher
from agent.publish.nodefeature import NodeFeaturePublisher
from gputopo.cluster.cleanup import find_removals
print(sorted(name for name in sys.modules if name.startswith(("kubernetes.client.models.", "kubernetes.client.api."))))
"""


def test_the_models_of_the_official_package_are_never_imported(tmp_path: Path) -> None:
    """The models cost 78 MiB and a second. An empty package takes the place of theirs."""
    with api_server(lambda _: Answer(NODE)) as server:
        command = [sys.executable, "-c", LIVE_AND_LOOK, server.kubeconfig(tmp_path / "config")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.stdout.strip(), done.stderr, done.returncode) == ("[]", "", 0)


def test_the_rbac_roles_are_read_without_importing_an_http_client() -> None:
    code = "import sys, gputopo.kube.rbac, gputopo.kube.objects, gputopo.kube.ownership; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert {"urllib3", "kubernetes", "pydantic"}.isdisjoint(loaded)


def test_a_context_is_chosen_by_name(tmp_path: Path) -> None:
    with api_server(lambda _: Answer(NODE)) as server:
        document = kubeconfig(server.url, "s3cret") | {"current-context": "nowhere"}
        (tmp_path / "config").write_text(yaml.safe_dump(document))
        kube = connect(READER, str(tmp_path / "config"), "here")

        assert kube.get(NODES, "n", PartialObject).metadata.name == "n"
        kube.close()


@pytest.mark.parametrize(
    ("text", "context", "result"),
    [
        pytest.param("", None, "found no YAML", id="an empty file"),
        pytest.param("a: [", None, "found no YAML", id="no YAML"),
        pytest.param("kind: Config", None, "expected YAML with a list of clusters", id="nothing in it"),
        pytest.param("hello", None, "expected YAML with a list of clusters", id="prose"),
        pytest.param("- a", None, "expected YAML with a list of clusters", id="a list"),
        pytest.param("clusters: 5", None, "expected YAML with a list of clusters", id="clusters that are no list"),
        pytest.param("\ufffe", None, "found no YAML", id="characters that YAML forbids"),
        pytest.param(yaml.safe_dump(kubeconfig("http://x", "t")), "nowhere", "nowhere", id="no such context"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path, text: str, context: str | None, result: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)

    with pytest.raises(ConfigError, match=result) as caught:
        from_kubeconfig(READER, str(path), context)

    assert str(path) in str(caught.value)


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{tmp_path}/none cannot be used: no such file"):
        connect(READER, str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=f"cannot be used: {tmp_path} is not a file"):
        connect(READER, str(tmp_path))


def test_an_unknown_context_is_quoted_and_the_known_ones_are_listed(tmp_path: Path) -> None:
    document = kubeconfig("http://127.0.0.1:1", "t")
    document["contexts"].append({"name": "staging", "context": {"cluster": "here", "user": "me"}})
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(document))

    with pytest.raises(ConfigError) as asked:
        connect(READER, str(path), "stagin")
    path.write_text(yaml.safe_dump(document | {"current-context": "gone"}))
    with pytest.raises(ConfigError) as current:
        connect(READER, str(path))
    path.write_text(yaml.safe_dump(document | {"contexts": []}))
    with pytest.raises(ConfigError) as none:
        connect(READER, str(path), "here")

    begin, known = f"the kubeconfig {path} cannot be used: ", "its contexts are 'here', 'staging'"
    assert str(asked.value) == f"{begin}it has no context 'stagin'; {known}"
    assert str(current.value) == f"{begin}its current-context names no context: 'gone'; {known}"
    assert str(none.value) == f"{begin}it has no context 'here'; it has no contexts"


def test_contexts_of_several_files_are_listed_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = kubeconfig("http://127.0.0.1:1", "t"), kubeconfig("http://127.0.0.1:1", "t")
    other["contexts"][0]["name"] = "there"
    for name, document in (("one", one), ("other", other)):
        (tmp_path / name).write_text(yaml.safe_dump(document))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/one:{tmp_path}/missing:{tmp_path}/other")

    with pytest.raises(ConfigError, match=r"no context 'nope'; its contexts are 'here', 'there'$"):
        connect(READER, context="nope")


def test_a_context_without_a_kubeconfig_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))

    with pytest.raises(ConfigError) as caught:
        connect(READER, context="prod")

    assert str(caught.value) == (
        f"the kubeconfig {tmp_path}/none cannot be used: no such file; --context 'prod' needs a kubeconfig: name it "
        "with --kubeconfig or KUBECONFIG"
    )


def test_a_kubeconfig_of_bytes_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "config").write_bytes(b"\x8c\xff\x00")

    with pytest.raises(ConfigError, match="found no YAML") as caught:
        from_kubeconfig(READER, str(tmp_path / "config"))

    assert "codec" not in str(caught.value)


def test_kubeconfig_of_the_environment_is_the_present_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubernetes package looks at KUBECONFIG when it is imported."""
    with api_server(lambda _: Answer(NODE)) as server:
        for path, namespace in ((tmp_path / "other", "default"), (tmp_path / "config", "llm")):
            document = kubeconfig(server.url, "s3cret")
            document["contexts"][0]["context"]["namespace"] = namespace
            path.write_text(yaml.safe_dump(document))
            monkeypatch.setenv("KUBECONFIG", str(path))
            assert default_namespace() == namespace
            from_kubeconfig(READER).close()
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
        with pytest.raises(ConfigError, match="missing"):
            from_kubeconfig(READER)


def test_without_a_kubeconfig_or_a_pod_there_is_advice(tmp_path: Path) -> None:
    code = (
        "from gputopo.kube.connect import connect; from gputopo.kube.rbac import READER\n"
        "try: connect(READER)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"HOME": str(tmp_path)}
    )

    assert done.stdout.startswith(
        "ConfigError no cluster to connect to: the kubeconfig ~/.kube/config cannot be used: "
    )
    assert done.stdout.rstrip().endswith("Set KUBECONFIG")


def test_outside_of_a_pod_there_is_no_service_account() -> None:
    with pytest.raises(ConfigError, match="not in a pod with a service account: Service host/port is not set"):
        in_cluster(READER)


@pytest.mark.parametrize(
    ("context", "namespace"),
    [
        pytest.param(None, "default", id="the current context says none"),
        pytest.param("team", "team-a", id="a context that says one"),
    ],
)
def test_the_namespace_of_a_context(context: str | None, namespace: str, tmp_path: Path) -> None:
    document = kubeconfig("http://h", "t")
    there = {"cluster": "here", "user": "me", "namespace": "team-a"}
    document["contexts"].append({"name": "team", "context": there})
    (tmp_path / "config").write_text(yaml.safe_dump(document))

    assert default_namespace(str(tmp_path / "config"), context) == namespace


@pytest.mark.parametrize(
    ("account", "namespace"),
    [
        pytest.param({"namespace": "gpu-team\n"}, "gpu-team", id="in a pod"),
        pytest.param({}, "default", id="nowhere"),
        pytest.param({"namespace": ""}, "default", id="an empty file"),
    ],
)
def test_the_namespace_without_a_kubeconfig(account: dict[str, str], namespace: str, tmp_path: Path) -> None:
    for name, content in account.items():
        (tmp_path / name).write_text(content)

    assert default_namespace(str(tmp_path / "none"), account=tmp_path) == namespace
