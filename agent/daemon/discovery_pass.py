"""One discovery pass: snapshot in, observed topology, topology to publish, and failures out. Pure.

snapshot -> last_known_good (failed sources keep their facts) -> discover -> damping -> topology to publish
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.daemon import damping
from agent.daemon.damping import DampingHistory
from agent.daemon.last_known_good import fill_from_last_good
from agent.daemon.link_errors import LinkErrorHistory, failing_links, record_counters
from agent.daemon.usage import LoadHistory, record_load
from agent.discover import discover
from agent.discover.failed_calls import AbsentCalls, failed_nvml_calls, record_absent_calls, vanished_calls
from agent.failures import Failure, failure_from_nvml
from agent.snapshot import Nvml, Snapshot
from gputopo.model import NodeTopology

_SOURCES = ("nvml", "smi", "sysfs", "host")
# A running process recovers from these: once the kernel module is loaded again, the library finds the driver.
_TRANSIENT_FAILURES = frozenset({Failure.NO_DRIVER, Failure.NO_DEVICE})


class DiscoveryState(msgspec.Struct, frozen=True):
    """The state between passes; ``DiscoveryState()`` before the first."""

    published_before: NodeTopology | None = None  # by an earlier agent
    snapshot: Snapshot | None = None  # completed with the last good facts
    history: DampingHistory = DampingHistory()
    observed: NodeTopology | None = None  # in the last pass
    topology: NodeTopology | None = None  # damped, to be published; None: no successful pass yet
    failures: Mapping[str, str] = {}  # source -> its error in the last pass
    nvml: Nvml | None = None  # as read in the last pass
    failed_calls: Mapping[str, str] = {}  # NVML call -> its errors in the last pass; earlier results may replace them
    absent_calls: AbsentCalls = AbsentCalls()
    link_errors: LinkErrorHistory = {}
    load: LoadHistory = {}
    good_at: Mapping[str, float] = {}  # source -> its last success (monotonic)
    failing_since: float | None = None  # since when NVML fails


def run_discovery_pass(state: DiscoveryState, snapshot: Snapshot, now: float, hold_s: float) -> DiscoveryState:
    """Return the state after one more pass. While NVML fails the topology to publish does not change."""
    read = snapshot.nvml
    snapshot, failures = fill_from_last_good(snapshot, state.snapshot)
    answered = [source for source in _SOURCES if getattr(snapshot, source) is not None and source not in failures]
    good_at = {**state.good_at, **dict.fromkeys(answered, now)}
    if "nvml" in failures:
        since = now if state.failing_since is None else state.failing_since
        return msgspec.structs.replace(
            state, snapshot=snapshot, failures=failures, good_at=good_at, failing_since=since
        )
    published_before = _if_same_boot(state.published_before, snapshot)
    history = (
        damping.history_from_published(published_before)
        if state.observed is None and published_before is not None
        else state.history
    )
    observed = discover(snapshot, history.newest or published_before)
    link_errors = record_counters(state.link_errors, read, now)
    absent_calls = state.absent_calls if read is None else record_absent_calls(state.absent_calls, read)
    failing = failing_links(link_errors, read, now)
    observed = msgspec.structs.replace(observed, degraded=tuple(sorted({*observed.degraded, *failing})))
    gpus_at_p0 = frozenset[int]() if snapshot.nvml is None else snapshot.nvml.gpus_at_p0
    history = damping.record_observation(history, observed, now, hold_s, gpus_at_p0)
    return DiscoveryState(
        snapshot=snapshot,
        history=history,
        observed=observed,
        topology=damping.damped_topology(history),
        failures=failures,
        nvml=read,
        failed_calls={} if read is None else vanished_calls(absent_calls, read) | failed_nvml_calls(read),
        absent_calls=absent_calls,
        link_errors=link_errors,
        load=record_load(state.load, read, now),
        good_at=good_at,
    )


def _if_same_boot(topology: NodeTopology | None, snapshot: Snapshot) -> NodeTopology | None:
    """Return the topology if it is of this boot: hardware may have been removed while the machine was off."""
    boot = None if snapshot.host is None else snapshot.host.boot_id
    return topology if topology is not None and boot is not None and topology.boot_id == boot else None


def needs_restart(state: DiscoveryState) -> bool:
    """Return whether NVML fails in a way that only a new process can recover from.

    NVML had worked and its devices were taken away (UNKNOWN after ``systemctl daemon-reload``), or its library is older
    than the kernel module (LIB_RM_VERSION_MISMATCH after an upgrade); or the driver was loaded after this container
    started, so its library was not mounted. An NVML that never worked for another reason is waited for.
    """
    error = state.failures.get("nvml")
    if error is None:
        return False
    failure = failure_from_nvml(error)
    if state.observed is not None:
        return failure not in _TRANSIENT_FAILURES
    return failure is Failure.NO_LIBRARY and _module_loaded(state.snapshot)


def _module_loaded(snapshot: Snapshot | None) -> bool:
    return snapshot is not None and snapshot.sysfs is not None and "module/nvidia/version" in snapshot.sysfs.files
