"""What a program that respects reservations tells of them at a scrape. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gputopo.crd.reservations import Phase, Vouching
from gputopo.process.metrics import About, Sample
from scheduler_core.cache.reservations import Reserved
from scheduler_core.request.device_request import WHOLE

RESERVATION_GAUGES = {
    "gputopo_reserved_gpus": About(
        ("phase",),
        "Whole GPUs that planners keep for pods that are not on their nodes yet: held (for a gang that does not fit "
        "yet), proposed, committed.",
    ),
    "gputopo_ledger_registered": About(
        ("ledger",), "1 where the ledger shows this extender; calls get 503 where one does not."
    ),
    "gputopo_vouching_lag": About(
        ("ledger",), "Generations of a ledger with proposals that this extender has not vouched for yet."
    ),
    "gputopo_proposals_blocked": About(("ledger",), "Proposals that this extender does not vouch for as it is now."),
}


def of_reservations(reserved: Reserved, me: str | None) -> Iterator[Sample]:
    """``me``: by which name the ledgers know this extender; None: they do not."""
    kept = Counter[Phase]()
    for each in reserved.counting.values():
        kept[each.entry.phase] += sum(room.gpus for room in each.held if room.resource == WHOLE)
        waiting = (seat for seat in each.seats if reserved.places(seat.uid))
        kept[each.entry.phase] += sum(dict(seat.gpus).get(WHOLE, 0) for seat in waiting)
    for phase in Phase:
        yield "gputopo_reserved_gpus", (phase.value.lower(),), kept[phase]
    if me is None:
        return
    for name, ledger in reserved.ledgers.items():
        proposed = {entry.uid for entry in ledger.spec.entries if entry.phase is Phase.PROPOSED}
        said = ledger.extenders.get(me, Vouching())
        yield "gputopo_ledger_registered", (name,), me in ledger.extenders
        yield "gputopo_vouching_lag", (name,), max(0, ledger.generation - said.generation) if proposed else 0
        yield "gputopo_proposals_blocked", (name,), len(proposed.intersection(said.blocked))
