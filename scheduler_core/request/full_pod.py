"""The pod types with every field that some program reads, above the lean ones of ``pod``."""

from __future__ import annotations

import msgspec

from scheduler_core.request.pod import Pod, PodSpec, PodStatus


class Toleration(msgspec.Struct, frozen=True):
    """One of ``tolerations``."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class FullPodSpec(PodSpec, frozen=True, rename="camel"):
    """``spec`` with what kube-scheduler's own filters about nodes look at."""

    node_selector: dict[str, str] | None = None
    tolerations: tuple[Toleration, ...] | None = None


class PodCondition(msgspec.Struct, frozen=True):
    """One of ``status.conditions``."""

    type: str
    status: str
    message: str = ""
    reason: str = ""


class FullPodStatus(PodStatus, frozen=True, rename="camel"):
    """``status`` with what kube-scheduler said."""

    conditions: tuple[PodCondition, ...] | None = None


class FullPod(Pod, frozen=True, rename="camel"):
    """The pod that somebody asks about."""

    spec: FullPodSpec = FullPodSpec()
    status: FullPodStatus = FullPodStatus()

    @property
    def scheduler_message(self) -> str | None:
        """Why kube-scheduler has not placed it; None: it has, or has not tried."""
        return next(
            (
                each.message
                for each in self.status.conditions or ()
                if (each.type, each.status) == ("PodScheduled", "False") and each.message
            ),
            None,
        )
