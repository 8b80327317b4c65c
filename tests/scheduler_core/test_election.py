"""Two extenders with one Lease, as processes of their own: one answers, the other says who does."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from pathlib import Path

from tests.api_server import Answer, Asked, api_server
from tests.gputopo.kube.serving import Script, page, wait_for
from tests.scheduler_core.test_lease import HERE, Leases
from tests.scheduler_core.test_main import Extender, extender, node, pod, serving_of

CALL = {"Pod": pod("waits", 8), "Nodes": None, "NodeNames": ["n1"]}


def with_leases(leases: Leases) -> Callable[[Asked], Answer]:
    scripts = {
        "nodes": Script([page(5, node("n1"))]),
        "pods": Script([page(5)]),
        "nodegpus": Script([page(5)]),
    }
    others = serving_of(scripts)
    return lambda asked: leases.answer(asked) if "/leases" in asked.path else others(asked)


def test_one_answers_and_the_next_when_it_ends(tmp_path: Path) -> None:
    leases = Leases()
    leases.put({"holderIdentity": ""})
    lease = "/".join(HERE)
    with api_server(with_leases(leases)) as server:
        config = server.kubeconfig(tmp_path / "config")
        with extender(config, "--lease", lease) as a, extender(config, "--lease", lease) as b:
            first, second = in_order(a, b)
            assert first.ask("/filter", CALL)[0] == 200
            holder = leases.holder
            sentence = f"another extender answers: {holder} holds the Lease\n"
            wait_for(lambda: second.ask("/readyz") == (503, sentence), "it to know the holder", 20)
            assert second.ask("/filter", CALL) == (503, sentence)
            assert closes(second)

            assert first.end() == 0
            wait_for(lambda: second.ask("/readyz")[0] == 200, "the other one", 20)
            assert second.ask("/filter", CALL)[0] == 200
            assert leases.holder != holder


def in_order(a: Extender, b: Extender) -> tuple[Extender, Extender]:
    """The one that is ready, and the other one."""
    wait_for(lambda: a.ask("/readyz")[0] == 200 or b.ask("/readyz")[0] == 200, "one to be ready", 20)
    return (a, b) if a.ask("/readyz")[0] == 200 else (b, a)


def closes(running: Extender) -> bool:
    """Whether an answer ends the connection: a kept one would lead here for ever."""
    connection = http.client.HTTPConnection("127.0.0.1", running.said("listening")["verbs"], timeout=10)
    connection.request("POST", "/filter", json.dumps(CALL))
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.headers["Connection"] == "close"
