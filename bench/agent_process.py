"""The processes that ``agent_costs`` measures: ``bare``, and ``full KUBECONFIG SOCKET``. Prints numbers as JSON."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

PASSES = 100
SETTLED = 10  # passes before the measurement
LIBRARIES = (
    "click, msgspec, pynvml, prometheus_client, http.server, h2.connection, kubernetes.config, "
    "kubernetes.client.api_client"
)


def bare() -> dict[str, float]:
    """Import the libraries only."""
    exec(f"import {LIBRARIES}")  # the same list as for the start of an interpreter
    return {"memory": _memory_mib()}


def full(config: str, socket: str) -> dict[str, float]:
    """Run a complete agent, pass after pass without pauses."""
    os.environ["KUBECONFIG"] = config
    # In the function, because the bare process must not import them.
    from agent.daemon import settings  # noqa: PLC0415
    from agent.daemon.health_server import serve_health  # noqa: PLC0415
    from agent.daemon.loop import AgentLoop, Now, ProbeResult  # noqa: PLC0415
    from agent.daemon.main import clock, open_machine_access, open_publisher_from  # noqa: PLC0415
    from agent.daemon.metrics import AgentMetrics  # noqa: PLC0415
    from agent.recording.probe import ProbeTarget, probe_machine  # noqa: PLC0415
    from tests.agent.sources.fake_nvml import FakeDriver, FakeGpu, FakeLink, plug  # noqa: PLC0415
    from tests.agent.sources.fake_nvml_health import FakeFabric  # noqa: PLC0415

    gpus = (
        FakeGpu(
            uuid=f"GPU-{n}".encode(),
            bus_id=f"00000000:0{n}:00.0".encode(),
            fabric=FakeFabric(),
            links=(FakeLink(),) * 18,
        )
        for n in range(8)
    )
    driver = FakeDriver(*gpus)
    here = ProbeTarget(nvidia_smi=None, nvml=plug(driver))
    read = settings.read_settings({"node": "gpu-7", "socket": socket, "listen": "127.0.0.1:0"}, {})
    metrics = AgentMetrics()
    loop = AgentLoop(read, open_publisher_from(read), metrics)
    watch = open_machine_access(read).watch
    assert watch is not None
    assert read.listen is not None
    with serve_health(read.listen, metrics.registry, lambda: loop.status, lambda: clock().monotonic):
        for number in range(SETTLED + PASSES):
            if number == SETTLED:
                driver.calls.clear()
                cpu = time.process_time()
            now = Now(1000.0 + 0.01 * number, time.time())
            reading = watch.poll(now.monotonic)
            loop.run_iteration(now, [ProbeResult(probe_machine(here), 0.0), *([] if reading is None else [reading])])
        cpu = time.process_time() - cpu
        polls = time.process_time()
        for _ in range(PASSES):
            watch.poll(2000.0)
        polls = time.process_time() - polls
    assert loop.status.unready_reason is None, loop.status.unready_reason
    assert len(loop.status.allocations or ()) == 8
    return {"memory": _memory_mib(), "cpu": cpu - polls, "polls": polls, "calls": driver.calls.total() / PASSES}


def _memory_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    print(json.dumps(full(*rest) if kind == "full" else bare()))
