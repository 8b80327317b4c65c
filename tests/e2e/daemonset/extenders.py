"""``gputopo extender`` as a process of its own, as the manifests run it: their account, their variables."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import urllib3

from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.daemonset.installed import NAMESPACE
from tests.e2e.process import Server
from tests.ports import free_port

PATIENCE_S = 60.0
_QUIET = ("GPUTOPO_", "KUBE")


class Extender(Server):
    """A running extender."""

    def __init__(self, kubeconfig: Path, variables: Mapping[str, str], log: Path) -> None:
        self.port, self._pages = free_port(), free_port()
        given = {**variables, "GPUTOPO_LISTEN": f"127.0.0.1:{self._pages}"}
        given |= {"GPUTOPO_VERBS": f"127.0.0.1:{self.port}", "KUBECONFIG": str(kubeconfig)}
        unset = [flag for name in os.environ if name.startswith(_QUIET) for flag in ("-u", name)]
        command = ["/usr/bin/env", *unset, *(f"{name}={value}" for name, value in given.items())]
        super().__init__("extender", [*command, sys.executable, "-m", "gputopo", "extender"], log)

    def page(self, path: str) -> tuple[int, str]:
        """Status and text of one of its pages."""
        with urllib3.PoolManager(retries=False, timeout=5.0) as pool:
            try:
                answer = pool.request("GET", f"http://127.0.0.1:{self._pages}{path}")
            except urllib3.exceptions.HTTPError as nobody:
                raise OSError(path) from nobody
            return answer.status, answer.data.decode()

    @property
    def ready(self) -> bool:
        """Return whether the extender reports ready."""
        try:
            return self.page("/readyz")[0] == 200
        except OSError:
            return False

    def end(self) -> None:
        """End the extender with SIGTERM, as the kubelet does, and wait for its end."""
        os.kill(self.pid, signal.SIGTERM)
        wait_for(lambda: not self.running, "the extender to end", PATIENCE_S)


@contextmanager
def extender(cluster: Cluster, account: str, folder: Path, **variables: str) -> Iterator[Extender]:
    """Run an extender with a service account of the manifests, within the block; its watches are synchronized."""
    kubeconfig = cluster.kubeconfig(folder / f"{account}.kubeconfig", cluster.token(account, namespace=NAMESPACE))
    started = Extender(kubeconfig, variables, folder / f"extender-{len(list(folder.glob('extender-*')))}.log")
    try:
        started.wait_until(lambda: "has not yet listed" not in started.page("/readyz")[1], PATIENCE_S)
        yield started
    finally:
        started.stop()
