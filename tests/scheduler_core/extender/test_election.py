"""``gputopo extender --lease`` as a process: who does not hold the Lease answers nobody, and says who does."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from pathlib import Path

from tests.api_server import Answer, Asked, api_server
from tests.gputopo.kube.serving import Script, page, wait_for
from tests.scheduler_core.extender.extender_process import Extender, extender, node, pod, serving_of
from tests.scheduler_core.runtime.leases import HERE, Leases

CALL = {"Pod": pod("waits", 8), "Nodes": None, "NodeNames": ["n1"]}


def with_leases(leases: Leases) -> Callable[[Asked], Answer]:
    scripts = {
        "nodes": Script([page(5, node("n1"))]),
        "pods": Script([page(5)]),
        "nodegpus": Script([page(5)]),
    }
    others = serving_of(scripts)
    return lambda asked: leases.answer(asked) if "/leases" in asked.path else others(asked)


def test_it_answers_while_it_holds_the_lease_and_releases_it_at_its_end(tmp_path: Path) -> None:
    leases = Leases()
    leases.put({"holderIdentity": "other", "leaseDurationSeconds": 3600})
    with (
        api_server(with_leases(leases)) as server,
        extender(server.kubeconfig(tmp_path / "config"), "--lease", "/".join(HERE)) as running,
    ):
        sentence = "another extender leads: other holds the Lease\n"
        wait_for(lambda: running.ask("/readyz") == (503, sentence), "it to see who holds the Lease", 20)
        assert running.ask("/filter", CALL) == (503, sentence)
        assert closes(running)

        leases.put({"holderIdentity": "other", "leaseDurationSeconds": 1})
        wait_for(lambda: running.ask("/readyz")[0] == 200, "it to take the Lease", 20)
        assert running.ask("/filter", CALL)[0] == 200
        assert not closes(running)
        assert leases.holder != "other"

        assert running.end() == 0
        assert leases.holder == ""


def closes(running: Extender) -> bool:
    """Return whether an answer closes the connection. An open connection would go to this extender for ever."""
    connection = http.client.HTTPConnection("127.0.0.1", running.said("listening")["verbs"], timeout=10)
    connection.request("POST", "/filter", json.dumps(CALL))
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.headers["Connection"] == "close"
