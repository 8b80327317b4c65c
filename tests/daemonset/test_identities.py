"""The account of each container of the second scheduler."""

from __future__ import annotations

from pathlib import Path

from tests.daemonset.compositions import composed
from tests.daemonset.renderings import comparable
from tests.daemonset.tools import Object, helm_rendered, name_of
from tests.daemonset.workloads import containers

MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
SCHEDULER = ("Deployment", "gputopo", "gputopo-scheduler")


def test_with_separate_identities_the_extender_has_no_right_of_a_scheduler(tmp_path: Path) -> None:
    kustomized = composed(tmp_path, "separate-identities")
    chart = helm_rendered("scheduler.enabled=true", "scheduler.separateIdentities=true")
    for documents in (kustomized, chart):
        by_name = {name_of(each): each for each in documents}
        pod = by_name[SCHEDULER]["spec"]["template"]["spec"]
        volumes = {each["name"]: each for each in pod["volumes"]}
        mounted = {
            name: [volumes[each["name"]] for each in container["volumeMounts"] if each["mountPath"] == MOUNT]
            for name, container in containers(pod).items()
        }
        token = by_name["Secret", "gputopo", "gputopo-scheduler-token"]

        assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("gputopo-extender", False)
        assert [each["projected"]["sources"][0] for each in mounted["extender"]] == [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}
        ]
        assert [each["secret"]["secretName"] for each in mounted["scheduler"]] == [token["metadata"]["name"]]
        assert token["metadata"]["annotations"] == {"kubernetes.io/service-account.name": "gputopo-scheduler"}
        assert roles_of("gputopo-extender", documents) == {"gputopo-extender"}
        assert "gputopo-extender" not in roles_of("gputopo-scheduler", documents)


def test_helm_and_kustomize_separate_the_identities_in_the_same_way(tmp_path: Path) -> None:
    ours = comparable(composed(tmp_path, "separate-identities"))
    theirs = comparable(helm_rendered("scheduler.enabled=true", "scheduler.separateIdentities=true"))
    for name in (("Secret", "gputopo", "gputopo-scheduler-token"), ("ServiceAccount", "gputopo", "gputopo-extender")):
        assert ours[name] == theirs[name]
    both = [each[SCHEDULER]["spec"]["template"]["spec"] for each in (ours, theirs)]
    for pod in both:
        pod["volumes"].sort(key=lambda each: each["name"])
        for container in containers(pod).values():
            container["volumeMounts"].sort(key=lambda each: each["name"])
    for field in ("serviceAccountName", "automountServiceAccountToken"):
        assert both[0][field] == both[1][field]
    assert [each["name"] for each in both[0]["volumes"]] == [each["name"] for each in both[1]["volumes"]]


def roles_of(account: str, documents: list[Object] | tuple[Object, ...]) -> set[str]:
    """The roles that are bound to an account."""
    bindings = (each for each in documents if each["kind"] in {"RoleBinding", "ClusterRoleBinding"})
    return {
        each["roleRef"]["name"]
        for each in bindings
        if each["metadata"]["name"] != "gputopo-page-reviewer" and account in {one["name"] for one in each["subjects"]}
    }
