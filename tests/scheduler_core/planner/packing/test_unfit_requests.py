"""Requests of single pods that did not fit, and nodes that changed since."""

from __future__ import annotations

from scheduler_core.cache.change_log import MAX_NAMES
from scheduler_core.cache.node_record import NodeRecord, with_pod
from scheduler_core.planner.packing import unfit_requests
from scheduler_core.planner.packing.model import NodeView
from scheduler_core.planner.packing.unfit_requests import SingleRequest, UnfitRequests
from scheduler_core.request.node_load import NO_LOAD, NodeLoad
from tests.machines import MACHINES
from tests.scheduler_core.builders import occupant, profile, record
from tests.scheduler_core.planner.packing.member_groups import POLICY, view, with_allocatable

H100 = MACHINES["hgx_h100"]()
ALL = frozenset("ab")


def node(name: str, free: int) -> NodeRecord:
    empty = record(name, H100, held={})
    return empty if free == 8 else with_pod(empty, occupant(f"on-{name}", 8 - free))


def nodes(a: int, b: int = 0, ignored: str = "") -> NodeView:
    """Return two nodes with so many free GPUs."""
    return view(node("a", a), node("b", b))._replace(ignored_holds=frozenset(ignored.split()))


def single(gpus: int, load: NodeLoad = NO_LOAD) -> SingleRequest:
    return SingleRequest(None, profile(gpus), POLICY, load)


def recorded(*requests: SingleRequest) -> UnfitRequests:
    found = UnfitRequests()
    found.see_view(nodes(0), ALL)
    for each in requests:
        found.record(each, f"no {each.profile.gpus} GPUs")
    return found


def test_a_request_may_fit_once_a_changed_node_takes_it() -> None:
    requests = recorded(single(4), single(6))

    requests.see_view(nodes(3), "a")
    assert [requests.find_request(single(gpus), ALL) is not None for gpus in (4, 6, 8)] == [True, True, False]
    requests.see_view(nodes(4), "a")
    assert [requests.find_request(single(gpus), ALL) is not None for gpus in (4, 6)] == [False, True]
    requests.see_view(nodes(2), "a")
    assert [requests.find_request(single(gpus), ALL) is not None for gpus in (4, 6)] == [True, True]


def test_a_node_that_is_not_allowed_does_not_count() -> None:
    requests = recorded(single(4))

    requests.see_view(nodes(8), "a")

    assert requests.find_request(single(4), frozenset("b")) is not None


def test_a_node_without_enough_cpu_does_not_count() -> None:
    requests, load = recorded(single(4, NodeLoad(4000))), NodeLoad(4000)

    small = view(with_allocatable(node("a", 8), cpu_milli=8000), others={"a": NodeLoad(5000)})
    requests.see_view(small, "a")
    assert requests.find_request(single(4, load), ALL) is not None
    requests.see_view(small._replace(others={"a": NodeLoad(4000)}), "a")
    assert requests.find_request(single(4, load), ALL) is None


def test_the_same_request_without_other_holds_is_another_one() -> None:
    requests = recorded(single(4))
    first = requests.find_request(single(4), ALL)

    requests.see_view(nodes(0, ignored="uid-hold"), ())
    assert requests.find_request(single(4), ALL) is None
    other = requests.record(single(4), "none")

    assert first is not None
    assert other is not first.request_id
    assert (first.request_id.ignored_holds, other.ignored_holds) == (frozenset(), frozenset({"uid-hold"}))


def test_the_id_of_a_request_stays_when_its_reason_changes() -> None:
    requests = recorded(single(4))
    before = requests.find_request(single(4), ALL)
    assert before is not None

    assert requests.record(single(4), "another reason") is before.request_id
    after = requests.find_request(single(4), ALL)
    assert after is not None
    assert after.reason == "another reason"


def test_the_reason_is_outdated_after_changes_of_nodes() -> None:
    requests = recorded(single(4))
    before = requests.find_request(single(4), ALL)
    assert before is not None
    assert not requests.is_reason_outdated(before)

    requests.see_view(nodes(1), "a")

    assert requests.is_reason_outdated(before)


def test_a_request_may_fit_if_the_changes_since_are_not_known() -> None:
    requests = recorded(single(4))

    requests.see_view(nodes(0), (f"node-{at}" for at in range(2 * MAX_NAMES + 1)))

    assert requests.find_request(single(4), ALL) is None


def test_the_request_that_was_tried_longest_ago_is_forgotten() -> None:
    most = unfit_requests._MAX_REQUESTS
    requests = recorded(*(single(4, NodeLoad(cpu_milli=at)) for at in range(most)))
    assert requests.find_request(single(4, NodeLoad(cpu_milli=0)), ALL) is not None

    requests.record(single(5), "none")

    known = [requests.find_request(single(4, NodeLoad(cpu_milli=at)), ALL) is not None for at in range(3)]
    assert known == [True, False, True]
