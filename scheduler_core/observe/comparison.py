"""A pod that somebody else placed: what it got, what it could have had, and what the difference is. Pure.

Of pods with several whole GPUs the ring through these and the island are compared with the node that we would have
chosen, judged by the worst that its device plugin may have given there. What is not known is in no sum. A single GPU
has nothing to lose, but may break an island that was free as a whole.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from gputopo.cluster.pods import lesser
from gputopo.paths import PathKind
from scheduler_core.allocation.best_set import best_set
from scheduler_core.allocation.gpu_sets import places
from scheduler_core.allocation.machine_shape import Shape
from scheduler_core.cache.events import PodSeen
from scheduler_core.cache.node_state import NodeState
from scheduler_core.observe.alternatives import Offer, Options
from scheduler_core.observe.gpu_layout import Span, exactly, lay, may_get, vague
from scheduler_core.observe.island_breakage import breaks, may_break


class Verdict(Enum):
    """What became of a pod, next to what we would have done."""

    GOOD = "good"  # no worse than what we would have promised it
    WORSE = "worse"
    WAITS = "waits"  # we would have let it wait: no node suited what it asks
    UNKNOWN = "unknown"
    SINGLE = "single"  # one GPU, that broke no whole island
    BROKE = "broke"  # one GPU, that broke one
    SHARED = "shared"  # shares of GPUs or MIG devices: not judged


class Placement(NamedTuple):
    """A pod that got its node."""

    at: float  # seconds since 1970
    namespace: str
    name: str
    scheduler: str | None
    node: str
    size: int  # whole GPUs; 0 where it has none
    got: Span | None  # None: unknown
    gpus: tuple[int, ...] | None = None  # their indices, where the kubelet has named them
    found: bool = False  # it ran before we looked; then the best is that of its machine when nothing else runs there
    options: Options = Options()
    broke: int | None = None  # GPUs of the whole island that a single GPU broke; 0: none; None: unknown
    unchecked: tuple[str, ...] = ()  # rules of the pod that nobody looked at

    @property
    def verdict(self) -> Verdict:
        """What became of it."""
        if self.size < 2:
            if not self.size:
                return Verdict.SHARED
            return Verdict.UNKNOWN if self.broke is None else Verdict.BROKE if self.broke else Verdict.SINGLE
        if self.got is None or not self.got.known or vague(self.got.worst.ring):
            return Verdict.UNKNOWN
        if self.measure is None or vague(self.measure.lay.ring):
            waits = not self.found and not self.options.suited
            return Verdict.WAITS if waits else Verdict.UNKNOWN
        return Verdict.WORSE if lesser(self.got.worst.ring, self.measure.lay.ring) else Verdict.GOOD

    @property
    def measure(self) -> Offer | None:
        """What it is held against."""
        return self.options.best if self.found else self.options.ours

    @property
    def compared(self) -> bool:
        """Whether its ring could be compared."""
        return self.verdict in (Verdict.GOOD, Verdict.WORSE)

    @property
    def lost_gbps(self) -> float | None:
        """GB/s that its ring has less, at the least; None where no number can be said. 0 where it is not worse.

        Over PCIe a ring's rate is an upper bound, so two rings over PCIe have no difference that could be named.
        """
        if self.verdict is not Verdict.WORSE or self.got is None or self.measure is None:
            return 0.0 if self.verdict is Verdict.GOOD else None
        has, best = self.got.worst.ring, self.measure.lay.ring
        if has is None or best is None or has.gbps is None or best.gbps is None or best.kind is PathKind.PCIE:
            return None
        return max(0.0, best.gbps - has.gbps)

    @property
    def one_island(self) -> bool | None:
        """Whether its GPUs are in one island; None: unknown."""
        return self.got.worst.one_island if self.got is not None and self.got.known else None

    @property
    def could_be_one_island(self) -> bool:
        """Whether some node may have given it one island, or its own did."""
        best = self.options.best
        return self.one_island is True or (best is not None and best.lay.one_island is True)


class Held(NamedTuple):
    """The GPUs that the kubelet says a pod has."""

    shape: Shape
    mask: int


class Pending(NamedTuple):
    """A pod that was bound, while its kubelet has not named its GPUs."""

    pod: PodSeen
    node: str
    before: NodeState | None  # its node just before; None: nobody knew it
    options: Options
    at: float  # seconds since 1970


def judge(bound: Pending, held: Held | None) -> Placement:
    """A pod that was bound. ``held``: None where its kubelet did not name its GPUs in time."""
    pod, node, before, options, at = bound
    plain = _plain(pod, node, before, held, at)
    if plain.size < 2:
        return plain._replace(options=options, broke=None if before is None else _broke(pod, before, held))
    return plain._replace(options=_with_own(options, node, plain.got))


def found(pod: PodSeen, node: str, held: Held | None, at: float) -> Placement:
    """A pod that runs already, next to the best that its machine gives when nothing else runs there."""
    plain = _plain(pod, node, None, held, at)._replace(found=True)
    if plain.size < 2:
        return plain._replace(broke=0)  # nobody knows what was free when it came
    if held is None:
        return plain
    best = best_set(held.shape, held.shape.whole | held.mask, plain.size)
    options = Options() if best is None else Options(best=Offer(node, lay(held.shape, best.mask)))
    return plain._replace(options=_with_own(options, node, plain.got))


def _plain(pod: PodSeen, node: str, before: NodeState | None, held: Held | None, at: float) -> Placement:
    profile = pod.occupant.profile
    whole = profile.gpus if profile.gpus == profile.devices else 0
    got: Span | None = None
    if held is not None:
        got = exactly(held.shape, held.mask)
    elif before is not None and whole:
        got = may_get(profile.ask, before)
    return Placement(
        at=at,
        namespace=pod.occupant.namespace,
        name=pod.occupant.name,
        scheduler=pod.scheduler,
        node=node,
        size=whole,
        got=got,
        gpus=None if held is None else tuple(held.shape.gpus[place].index for place in places(held.mask)),
        unchecked=() if pod.rules is None else pod.rules.unchecked,
    )


def _broke(pod: PodSeen, before: NodeState, held: Held | None) -> int | None:
    if held is not None and held.shape is before.shape:
        return breaks(before, held.mask)
    return may_break(pod.occupant.profile.ask, before)


def _with_own(options: Options, node: str, got: Span | None) -> Options:
    """What it got was there to be had, whatever was known of it before."""
    if got is None or not got.known:
        return options
    best = options.best
    if best is None or vague(best.lay.ring):  # then the best that can be said is what we would have promised
        best = options.ours
    if best is None or vague(best.lay.ring) or lesser(best.lay.ring, got.worst.ring):
        best = Offer(node, got.worst)
    return options._replace(best=best)
