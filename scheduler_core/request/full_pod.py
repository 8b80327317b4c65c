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


class StockSpec(PodSpec, frozen=True, rename="camel"):
    """``spec`` with what kube-scheduler's own filters about nodes look at."""

    node_selector: dict[str, str] | None = None
    tolerations: tuple[Toleration, ...] | None = None


class Condition(msgspec.Struct, frozen=True):
    """One of ``status.conditions``."""

    type: str
    status: str
    message: str = ""
    reason: str = ""


class StockStatus(PodStatus, frozen=True, rename="camel"):
    """``status`` with what kube-scheduler said."""

    conditions: tuple[Condition, ...] | None = None


class StockPod(Pod, frozen=True, rename="camel"):
    """The pod that somebody asks about."""

    spec: StockSpec = StockSpec()
    status: StockStatus = StockStatus()

    @property
    def scheduler_said(self) -> str | None:
        """Why kube-scheduler has not placed it; None: it has, or has not tried."""
        return next(
            (
                each.message
                for each in self.status.conditions or ()
                if (each.type, each.status) == ("PodScheduled", "False") and each.message
            ),
            None,
        )
