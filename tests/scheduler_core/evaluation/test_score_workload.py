"""The score factors for workload types and cost, with their arithmetic."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.crd.nodegpus import GpuUsage
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.colocation import OwnerPods
from scheduler_core.cache.node_state import NodeState, state_of, with_owner_pods
from scheduler_core.evaluation.score import MAX_POINTS, RAW_SCORES, combine_factors, score_state
from scheduler_core.policy.factors import FACTORS, Weights
from scheduler_core.policy.file import parse_policy_file
from scheduler_core.policy.gpu_families import GPU_FAMILIES
from scheduler_core.policy.models import API_VERSION
from scheduler_core.policy.policy import NodeReads, Policy, WorkloadWeights
from scheduler_core.request.pod_request import PodProfile, SiblingHardware
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, OBSERVED, mask, occupant, profile, record

POLICY = Policy()
TRAINING, INFERENCE = profile(1, workload="training"), profile(1, workload="inference")


def _node(
    machine: str = "hgx_h100", *busy: int, pods: tuple[Occupant, ...] = (), labels: dict[str, str] | None = None
) -> NodeState:
    there = [*pods, *([occupant("busy", len(busy))] if busy else [])]
    held = {"busy": busy, **{pod.name: [7 - at] for at, pod in enumerate(pods)}}
    return state_of(record(topology=MACHINES[machine](), held=held, pods=there, labels=labels), NOW, POLICY)


def _like(product: str | None, driver: str | None) -> PodProfile:
    return TRAINING._replace(sibling_hardware=SiblingHardware(product, driver))


READS_LOAD = Policy(weights=Weights(measured_idle=1.0), reads=NodeReads(load=True))


def _loaded(*busy: int | None, policy: Policy = READS_LOAD, observed: str = OBSERVED) -> NodeState:
    found = record(topology=MACHINES["hgx_h100"](), held={}, observed=observed)
    assert found.gpus is not None
    usage = tuple(GpuUsage(f"GPU-{at}", busy_percent=percent) for at, percent in enumerate(busy))
    gpus = msgspec.structs.replace(found.gpus, usage=usage)
    return state_of(msgspec.structs.replace(found, gpus=gpus), NOW, policy)


_H100 = MACHINES["hgx_h100"]()
_PRODUCT, _DRIVER = "NVIDIA-H100-80GB-HBM3", _H100.driver_version
_COST = {"gputopo.io/cost-per-hour": "32"}
_SPOT = {"karpenter.sh/capacity-type": "spot"}
_SERVES = (occupant("s", 1, workload="inference"),)
_TRAINS = (occupant("t", 1, workload="training"),)


@pytest.mark.parametrize(
    ("factor", "asked", "node", "policy", "raw"),
    [
        # isolation (10 versus 90)
        ("isolation", TRAINING, _node(), POLICY, 0.9),
        ("isolation", TRAINING, _node(pods=_SERVES), POLICY, 0.1),
        ("isolation", TRAINING, _node(pods=_TRAINS), POLICY, 0.9),
        ("isolation", INFERENCE, _node(pods=_TRAINS), POLICY, 0.1),
        # spot and cost inverse: 2 / (2 + c)
        ("cost", profile(1), _node(labels={"gputopo.io/cost-per-hour": "16"}), POLICY, 0.5),  # 2 / (2 + 16 / 8)
        ("cost", profile(1), _node(labels=_COST), POLICY, 1 / 3),  # 2 / (2 + 32 / 8)
        ("cost", profile(1), _node(labels=_COST), Policy(half_cost=4.0), 0.5),  # 4 / (4 + 4)
        ("cost", profile(1), _node(labels={"gputopo.io/cost-per-hour": "0"}), POLICY, 1.0),
        ("cost", profile(1), _node(), POLICY, 0.0),  # unknown
        ("spot", profile(1), _node(labels=_SPOT), POLICY, 1.0),
        ("spot", profile(1), _node(), POLICY, 0.0),
        ("on_demand", profile(1), _node(labels=_SPOT), POLICY, 0.0),
        ("on_demand", profile(1), _node(), POLICY, 1.0),
        # generation: place / 11
        ("generation", profile(1), _node(), POLICY, 9 / 11),  # hopper
        ("generation", profile(1), _node("dgx1"), POLICY, 5 / 11),  # volta
        ("generation", profile(1), _node(), Policy(enough_generation=7), 1.0),  # hopper is newer than ampere
        ("generation", profile(1), _node("a100_mesh"), Policy(enough_generation=7), 1.0),  # ampere is enough
        ("generation", profile(1), _node("dgx1"), Policy(enough_generation=7), 6 / 8),  # (5 + 1) / (7 + 1)
        ("generation", profile(1), state_of(record(), NOW, POLICY), POLICY, 0.0),  # unknown
        # contiguous ids
        ("contiguous", profile(2), _node("hgx_h100", 0, 1, 2, 3, 4, 5), POLICY, 1.0),  # 6 and 7: 2 / 2
        ("contiguous", profile(2), _node("hgx_h100", 1, 2, 3, 4, 5, 6), POLICY, 0.25),  # 0 and 7: 2 / 8
        ("contiguous", profile(4), _node("a100_bridged"), POLICY, 1.0),  # 0 to 3: 4 / 4
        ("contiguous", profile(2), state_of(record(), NOW, POLICY), POLICY, 0.0),  # unknown
        # siblings: product and driver
        ("siblings", _like(_PRODUCT, _DRIVER), _node(), POLICY, 1.0),
        ("siblings", _like(_PRODUCT, "1.2.3"), _node(), POLICY, 0.5),
        ("siblings", _like(_PRODUCT, None), _node(), POLICY, 0.5),
        ("siblings", _like("NVIDIA-B200", _DRIVER), _node(), POLICY, 0.0),
        ("siblings", _like(None, _DRIVER), _node(), POLICY, 0.0),
        ("siblings", _like(_PRODUCT, _DRIVER), state_of(record(), NOW, POLICY), POLICY, 0.0),
        ("siblings", TRAINING, _node(), POLICY, 0.0),
        # spread: 1 / (1 + n), on other islands 1 / (1 + n / 2)
        ("spread", INFERENCE, _node(), POLICY, 1.0),
        ("spread", INFERENCE, with_owner_pods(_node(), OwnerPods(1, mask(0))), POLICY, 1 / 2),
        ("spread", INFERENCE, with_owner_pods(_node(), OwnerPods(3, mask(0))), POLICY, 1 / 4),
        ("spread", INFERENCE, with_owner_pods(_node("a100_bridged", 0, 1), OwnerPods(1, mask(0))), POLICY, 1 / 1.5),
        ("spread", INFERENCE, with_owner_pods(_node("a100_bridged", 0), OwnerPods(1, mask(0))), POLICY, 1 / 2),
        ("spread", INFERENCE, with_owner_pods(state_of(record(), NOW, POLICY), OwnerPods(1, mask(0))), POLICY, 1 / 2),
        # utilisation: in use then
        ("utilisation", profile(2), _node("hgx_h100", 0, 1, 2, 3), POLICY, 6 / 8),
        ("utilisation", profile(8), _node(), POLICY, 1.0),
        ("utilisation", profile(1), state_of(record(), NOW, POLICY), POLICY, 0.0),
        # measured load: 1 - b
        ("measured_idle", profile(1), _loaded(0, 0), READS_LOAD, 1.0),
        ("measured_idle", profile(1), _loaded(100, 0, None, 60), READS_LOAD, 0.5),  # (100 + 0 + 60) / 3 is 53: 50
        ("measured_idle", profile(1), _loaded(None), READS_LOAD, 0.0),  # unknown
        ("measured_idle", profile(1), _node(), READS_LOAD, 0.0),  # unknown
        ("measured_idle", profile(1), _loaded(0, observed="2026-01-01T00:00:00Z"), READS_LOAD, 0.0),  # of long ago
        # memory: m / (m + 80 GiB)
        ("memory", profile(1), _node("hgx_h100"), POLICY, 81559 / (81559 + 80 * 1024)),
        ("memory", profile(1), state_of(record(), NOW, POLICY), POLICY, 0.0),  # unknown
    ],
)  # fmt: skip
def test_raw_value(factor: str, asked: PodProfile, node: NodeState, policy: Policy, raw: float) -> None:
    assert RAW_SCORES[factor](asked, node, policy) == pytest.approx(raw)


def test_the_measured_load_makes_no_difference_where_no_profile_reads_it() -> None:
    """Every change of a state costs each ranking an evaluation."""
    assert _loaded(0, policy=POLICY) is _loaded(100, policy=POLICY)
    assert _loaded(0) is not _loaded(100)


def test_a_weight_in_any_profile_of_the_file_makes_all_states_have_the_load() -> None:
    text = f"apiVersion: {API_VERSION}\nkind: PlacementPolicy\n"
    busy = "profiles: [{name: busy, match: {namespace: a}, weights: {measuredIdle: 2}}]"
    reading, plain = (parse_policy_file(text + more, "p").policies for more in (busy, ""))

    assert reading.node_policy.reads == NodeReads(load=True)
    assert plain.node_policy.reads == NodeReads()
    assert score_state(profile(1), _loaded(0, policy=reading.node_policy), reading.profiles[0].policy).points > (
        score_state(profile(1), _loaded(90, policy=reading.node_policy), reading.profiles[0].policy).points
    )


def test_each_weight_has_a_factor_and_a_raw_score() -> None:
    assert tuple(RAW_SCORES) == tuple(FACTORS) == Weights._fields
    assert all(raw.__name__ == name for name, raw in RAW_SCORES.items())


@pytest.mark.parametrize(
    ("asked", "weights"),
    [
        pytest.param(profile(1), {"leftover": 3, "numa": 1, "nic": 1, "health": 1}, id="nothing known of the pod"),
        pytest.param(
            profile(2, workload="training")._replace(sibling_hardware=SiblingHardware("x", "y")),
            {
                "bandwidth": 4, "leftover": 3, "numa": 1, "nic": 1, "health": 3, "contiguous": 0.5, "isolation": 6,
                "siblings": 2, "utilisation": 2,
            },
            id="training",
        ),
        pytest.param(
            profile(1, workload="inference"),
            {"leftover": 3, "numa": 1, "nic": 1, "health": 1, "isolation": 6, "spread": 4},
            id="inference",
        ),
        pytest.param(
            profile(1, workload="inference", spread="ignore", isolation="ignore"),
            {"leftover": 3, "numa": 1, "nic": 1, "health": 1},
            id="inference that does not mind",
        ),
        pytest.param(
            profile(1, workload="batch", spread="preferred"),
            {"leftover": 3, "numa": 1, "nic": 1, "health": 1, "spread": 4},
            id="batch that asks",
        ),
        pytest.param(
            profile(1, workload="training")._replace(scavenger=True),
            {"leftover": 6, "numa": 1, "nic": 1, "health": 1, "isolation": 6, "spot": 6},
            id="scavenger, whatever it is",
        ),
    ],
)  # fmt: skip
def test_factors_that_apply_to_each_kind_of_pod(asked: PodProfile, weights: dict[str, float]) -> None:
    assert {part.factor: part.weight for part in score_state(asked, _node(), POLICY).parts} == weights


def test_training_avoids_the_inference_node() -> None:
    """Twice the same HGX H100; on one a service runs. Weights 3 + 1 + 1 + 3 + 6 + 2 = 16.

    Where the service broke into the island, what is left was a fragment for pods of eight before: of 7 free GPUs one
    less is 0.15 fragments less, 1 / (1 + e^-0.3) = 0.56, instead of 1.05 more, 1 / (1 + e^2.1) = 0.08. In use are 2 of
    8 instead of 1 of 8. So the service's node is better by 10 x (3 x 0.48 + 2 x 1/8) / 16 = 1.06, and worse by
    10 x 6 x (0.9 - 0.1) / 16 = 3.
    """
    free, serving = (
        score_state(TRAINING, _node(), POLICY).points,
        score_state(TRAINING, _node(pods=_SERVES), POLICY).points,
    )

    assert free - serving == pytest.approx(3 - 10 * (3 * (0.56 - 0.08) + 2 / 8) / 16, abs=1e-5)


def test_scavenger_takes_the_fragment_on_spot() -> None:
    asked = profile(1)._replace(scavenger=True)
    fragment = _node("hgx_h100", 0, 1, 2, 3, 4, 5, 6, labels=_SPOT)
    points = [score_state(asked, node, POLICY).points for node in (fragment, _node(labels=_SPOT), _node())]

    assert points == sorted(points, reverse=True)
    assert len(set(points)) == 3


_VALUES = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 100)), min_size=1, max_size=len(RAW_SCORES))


@given(_VALUES, st.data())
def test_score_is_bounded_and_monotone_in_each_factor(values: list[tuple[float, float]], data: st.DataObject) -> None:
    named = [(name, raw, weight) for name, (raw, weight) in zip(RAW_SCORES, values, strict=False)]
    at = data.draw(st.integers(0, len(named) - 1))
    name, raw, weight = named[at]
    better = [*named[:at], (name, data.draw(st.floats(raw, 1)), weight), *named[at + 1 :]]
    lower, higher = combine_factors(named).points, combine_factors(better).points

    assert 0 <= lower <= MAX_POINTS
    assert 0 <= higher <= MAX_POINTS
    assert higher >= lower - 1e-5  # shares are rounded to six digits


def test_factors_without_weight_are_not_computed() -> None:
    nothing = Weights(*[0.0] * len(Weights._fields))
    policy = Policy(weights=nothing, workload_weights=WorkloadWeights(nothing, nothing, nothing, nothing))

    assert score_state(TRAINING, _node(), policy).parts == ()


def test_families_are_sorted_by_age() -> None:
    assert [GPU_FAMILIES.index(family) for family in ("volta", "ampere", "hopper", "blackwell")] == [5, 7, 9, 10]
