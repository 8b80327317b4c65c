"""Every NVML call fails with every error, and the labels that the agent would publish are judged.

    python -m tests.campaign.nvml_calls          all cases; prints the row of the table in docs/testing.md
    python -m tests.campaign.nvml_calls 100      every hundredth case
    python -m tests.campaign.nvml_calls 3 1      every third case from the second on, for three processes at once

A case is a machine, a function of the driver, an error, one GPU or all, from the first pass or after a good one, for a
single call or until it is repaired. After the fault the machine is healthy again, for longer than the recovery
hold-down: then the labels must be those of the healthy machine, without a restart.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations, product
from typing import NamedTuple
from uuid import UUID

from agent.daemon.discovery_pass import DiscoveryState, run_discovery_pass
from agent.discover.failed_calls import REQUIRED_CALLS
from agent.snapshot import Host, Nvml, Snapshot
from agent.sources.nvml import read_nvml
from gputopo.labels import encode_topology, keys
from tests.agent.sources.fake_nvml import FakeDriver, FakeGpu, FakeLink, FakeMig, Fault, plug
from tests.agent.sources.fake_nvml_health import FIELD_VALUE, FakeFabric, FakeHealth

HOLD_S, PASS_S = 300.0, 60.0
CODES = (*range(1, 31), 999, 4321)  # nvmlReturn_t of nvml.h 13, and a code that the bindings do not know
LOST = {15, 16}  # GPU_IS_LOST, RESET_REQUIRED
ABSENT = {2, 3, 6, 13, 25, 26}  # the numbers of agent.snapshot.ABSENT_ERRORS
COUNT = "nvmlDeviceGetCount_v2"
PAIRS = {"nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetP2PStatus"}  # do not say which of two GPUs is lost

RIGHT, REFUSED, REPORTED, UNREPORTED = "right", "refused", "wrong, reported", "wrong, not reported"


class Case(NamedTuple):
    """One fault of one machine."""

    machine: str
    function: str
    code: int
    one_gpu: bool
    warm: bool  # after a good pass
    once: bool  # a single call


class Verdict(NamedTuple):
    """The worst outcome of a case, and why."""

    outcome: str
    why: str = ""


def _uuid(index: int) -> bytes:
    return f"GPU-aabbccdd-0000-0000-0000-{index:012d}".encode()


def _bus(index: int) -> bytes:
    return f"00000000:{0x10 * (index + 1):02X}:00.0".encode()


def _gpus(count: int, **facts: object) -> tuple[FakeGpu, ...]:
    return tuple(
        FakeGpu(uuid=_uuid(index), bus_id=_bus(index), minor=index, **facts)  # type: ignore[arg-type]
        for index in range(count)
    )


def _with_links(gpus: tuple[FakeGpu, ...], lanes: int, speed: int = 25000) -> tuple[FakeGpu, ...]:
    """Link each pair directly."""
    return tuple(
        replace(
            gpu,
            links=tuple(
                FakeLink(version=5, remote_type=0, remote_bus_id=_bus(peer), speed=speed)
                for peer in range(len(gpus))
                if peer != index
                for _ in range(lanes)
            ),
        )
        for index, gpu in enumerate(gpus)
    )


A100 = {"architecture": 7, "capability": (8, 0), "memory": 81920 << 20}
RICH = FakeHealth(ecc=(1, 0, 0), remapped=(0, 0, 0, 0), platform=(b"1820325190001", 24, 5, 0, 2), counters={161: 0})


def driver_of(machine: str) -> FakeDriver:
    """Return the driver of a healthy machine."""
    if machine == "switch":
        fabric = FakeFabric(cluster=UUID("7b968a6d-c8aa-45e1-9e07-e1e51be99c31"), clique=2, health_summary=1)
        gpus = _gpus(3, links=(FakeLink(),) * 4, fabric=fabric, health=RICH)
    elif machine == "mesh":
        gpus = _with_links(_gpus(3, name=b"NVIDIA A100-SXM4-80GB", **A100), lanes=2)
    elif machine == "bridge":
        gpus = _with_links(
            _gpus(2, name=b"NVIDIA RTX A6000", architecture=7, capability=(8, 6), mig_mode=None), 4, 14062
        )
    elif machine == "mig":
        mig = FakeMig(b"MIG-1", b"NVIDIA A100-SXM4-80GB MIG 1g.10gb", 9728 << 20, gpu_instance=7)
        gpus = _gpus(2, name=b"NVIDIA A100-SXM4-80GB", mig_mode=1, mig_slots=(mig, None), **A100)
    else:
        grace = FakeHealth(c2c=(1, 1), platform=(b"18", 1, 2, 3, 4), ecc=(1, 0, 0))
        gpus = _with_links(_gpus(2, name=b"NVIDIA GH200 480GB", numa_node_id=4, health=grace), lanes=3)
    driver = FakeDriver(*gpus)
    driver.ancestors = dict.fromkeys(combinations(range(len(gpus)), 2), 50)
    driver.p2p = dict.fromkeys(combinations(range(len(gpus)), 2), 5 if machine == "mig" else 0)
    return driver


MACHINES = ("switch", "mesh", "bridge", "mig", "grace")


@cache
def functions_of(machine: str) -> tuple[str, ...]:
    """Return every function that a pass calls on the machine, and the error of a single field value."""
    driver = driver_of(machine)
    read_nvml(plug(driver), 4)
    values = (FIELD_VALUE,) if "nvmlDeviceGetFieldValues" in driver.calls else ()
    return (*sorted(driver.calls), *values)


@cache
def labels_of_healthy(machine: str) -> dict[str, str]:
    """Return the labels of the healthy machine."""
    labels = _labels(_run_pass(DiscoveryState(), _healthy_reading(machine), 0.0))
    assert labels is not None
    return labels


def cases(step: int = 1, first: int = 0) -> Iterator[Case]:
    """Yield every ``step``-th case, from number ``first`` on.

    Left out is "not supported" from all GPUs, from the first call to the last: then the machine does not have it.
    """
    every = (
        Case(machine, function, code, one, warm, once)
        for machine in MACHINES
        for function, code, one, warm, once in product(functions_of(machine), CODES, *[(True, False)] * 3)
        if not one or (function.startswith("nvmlDeviceGet") and function != COUNT)
        if one or warm or once or code not in ABSENT or function in REQUIRED_CALLS or function == COUNT
    )
    return (case for place, case in enumerate(every) if place % step == first)


def judge(case: Case) -> Verdict:
    """Run a case and return the worst outcome of its passes."""
    healthy, state, now, worst = _healthy_reading(case.machine), DiscoveryState(), 0.0, Verdict(RIGHT)
    if case.warm:
        state = _run_pass(state, healthy, now)
    driver = driver_of(case.machine)
    fault = Fault(case.function, case.code, gpu=1 if case.one_gpu else None, times=1 if case.once else float("inf"))
    driver.faults.append(fault)
    faulty = read_nvml(plug(driver), 4)
    for _ in range(1 if case.once else 3):
        now += PASS_S
        state = _run_pass(state, faulty, now)
        worst = max(worst, _judge_pass(case, state), key=lambda each: _ORDER.index(each.outcome))
    for wait in (PASS_S, HOLD_S, PASS_S):
        now += wait
        state = _run_pass(state, healthy, now)
    after = _labels(state)
    if after != labels_of_healthy(case.machine):
        return Verdict(UNREPORTED, f"not healthy again after the repair: {_difference(case, after)}")
    return worst


_ORDER = (RIGHT, REFUSED, REPORTED, UNREPORTED)


@cache
def _healthy_reading(machine: str) -> Nvml:
    return read_nvml(plug(driver_of(machine)), 4)


def _run_pass(state: DiscoveryState, nvml: Nvml, now: float) -> DiscoveryState:
    return run_discovery_pass(state, Snapshot(nvml=nvml, host=Host(boot_id="b")), now, HOLD_S)


def _labels(state: DiscoveryState) -> dict[str, str] | None:
    if state.topology is None:
        return None
    facts = encode_topology(state.topology)
    return facts.labels | facts.mirrors


def _difference(case: Case, labels: dict[str, str] | None) -> dict[str, str | None]:
    """Return the labels that differ; None is a missing one."""
    truth = labels_of_healthy(case.machine)
    found = labels or {}
    return {key: found.get(key) for key in {**truth, **found} if found.get(key) != truth.get(key)}


def _judge_pass(case: Case, state: DiscoveryState) -> Verdict:
    labels, topology = _labels(state), state.topology
    said = bool(state.failures or state.failed_calls) or (
        topology is not None and bool(topology.degraded or topology.problems or topology.partial)
    )
    different = _difference(case, labels)
    says_lost = case.code in LOST and case.function.startswith("nvmlDeviceGet") and case.function not in PAIRS
    if says_lost and case.function != COUNT and keys.GPUS.key not in different and not state.failures:
        return Verdict(UNREPORTED, "a lost GPU counts as healthy")
    if says_lost and keys.GPUS.key in different and different.get(keys.DEGRADED.key) == "true":
        return Verdict(RIGHT)
    different.pop(keys.DEGRADED.key, None)
    if not different:
        return Verdict(RIGHT)
    wrong = {key: value for key, value in different.items() if value is not None}
    if not said:
        return Verdict(UNREPORTED, str(different))
    return Verdict(REPORTED if wrong else REFUSED, str(different))


def main() -> None:
    """Run the cases and print the row, and every wrong case."""
    counts: Counter[str] = Counter()
    for case in cases(*(int(each) for each in sys.argv[1:] if each.isdigit())):
        verdict = judge(case)
        counts[verdict.outcome] += 1
        if verdict.outcome == UNREPORTED or (verdict.outcome == REPORTED and "-v" in sys.argv):
            print(f"{verdict.outcome}: {case}: {verdict.why}", file=sys.stderr)
    print(f"| NVML | {counts.total():,} | {counts[UNREPORTED]} | {counts[REPORTED]:,} | {counts[REFUSED]:,} |")


if __name__ == "__main__":
    main()
