"""``gputopo extender`` as a process of its own, beside an API server that a test scripts."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from gputopo.cli.main import main
from gputopo.crd.reservations import ReservationSpec, spec_hash
from scheduler_core.evaluation.transient import RESERVED_MESSAGE
from scheduler_core.request.device_request import WHOLE
from tests.api_server import Answer, Asked, Stream, api_server
from tests.gputopo.kube.serving import Script, page, wait_for
from tests.scheduler_core.extender.extender_process import Object, extender, gpus, node, pod, serving_of


def test_from_the_first_list_to_the_end(tmp_path: Path) -> None:
    scripts = {
        "nodes": Script([page(5, node("n1"), node("n2"))]),
        "pods": Script([page(5, pod("held", 4, "n1"), pod("waits", 8))]),
        "nodegpus": Script([page(5, gpus("n1", "held", 0, 1, 2, 3), gpus("n2"))]),
    }
    kept = tmp_path / "decisions.jsonl"
    with (
        api_server(serving_of(scripts)) as server,
        extender(
            server.kubeconfig(tmp_path / "config"), "--decisions-file", str(kept), "--prefix", "/gputopo"
        ) as running,
    ):
        assert {key: running.said("synced")[key] for key in ("nodes", "gpu_pods")} == {"nodes": 2, "gpu_pods": 2}
        assert running.ask("/readyz") == (200, "ok\n")

        call = {"Pod": pod("waits", 8), "Nodes": None, "NodeNames": ["n1", "n2", "n3"]}
        status, body = running.ask("/gputopo/filter", call)
        assert (status, json.loads(body)["NodeNames"]) == (200, ["n2"])
        status, body = running.ask("/gputopo/prioritize", call)
        assert [each["Host"] for each in json.loads(body) if each["Score"]] == ["n2"]

        _, metrics = running.ask("/metrics")
        assert 'ai_scheduler_attempts_total{result="passed",workload_type="unspecified"} 1.0' in metrics
        assert 'gputopo_free_islands{product="Tesla-V100-SXM2-32GB",size="4"} 1.0' in metrics  # n1's; n2's are taken
        assert 'gputopo_watch_synced{kind="nodegpus"} 1.0' in metrics
        status, result = running.ask("/explain/team/waits")
        assert (status, json.loads(result)["pod"]["name"]) == (200, "waits")
        assert running.ask("/explain/team/gone")[0] == 404
        status, lines = running.ask("/decisions")
        assert [json.loads(line)["answer"] for line in lines.splitlines()] == [["n2"]]
        served = CliRunner().invoke(
            main, ["replay", f"http://127.0.0.1:{running.said('listening')['pages']}/decisions"]
        )
        assert running.end() == 0

    assert kept.read_text() == lines
    replayed = CliRunner().invoke(main, ["replay", str(kept)])
    for each in (served, replayed):
        assert (each.exit_code, each.output) == (0, "1 decisions replayed, 0 differ\n")


def test_a_pod_that_was_deleted_before_filter_takes_no_gpus(tmp_path: Path) -> None:
    """kube-scheduler learns of the deletion later than the extender, and calls Filter all the same."""
    changes = Stream()
    scripts = {
        "nodes": Script([page(5, node("n1"))]),
        "pods": Script([page(5)], [changes]),
        "nodegpus": Script([page(5, gpus("n1"))]),
    }
    with api_server(serving_of(scripts)) as server, extender(server.kubeconfig(tmp_path / "config")) as running:
        running.said("synced")
        for event, shown in (("ADDED", pod("flash", 4)), ("DELETED", pod("flash", 4)), ("ADDED", pod("waits", 4))):
            changes.send({"type": event, "object": shown})
        wait_for(lambda: running.ask("/explain/team/waits")[0] == 200, "the pod that was created last")

        answers = [
            json.loads(running.ask("/filter", {"Pod": pod(name, size), "NodeNames": ["n1"]})[1])["NodeNames"]
            for name, size in (("flash", 4), ("next", 8))
        ]

        assert answers == [["n1"], ["n1"]]
        assert "gputopo_assumed_pods 1.0" in running.ask("/metrics")[1]
        assert running.end() == 0


def test_replay_reads_all_pages_of_an_extender() -> None:
    def answer(asked: Asked) -> Answer:
        assert asked.path == "/decisions"
        link = {"Link": '<?continue=7>; rel="next"'}
        return Answer("no decision\n") if asked.query.get("continue") else Answer("", headers=link)

    with api_server(answer) as server:
        found = CliRunner().invoke(main, ["replay", f"{server.url}/decisions"])
        assert [each.query for each in server.asked] == [{}, {"continue": "7"}]
        gone = CliRunner().invoke(main, ["replay", "http://127.0.0.1:9/decisions"])

    assert found.exit_code == 2
    assert f"gputopo: {server.url}/decisions: line 1: " in found.output
    assert gone.exit_code == 2
    assert gone.output.startswith("gputopo: no answer from http://127.0.0.1:9/decisions: ")


def test_until_everything_was_listed_calls_get_503_and_the_end_comes_all_the_same(tmp_path: Path) -> None:
    scripts = {
        "nodes": Script([page(5, node("n1"))]),
        "pods": Script([Answer("busy", 503)]),
        "nodegpus": Script([page(5)]),
    }
    with api_server(serving_of(scripts)) as server, extender(server.kubeconfig(tmp_path / "config")) as running:
        wait_for(lambda: scripts["pods"].listed, "a list of pods")
        assert running.ask("/healthz") == (200, "ok\n")
        wait_for(lambda: "all pods of" in running.ask("/readyz")[1], "all but pods")
        result = running.said("watch")
        assert (result["level"], result["kind"]) == ("warning", "pods")
        assert result["trouble"].startswith("GET /api/v1/pods: 503")
        sentence = f"gputopo has not yet listed all pods of the cluster; {result['trouble']}\n"
        assert running.ask("/filter", {"Pod": pod("a", 1), "NodeNames": []}) == (503, sentence)
        assert running.end() == 0


LEDGER = "/apis/gputopo.io/v1alpha1/placementledgers/gpus/status"


def listing(version: int, *entries: Object, **extenders: Object) -> Object:
    metadata = {"name": "gpus", "uid": "uid-ledger", "resourceVersion": str(version), "generation": version}
    return {"metadata": metadata, "spec": {"entries": list(entries)}, "status": {"extenders": extenders}}


def said_in(applied: Object) -> Object:
    """Return the extenders in an applied status; {} if the apply removes the extender's own entry."""
    found: Object = applied.get("status", {}).get("extenders", {})
    return found


