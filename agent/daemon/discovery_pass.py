"""One look at the machine after another: what is seen, what is to be published, what failed. Pure.

snapshot -> remember (failed sources keep their facts) -> discover -> hysteresis -> topology to publish
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.daemon import damping
from agent.daemon.damping import Held
from agent.daemon.last_known_good import remember
from agent.discover import discover
from agent.failures import Failure, from_nvml
from agent.snapshot import Snapshot
from gputopo.model import NodeTopology

_SOURCES = ("nvml", "smi", "sysfs", "host")
# A process can outlive these: the module is loaded again, and the same library finds it.
_HEALING = frozenset({Failure.NO_DRIVER, Failure.NO_DEVICE})


class View(msgspec.Struct, frozen=True):
    """What is known after the last look; ``View()`` before the first."""

    recalled: NodeTopology | None = None  # what an earlier agent published
    snapshot: Snapshot | None = None  # completed from earlier ones
    held: Held = Held()
    observed: NodeTopology | None = None  # as it was seen last
    topology: NodeTopology | None = None  # as it is to be published; None: nothing to say (yet)
    failures: Mapping[str, str] = {}  # source -> why it failed in the last look
    good_at: Mapping[str, float] = {}  # source -> when it was last good (monotonic)
    failing_since: float | None = None  # since when NVML fails


def look(view: View, snapshot: Snapshot, now: float, hold_s: float) -> View:
    """The view after one more look. While NVML fails, what is to be published stays as it was."""
    snapshot, failures = remember(snapshot, view.snapshot)
    asked = [source for source in _SOURCES if getattr(snapshot, source) is not None and source not in failures]
    good_at = {**view.good_at, **dict.fromkeys(asked, now)}
    if "nvml" in failures:
        since = now if view.failing_since is None else view.failing_since
        return msgspec.structs.replace(view, snapshot=snapshot, failures=failures, good_at=good_at, failing_since=since)
    recalled = _of_this_boot(view.recalled, snapshot)
    held = damping.recalled(recalled) if view.observed is None and recalled is not None else view.held
    observed = discover(snapshot, held.newest or recalled)
    awake = frozenset[int]() if snapshot.nvml is None else snapshot.nvml.awake
    held = damping.update(held, observed, now, hold_s, awake)
    return View(None, snapshot, held, observed, damping.published(held), failures, good_at)


def _of_this_boot(topology: NodeTopology | None, snapshot: Snapshot) -> NodeTopology | None:
    """What was there before a reboot may have been taken out since; what was there in this boot is missed."""
    boot = None if snapshot.host is None else snapshot.host.boot_id
    return topology if topology is not None and boot is not None and topology.boot_id == boot else None


def only_a_restart_helps(view: View) -> bool:
    """Whether NVML fails in a way that this process will not recover from.

    Its devices were taken away (UNKNOWN after a ``systemctl daemon-reload``) or its library is older than the module
    (LIB_RM_VERSION_MISMATCH after an upgrade), after it had worked; or there is a driver now, and the library came too
    late to be mounted into this container. What never worked is waited for: a restart would not change it.
    """
    error = view.failures.get("nvml")
    if error is None:
        return False
    failure = from_nvml(error)
    if view.observed is not None:
        return failure not in _HEALING
    return failure is Failure.NO_LIBRARY and _module_loaded(view.snapshot)


def _module_loaded(snapshot: Snapshot | None) -> bool:
    return snapshot is not None and snapshot.sysfs is not None and "module/nvidia/version" in snapshot.sysfs.files
