"""``gputopo extender`` as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from gputopo.crd.nodegpus import content_hash
from gputopo.labels import encode_topology, keys
from scheduler_core.request.device_request import WHOLE
from tests.api_server import Answer, Asked
from tests.gputopo.kube.serving import Script, wait_for
from tests.machines import dgx1

Object = dict[str, Any]


FACTS = encode_topology(dgx1())


HASH = content_hash(FACTS.annotations[keys.TOPOLOGY.key])


GPUS = [gpu.uuid for gpu in dgx1().gpus]


def node(name: str) -> Object:
    metadata = {"name": name, "uid": f"uid-{name}", "labels": FACTS.labels, "annotations": FACTS.annotations}
    return {"metadata": {**metadata, "resourceVersion": "5"}, "status": {"allocatable": {WHOLE: "8"}}}


def pod(name: str, gpus: int, node: str | None = None, **wishes: str) -> Object:
    annotations = {f"gputopo.io/{key}": value for key, value in wishes.items()}
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "resourceVersion": "5",
            "annotations": annotations,
        },
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"limits": {WHOLE: str(gpus)}}}]},
        "status": {},
    }


def gpus(name: str, holder: str | None = None, *held: int) -> Object:
    allocations = [{"gpu": GPUS[at], "pod": {"namespace": "team", "name": holder, "container": "c"}} for at in held]
    result = {"observedAt": datetime.now(UTC).isoformat(), "contentHash": HASH, "agentVersion": str(held)}
    metadata = {"name": name, "uid": f"uid-g-{name}", "resourceVersion": "5"}
    return {"metadata": metadata, **result, "allocations": allocations}


class Extender:
    """The process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[Object] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(json.loads(line) if line.startswith("{") else {"event": line})

    def said(self, event: str) -> Object:
        """The line with that event; waited for."""
        wait_for(
            lambda: self.process.poll() is not None or any(each["event"] == event for each in self.lines), event, 20
        )
        (found, *_) = [each for each in self.lines if each["event"] == event]
        return found

    def ask(self, path: str, body: Object | None = None) -> tuple[int, str]:
        """A call of a verb, or a look at a page."""
        port = self.said("listening")["pages" if body is None else "verbs"]
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def end(self) -> int:
        """End the process with SIGTERM. Returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        """Wait for the end of the process. Returns its exit code."""
        code = self.process.wait(20)
        self._reader.join()
        return code


@contextmanager
def extender(kubeconfig: str, *options: str, environ: Mapping[str, str] | None = None) -> Iterator[Extender]:
    command = [sys.executable, "-m", "gputopo", "extender", "--verbs", "127.0.0.1:0", "--listen", "127.0.0.1:0"]
    environ = {**os.environ, "KUBECONFIG": kubeconfig, **(environ or {})}
    with subprocess.Popen([*command, *options], env=environ, stderr=subprocess.PIPE, text=True) as process:
        running = Extender(process)
        try:
            yield running
        finally:
            if process.poll() is None:
                process.kill()


def serving_of(scripts: dict[str, Script], events: list[Object] | None = None) -> Callable[[Asked], Answer]:
    """The kinds by their scripts; those of planners and agents are not served where there is none. Events are kept."""

    def answer(asked: Asked) -> Answer:
        kind = asked.path.rpartition("/")[2]
        if kind == "events" and events is not None:
            events.append(asked.body)
            return Answer({"metadata": {"name": "e"}}, 201)
        if kind.startswith(("placement", "leases")) and kind not in scripts:
            return Answer("404 page not found", 404)
        return scripts[kind](asked)

    return answer
