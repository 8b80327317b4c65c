"""Limits of each namespace in the queue: one namespace neither fills it nor slows it down for others."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.queue import GangQueue, QueuedGang
from scheduler_core.policy.limits import GangLimits, LimitReached, NamespaceLimits
from tests.scheduler_core.planner.gang.gang_pods import members, queued

NOW = 1000.0


def queue_with(limits: NamespaceLimits, **by_namespace: NamespaceLimits) -> GangQueue:
    found = GangLimits(default=limits, by_namespace=by_namespace)
    return GangQueue(limits=lambda: found)


def gang(namespace: str, name: str, pods: int = 1, priority: int = 0, created: float = 100.0) -> Gang:
    made = queued(name, ready=tuple(members(pods)), size=pods, priority=priority, created=created)
    return made._replace(name=GangName(namespace, name))


def names(queue: GangQueue) -> list[str]:
    return [f"{each.gang.name.namespace}/{each.gang.name.name}" for each in queue.ordered()]


def test_gangs_beyond_the_limit_of_their_namespace_are_not_planned() -> None:
    queue = queue_with(NamespaceLimits(queued_gangs=2), large=NamespaceLimits(queued_gangs=4))
    for at in range(5):
        for namespace in ("a", "b", "large"):
            queue.update_gang(gang(namespace, f"g{at}", created=float(at)), NOW)

    assert names(queue) == [
        "a/g0", "b/g0", "large/g0", "a/g1", "b/g1", "large/g1", "large/g2", "large/g3"
    ]  # fmt: skip
    assert [len(batch) for batch in queue.batches(NOW, 1)] == [1] * 8
    assert {each.gang.name for each in queue.beyond_limits()} == {
        GangName("a", "g2"), GangName("a", "g3"), GangName("a", "g4"),
        GangName("b", "g2"), GangName("b", "g3"), GangName("b", "g4"), GangName("large", "g4"),
    }  # fmt: skip
    assert queue.limit_reached(GangName("a", "g4")) == LimitReached(
        "queuedGangs", "2 gangs of its namespace are queued before it: the limit is 2 (gangs.queuedGangs)"
    )
    assert queue.limit_reached(GangName("a", "g0")) is queue.limit_reached(GangName("c", "unknown")) is None


def test_a_gang_that_leaves_admits_the_next_by_priority_and_age() -> None:
    queue = queue_with(NamespaceLimits(queued_gangs=2))
    for at, name in enumerate(("first", "second", "third")):
        queue.update_gang(gang("a", name, created=float(at)), NOW)
    assert names(queue) == ["a/first", "a/second"]

    queue.update_gang(gang("a", "urgent", priority=5), NOW)
    assert names(queue) == ["a/urgent", "a/first"]

    queue.update_gang(gang("a", "first")._replace(phase=GangPhase.UNGATED), NOW)
    queue.remove_gang(GangName("a", "urgent"))
    assert names(queue) == ["a/second", "a/third"]


def test_pods_of_queued_gangs_are_limited() -> None:
    queue = queue_with(NamespaceLimits(gated_pods=10))
    for at, (name, pods) in enumerate((("too-large", 11), ("half", 6), ("other", 5), ("small", 1))):
        queue.update_gang(gang("a", name, pods, created=float(at)), NOW)
    queue.update_gang(gang("b", "other", 10), NOW)

    assert names(queue) == ["a/half", "b/other"]
    assert queue.limit_reached(GangName("a", "too-large")) == LimitReached(
        "gatedPods", "it has 11 gated pods: the limit of its namespace is 10 (gangs.gatedPods)"
    )
    assert queue.limit_reached(GangName("a", "small")) == LimitReached(
        "gatedPods", "with the gangs of its namespace before it, it exceeds 10 gated pods (gangs.gatedPods)"
    )


def test_a_changed_policy_applies_at_once() -> None:
    limits = [GangLimits(default=NamespaceLimits(queued_gangs=1))]
    queue = GangQueue(limits=lambda: limits[-1])
    for name in "abc":
        queue.update_gang(gang("a", name), NOW)
    assert names(queue) == ["a/a"]

    limits.append(GangLimits())

    assert names(queue) == ["a/a", "a/b", "a/c"]


class _CountingQueue(GangQueue):
    """Counts how many gangs are looked at."""

    looked_at = 0

    def _waiting(self, name: GangName) -> QueuedGang:
        self.looked_at += 1
        return super()._waiting(name)


def test_gangs_beyond_the_limit_cost_other_namespaces_nothing() -> None:
    limits = GangLimits(default=NamespaceLimits(queued_gangs=10))
    queue = _CountingQueue(limits=lambda: limits)
    for at in range(3_000):
        queue.update_gang(gang("greedy", f"g{at}"), NOW)
    queue.looked_at = 0

    for at in range(10):
        queue.update_gang(gang("modest", f"g{at}"), NOW)
        assert len(list(queue.batches(NOW, 1))) == 10 + at + 1

    assert queue.looked_at <= 10 * (1 + 20)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"), st.integers(0, 7), st.integers(0, 4), st.integers(0, 2), st.integers(0, 3),
        ),
        max_size=40,
    ),
    st.integers(0, 4),
    st.integers(0, 8),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_the_queue_has_the_first_gangs_of_each_namespace(
    updates: list[tuple[str, int, int, int, int]], most: int, pods: int
) -> None:
    """By definition: in the order of the namespace, as many as the limits allow. Size 0: the gang is removed."""
    limits = NamespaceLimits(queued_gangs=most, gated_pods=pods)
    queue, unlimited = queue_with(limits), GangQueue()
    for namespace, number, size, priority, created in updates:
        for each in (queue, unlimited):
            if size:
                each.update_gang(gang(namespace, f"g{number}", size, priority, float(created)), NOW)
            else:
                each.remove_gang(GangName(namespace, f"g{number}"))
        if size and created:
            for each in (queue, unlimited):
                each.mark_unplaced(GangName(namespace, f"g{number}"), created)

        expected = within(limits, unlimited.ordered())
        assert [comparable(each) for each in queue.ordered()] == [comparable(each) for each in expected]
        beyond = {each.gang.name for each in queue.beyond_limits()}
        assert beyond == {each.gang.name for each in unlimited.ordered()} - {each.gang.name for each in expected}
        assert all(queue.limit_reached(each) is not None for each in beyond)


def comparable(waiting: QueuedGang) -> tuple[object, QueuedGang]:
    """Return what is equal in two queues with the same gangs."""
    unfit = waiting.unfit_state
    return None if unfit is None else unfit.state, waiting._replace(unfit_state=None)


def within(limits: NamespaceLimits, waiting: Iterable[QueuedGang]) -> list[QueuedGang]:
    """Return the gangs within the limits of each namespace. The gangs are in order."""
    found, left = list[QueuedGang](), dict[str, list[int]]()
    for each in waiting:
        own = left.setdefault(each.gang.name.namespace, [limits.queued_gangs, limits.gated_pods])
        size = len(each.gang.ready)
        if size <= limits.gated_pods:
            own[:] = [own[0] - 1, own[1] - size]
            if min(own) >= 0:
                found.append(each)
    return found
