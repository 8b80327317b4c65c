"""Leases of leader elections (``coordination.k8s.io/v1``), as programs read and write them. Pure."""

from __future__ import annotations

import msgspec

from gputopo.kube.objects import ObjectMeta
from gputopo.timestamps import parse_timestamp

_SLACK = 2.0  # durations of a Lease, for the difference between the clocks of its holder and of this machine


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """``coordination.k8s.io/v1`` LeaseSpec."""

    holder_identity: str | None = None  # None and "": released
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None

    def has_expired(self, now: float) -> bool | None:
        """Return whether its holder has not renewed the Lease for long, by the clock of this machine.

        None: the Lease has no duration or no valid time of renewal. ``now``: seconds since 1970.
        """
        renewed, duration = parse_timestamp(self.renew_time), self.lease_duration_seconds
        return None if renewed is None or duration is None else now - renewed > (1 + _SLACK) * duration


class Lease(msgspec.Struct, frozen=True):
    """A Lease."""

    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()