def reservation(name: str, version: int, *seats: Object) -> tuple[Object, Object]:
    """Return a reservation, and its entry in a ledger."""
    spec = {"gang": "llm", "seats": list(seats)}
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": str(version)}
    hashed = spec_hash(msgspec.convert(spec, ReservationSpec))
    said = {"uid": f"uid-{name}", "namespace": "team", "name": name, "hash": hashed, "phase": "Committed"}
    return {"metadata": metadata, "spec": spec}, said


def test_it_registers_before_it_answers_keeps_what_is_reserved_and_leaves_at_the_end(tmp_path: Path) -> None:
    seat = {"uid": "uid-member", "name": "member", "node": "n1", "gpus": [[WHOLE, 8]]}
    plan, entry = reservation("llm-1", 4, seat)
    changes, applied = Stream(), list[Asked]()
    scripts: dict[str, Script] = {
        "nodes": Script([page(5, node("n1"))]),
        "pods": Script([page(5, pod("member", 8), pod("other", 1))]),
        "nodegpus": Script([page(5, gpus("n1"))]),
        "placementreservations": Script([page(5, plan)]),
        "placementledgers": Script([page(5, listing(5, entry))], [changes]),
    }
    scripted = serving_of(scripts)

    def answer(asked: Asked) -> Answer:
        if asked.method != "PATCH":
            return scripted(asked)
        applied.append(asked)
        changes.send({"type": "MODIFIED", "object": listing(6, entry, **said_in(asked.body))})
        return Answer({"metadata": {"name": "gpus"}})

    environ = {"POD_NAMESPACE": "gputopo", "POD_NAME": "extender-0"}
    with (
        api_server(answer) as server,
        extender(server.kubeconfig(tmp_path / "config"), environ=environ) as running,
    ):
        running.said("synced")
        wait_for(lambda: running.ask("/readyz")[0] == 200, "the registration")
        (registered,) = applied
        ((me, said),) = said_in(registered.body).items()
        assert said == {"pod": "gputopo/extender-0", "generation": 0, "blocked": [], "term": 0}
        assert (registered.path, registered.query["force"]) == (LEDGER, "false")
        assert registered.query["fieldManager"] == f"gputopo-extender-{me}"

        _, body = running.ask("/filter", {"Pod": pod("other", 1), "NodeNames": ["n1"]})
        assert json.loads(body)["Error"] == RESERVED_MESSAGE  # it is not for long
        _, result = running.ask("/explain/team/other")
        (kept,) = json.loads(result)["kept"]
        assert (kept["gang"], kept["phase"], kept["gpus"], kept["nodes"]) == ("team/llm", "Committed", 8, ["n1"])
        _, metrics = running.ask("/metrics")
        assert 'gputopo_reserved_gpus{phase="committed"} 8.0' in metrics
        assert 'gputopo_ledger_registered{ledger="gpus"} 1.0' in metrics
        assert running.end() == 0

    assert [said_in(each.body) for each in applied[1:]] == [{}]


