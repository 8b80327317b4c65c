"""The sums of what pods without GPUs take of their nodes."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.cache.events import Batch, NodeUpdate
from scheduler_core.cache.node_records import NO_FACTS
from scheduler_core.cache.pod_loads import PodLoad, PodLoads
from scheduler_core.request.node_load import NO_LOAD, NodeLoad
from tests.machines import MACHINES
from tests.scheduler_core.builders import record

GPUS = record("a", MACHINES["hgx_h100"]()).machine
LOADS = (NodeLoad(100, 5, 0, 1), NodeLoad(0, 0, 7, 1), NodeLoad(pods=1))


def batch(*pods: PodLoad, removed: tuple[str, ...] = (), full: bool = False) -> Batch[PodLoad]:
    return Batch(PodLoad, pods, removed, full)


@given(st.integers(0, 10**9))
def test_the_sum_of_each_node_is_that_of_its_pods(seed: int) -> None:
    """In whatever order pods come, change, move and end."""
    random, loads, pods = Random(seed), PodLoads(), dict[str, PodLoad]()
    loads.apply_nodes(Batch(NodeUpdate, (NodeUpdate("a", GPUS), NodeUpdate("b", NO_FACTS))))
    for _ in range(6):
        full, removed = random.random() < 0.2, {f"u{random.randint(0, 9)}" for _ in range(random.randint(0, 3))}
        changed = {
            each.key: each
            for each in (
                PodLoad(f"u{random.randint(0, 9)}", random.choice("ab"), random.choice(LOADS)) for _ in range(4)
            )
        }
        before, freed = loads.by_node, loads.times_freed
        pods = changed if full else {key: each for key, each in pods.items() if key not in removed} | changed
        gone = () if full else tuple(removed - changed.keys())

        named = loads.apply_batch(batch(*changed.values(), removed=gone, full=full))

        for name in "ab":
            expected = NO_LOAD
            for each in pods.values():
                expected = expected.plus(each.load) if each.node == name else expected
            assert loads.by_node.get(name, NO_LOAD) == expected
        was, now = before.get("a", NO_LOAD), loads.by_node.get("a", NO_LOAD)
        assert named == (["a"] if was != now else [])
        assert (loads.times_freed > freed) == any(less < more for less, more in zip(now, was, strict=True))
    assert all(key in loads for key in pods)


def test_a_node_that_gets_its_gpus_later_counts_the_pods_that_run_there_already() -> None:
    loads = PodLoads()
    assert loads.apply_batch(batch(PodLoad("u", "a", LOADS[0]))) == []

    loads.apply_nodes(Batch(NodeUpdate, (NodeUpdate("a", GPUS),)))

    assert loads.by_node["a"] == LOADS[0]
    assert loads.apply_batch(batch(removed=("u",))) == ["a"]
    assert loads.times_freed == 1


def test_a_snapshot_of_the_sums_does_not_change() -> None:
    """A plan on another thread reads it."""
    loads = PodLoads()
    loads.apply_batch(batch(PodLoad("u", "a", LOADS[0])))
    seen = loads.by_node

    loads.apply_batch(batch(PodLoad("v", "a", LOADS[0]), removed=("u",)))
    loads.apply_batch(batch(removed=("v",)))

    assert (seen["a"], len(loads.by_node)) == (LOADS[0], 0)
