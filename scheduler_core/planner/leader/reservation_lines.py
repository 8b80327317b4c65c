"""The log of reservations and gangs: one line for each change, with how long it took since the plan.

``reservation`` has the state: proposed, committed, bound, rolling-back, failed, held. ``gang`` has how long a gang or
a planned pod waited. The lines are limited to ``LINES_PER_S``; a later line says how many were left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from gputopo.crd.reservations import ReservationSpec, ReservationState
from gputopo.process.logs import LineBudget
from gputopo.recent_results import add_bounded
from scheduler_core.planner.commit.actions import Action, CreateReservation, WriteStatus

LINES_PER_S = 100.0
_MAX_NODES = 16  # named in a line
_MAX_PLANS = 10_000  # whose beginning is remembered
_log = logging.getLogger(__name__)


class ReservationLines:
    """Writes the lines of one planner."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._budget = LineBudget(LINES_PER_S)
        self._planned_at: dict[str, float] = {}  # by namespace and name of the reservation; oldest first

    def write_done(self, action: Action, seconds: float) -> None:
        """Write the line of a write that succeeded. ``seconds``: of the call."""
        if isinstance(action, CreateReservation):
            held = bool(action.spec.held) and not action.spec.seats
            name = f"{action.namespace}/{action.name}"
            add_bounded(self._planned_at, name, self._clock() - seconds, _MAX_PLANS)
            self._write(name, action.namespace, action.spec, "held" if held else "proposed", seconds, None)
        elif isinstance(action, WriteStatus):
            state, before = action.status.state, action.reservation.status.state
            if state is not None and state is not before and state is not ReservationState.PROPOSED:
                name = f"{action.reservation.namespace}/{action.reservation.name}"
                text = {ReservationState.ROLLING_BACK: "rolling-back"}.get(state, state.value.lower())
                spec = action.reservation.spec
                self._write(name, action.reservation.namespace, spec, text, seconds, action.status.reason)

    def write_wait(self, gang: str, outcome: str, seconds: float) -> None:
        """Write the line of a gang or planned pod whose wait has ended."""
        self._emit("gang", {"gang": gang, "outcome": outcome, "waited_s": round(seconds, 3)})

    def _write(
        self, name: str, namespace: str, spec: ReservationSpec, state: str, seconds: float, reason: str | None
    ) -> None:
        planned_at = self._planned_at.get(name)
        nodes = list(dict.fromkeys(seat.node for seat in spec.seats if seat.node is not None))
        fields = {
            "state": state,
            "reservation": name,
            "gang": f"{namespace}/{spec.gang}" if spec.gang else None,
            "pods": len(spec.seats),
            "nodes": len(nodes),
            "on": nodes[:_MAX_NODES],
            "attempt": spec.attempt,
            "since_planned_s": None if planned_at is None else round(self._clock() - planned_at, 3),
            "write_s": round(seconds, 4),
            "reason": reason,
        }
        self._emit("reservation", fields)

    def _emit(self, event: str, fields: dict[str, Any]) -> None:
        left_out = self._budget.admit_line(self._clock())
        if left_out is not None:
            _log.info(event, extra={"fields": fields | ({"left_out": left_out} if left_out else {})})