def test_one_that_let_pods_in_leaves_its_registration_to_planners(tmp_path: Path) -> None:
    """Accepted pods may be bound after the extender has ended: the next extender must count them."""
    changes, applied = Stream(), list[Object]()
    scripts: dict[str, Script] = {
        "nodes": Script([page(5, node("n1"))]),
        "pods": Script([page(5, pod("member", 8))]),
        "nodegpus": Script([page(5, gpus("n1"))]),
        "placementledgers": Script([page(5, listing(5))], [changes]),
    }
    scripted = serving_of(scripts)

    def answer(asked: Asked) -> Answer:
        if asked.method != "PATCH":
            return scripted(asked)
        applied.append(asked.body)
        changes.send({"type": "MODIFIED", "object": listing(6, **said_in(asked.body))})
        return Answer({"metadata": {"name": "gpus"}})

    with api_server(answer) as server, extender(server.kubeconfig(tmp_path / "config")) as running:
        running.said("synced")
        wait_for(lambda: running.ask("/readyz")[0] == 200, "the registration")
        _, body = running.ask("/filter", {"Pod": pod("member", 8), "NodeNames": ["n1"]})
        assert json.loads(body)["NodeNames"] == ["n1"]
        assert running.end() == 0

    assert len(applied) == 1
    (left,) = [each for each in running.lines if each["event"] == "ledger"]
    assert (left["left_registered"], left["in_flight"]) == (True, 1)


def test_one_that_may_not_see_reservations_says_so_and_can_do_without(tmp_path: Path) -> None:
    scripts = {
        "nodes": Script([page(5, node("n1"))]),
        "pods": Script([page(5)]),
        "nodegpus": Script([page(5, gpus("n1"))]),
        "placementreservations": Script([Answer({"message": "no"}, 403)]),
        "placementledgers": Script([Answer({"message": "no"}, 403)]),
    }
    with api_server(serving_of(scripts)) as server:
        config = server.kubeconfig(tmp_path / "config")
        with extender(config) as running:
            wait_for(
                lambda: "all placementreservations, placementledgers of" in running.ask("/readyz")[1],
                "the lists that the API server allows",
            )
            wait_for(lambda: running.ask("/readyz")[1].count("403: no") == 2, "what the API server says")
            status, result = running.ask("/readyz")
            assert status == 503
            assert result.endswith("; without a planner, set --reservations off\n")
            assert 'gputopo_watch_synced{kind="placementledgers"} 0.0' in running.ask("/metrics")[1]
        with extender(config, "--reservations", "off") as running:
            running.said("synced")
            assert running.ask("/readyz") == (200, "ok\n")
            assert "gputopo_reserved_gpus{" not in running.ask("/metrics")[1]


def test_one_that_may_not_register_says_why_it_does_not_answer(tmp_path: Path) -> None:
    scripts = {
        "nodes": Script([page(5, node("n1"))]),
        "pods": Script([page(5)]),
        "nodegpus": Script([page(5, gpus("n1"))]),
        "placementledgers": Script([page(5, listing(5))]),
    }
    scripted = serving_of(scripts)

    def answer(asked: Asked) -> Answer:
        return Answer({"message": "no"}, 403) if asked.method == "PATCH" else scripted(asked)

    with api_server(answer) as server, extender(server.kubeconfig(tmp_path / "config")) as running:
        # Start-up has its own deadline: on a busy machine it takes longer than the wait for one answer.
        running.said("synced")
        assert running.said("ledger")["level"] == "warning"
        result: list[str] = []

        def is_refused() -> bool:
            result[:] = [running.ask("/readyz")[1]]
            return "403: no" in result[0]

        wait_for(is_refused, "what the API server says")
        assert result[0].startswith("this extender is not registered in the ledger gpus yet, so planners")
        assert running.end() == 0


_POLICY = "apiVersion: gputopo.io/v1alpha1\nkind: PlacementPolicy\ndefaults: {{shortlist: {}, weights: {{numa: 0}}}}\n"


def test_policy_file_is_followed_and_a_bad_change_is_not(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(_POLICY.format(1))
    scripts = {
        "nodes": Script([page(5, node("n1"), node("n2"), node("n3"))]),
        "pods": Script([page(5)]),
        "nodegpus": Script([page(5, gpus("n1"), gpus("n2"), gpus("n3"))]),
    }
    with (
        api_server(serving_of(scripts)) as server,
        extender(server.kubeconfig(tmp_path / "config"), "--policy", str(file)) as running,
    ):
        running.said("synced")

        def answered() -> int:
            _, body = running.ask("/filter", {"Pod": pod("a", 1), "NodeNames": ["n1", "n2", "n3"]})
            return len(json.loads(body)["NodeNames"])

        assert answered() == 1
        file.write_text(_POLICY.format(2))
        wait_for(lambda: answered() == 2, "the new policy")
        file.write_text(_POLICY.format(0))
        wait_for(lambda: "gputopo_policy_invalid 1.0" in running.ask("/metrics")[1], "a bad policy")
        assert answered() == 2
        file.write_text(_POLICY.format(2))
        wait_for(lambda: "gputopo_policy_invalid 0.0" in running.ask("/metrics")[1], "the old policy")
        assert running.end() == 0

    (result,) = [each for each in running.lines if each["event"] == "policy" and "trouble" in each]
    assert result["trouble"] == f"{file}:3:12: defaults.shortlist: 0 should be greater than or equal to 1"


@pytest.mark.parametrize(
    ("text", "said"),
    [(_POLICY.format(0), "defaults.shortlist: 0 should be"), (None, "No such file"), ("\udcff", "codec")],
    ids=["bad", "none", "binary"],
)
def test_bad_policy_file_ends_the_start(text: str | None, said: str, tmp_path: Path) -> None:
    file, config = tmp_path / "policy.yaml", tmp_path / "config"
    if text is not None:
        file.write_bytes(text.encode(errors="surrogateescape"))
    with api_server(serving_of({})) as server, extender(server.kubeconfig(config), "--policy", str(file)) as running:
        assert running.ended() == 2
        assert any(said in each["event"] for each in running.lines)


def test_a_pod_whose_required_shape_the_kubelet_broke_gets_one_event(tmp_path: Path) -> None:
    events: list[Object] = []
    split = gpus("n1", "train", 0, 7)  # on two NUMA nodes
    changes = Stream()
    scripts = {
        "nodes": Script([page(5, node("n1"))]),
        "pods": Script([page(5, pod("train", 2, "n1", numa="required"))]),
        "nodegpus": Script([page(5, gpus("n1"))], [changes]),
    }
    with api_server(serving_of(scripts, events)) as server, extender(server.kubeconfig(tmp_path / "config")) as running:
        running.said("synced")
        for version in (6, 7):
            metadata = {**split["metadata"], "resourceVersion": str(version)}
            changes.send({"type": "MODIFIED", "object": {**split, "metadata": metadata, "agentVersion": str(version)}})
        wait_for(lambda: events, "an Event")
        wait_for(lambda: 'gputopo_events_written_total{outcome="written"} 1.0' in running.ask("/metrics")[1], "a count")
        _, metrics = running.ask("/metrics")
        assert running.end() == 0

    (event,) = events
    assert (event["reason"], event["type"], event["involvedObject"]["uid"]) == (
        "GpuShapeBroken",
        "Warning",
        "uid-train",
    )
    assert "the kubelet of n1 allocated to this pod are not on one NUMA node" in event["message"]
    assert 'gputopo_required_shapes_violated_total{reason="numa"} 1.0' in metrics


@pytest.mark.parametrize(
    ("options", "says"),
    [
        pytest.param(["--verbs", ":9440"], "--verbs on every address: every client", id="verbs for everybody"),
        pytest.param(["--shortlist", "0"], "--shortlist: '0': expected a whole number from 1", id="a wrong value"),
    ],
)
def test_invalid_settings_are_bad_usage(options: list[str], says: str) -> None:
    found = CliRunner().invoke(main, ["extender", *options])

    assert (found.exit_code, says in found.output) == (2, True)


def test_without_a_cluster_there_is_an_error() -> None:
    options = ["--verbs", "127.0.0.1:0", "--listen", "off"]
    found = CliRunner(env={"KUBECONFIG": "/nonexistent"}).invoke(main, ["extender", *options])

    assert found.exit_code == 2
    assert "no cluster to connect to" in found.output


def test_an_address_in_use_and_certificates_that_are_none_are_bad_usage(tmp_path: Path) -> None:
    with api_server(serving_of({})) as server:
        kubeconfig = server.kubeconfig(tmp_path / "config")
        port = server.url.rpartition(":")[2]
        for options, says in (
            (["--verbs", f"127.0.0.1:{port}"], "gputopo: cannot listen on 127.0.0.1:"),
            (["--tls-cert", kubeconfig, "--tls-key", kubeconfig], f"gputopo: {kubeconfig}"),
        ):
            with extender(kubeconfig, *options) as running:
                assert running.ended() == 2
                assert any(each["event"].startswith(says) for each in running.lines)
