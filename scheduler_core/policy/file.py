"""The policy file: YAML -> ``Policies``, with the line of each fault. No I/O.

PolicyError(ValueError)   invalid file; the message has a line for each fault: position, fault, and what is allowed
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from gputopo.model import Interconnect
from gputopo.quantities import parse_mib
from scheduler_core.policy.demand_mix import WHOLE_GPU, Demand, DemandMix
from scheduler_core.policy.faults import fault_text
from scheduler_core.policy.gpu_families import GPU_FAMILIES
from scheduler_core.policy.limits import GangLimits, NamespaceLimits
from scheduler_core.policy.models import (
    NEW_KEY,
    OLD_KEY,
    GangLimitsModel,
    MatchModel,
    NamespaceLimitsModel,
    PolicyModel,
    SettingsModel,
    WantModel,
)
from scheduler_core.policy.policy import FillBand, FilterUse, Policy, WorkloadWeights
from scheduler_core.policy.preemption_models import preemption_policy
from scheduler_core.policy.profiles import BUILT_IN, Policies, PolicyProfile, ProfileMatch
from scheduler_core.policy.reads import policy_reads
from scheduler_core.policy.yaml_positions import Position, YamlPositions
from scheduler_core.request.pod_request import ParsingPolicy
from scheduler_core.request.workload_type import DETECTION_RULES

_MAX_BYTES = 2**20  # thousands of profiles, which take seconds to parse


class PolicyFault(NamedTuple):
    """A fault in a policy file."""

    at: Position
    what: str


class PolicyError(ValueError):
    """The text is not a valid policy file."""

    def __init__(self, name: str, faults: Iterable[PolicyFault]) -> None:
        self.faults = tuple(sorted(faults))
        super().__init__("\n".join(f"{name}:{each.at.line}:{each.at.column}: {each.what}" for each in self.faults))


class PolicyFile(NamedTuple):
    """A parsed policy file."""

    policies: Policies
    model: PolicyModel
    positions: YamlPositions


def parse_policy_file(text: str, name: str, base: Policy = BUILT_IN.node_policy) -> PolicyFile:
    """Parse the text of a policy file. Raises ``PolicyError``.

    ``name``: of the file, for messages. ``base``: values that the file does not set.
    """
    if (size := len(text.encode())) > _MAX_BYTES:
        large = f"the file has {size} bytes; a policy file should have at most {_MAX_BYTES}, as a ConfigMap has"
        raise PolicyError(name, [PolicyFault(Position(1, 1), large)])
    try:
        positions = YamlPositions.parse_yaml(text, _rename_old_keys)
        model = PolicyModel.model_validate({} if positions.value is None else positions.value)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = Position(1, 1) if mark is None else Position(mark.line + 1, mark.column + 1)
        raise PolicyError(name, [PolicyFault(at, f"invalid YAML: {error.problem or error.context}")]) from error
    except ValidationError as error:
        faults = {
            PolicyFault(positions.position_of(each["loc"]), fault_text(each, PolicyModel))
            for each in error.errors()
            # A list with a faulty entry is not too short: pydantic counts only the other entries.
            if each["type"] != "too_short" or not each["input"]
        }
        raise PolicyError(name, faults) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that does not exist
        raise PolicyError(name, [PolicyFault(Position(1, 1), f"invalid YAML: {error}".partition("\n")[0])]) from error
    return PolicyFile(policies_from_model(model, base), model, positions)


def _rename_old_keys(root: yaml.Node) -> None:
    """Give ``personality`` its new name: a key of the file, and of the ``match`` of its profiles."""
    profiles = [each for key, value in _entries(root) if key.value == "profiles" for each in _items(value)]
    matches = [value for each in profiles for key, value in _entries(each) if key.value == "match"]
    for mapping in (root, *matches):
        for key, _ in _entries(mapping):
            if key.value == OLD_KEY:
                key.value = NEW_KEY


def _entries(node: yaml.Node) -> list[tuple[yaml.Node, yaml.Node]]:
    return node.value if isinstance(node, yaml.MappingNode) else []


def _items(node: yaml.Node) -> list[yaml.Node]:
    return node.value if isinstance(node, yaml.SequenceNode) else []


def policies_from_model(model: PolicyModel, built_in: Policy) -> Policies:
    """Return the policies that the model describes."""
    off = {name for name, used in model.workload_class.rules.items() if not used}
    reading = ParsingPolicy(
        tuple(rule for rule in DETECTION_RULES if rule.name not in off), model.workload_class.demands
    )
    base = _profile(PolicyProfile(built_in), model.defaults)
    stale = {"stale_after_s": model.staleness.after, "stale": model.staleness.handling}
    base = base._replace(policy=base.policy._replace(**_set_values(stale)))
    profiles = [_profile(base, each)._replace(match=_match(each.match)) for each in model.profiles]
    named = [
        profile._replace(policy=profile.policy._replace(name=each.name))
        for profile, each in zip(profiles, model.profiles, strict=True)
    ]
    reads, pod_reads = policy_reads([each.policy for each in (*named, base)])
    profiles = [each._replace(policy=each.policy._replace(reads=reads)) for each in (*named, base)]
    return Policies(
        tuple(profiles),
        reading,
        _gang_limits(model.gangs),
        pod_reads,
        preemption_policy(model.preemption),
        model.backfill.policy,
    )


def _gang_limits(written: GangLimitsModel) -> GangLimits:
    default = _namespace_limits(written, NamespaceLimits())
    by_namespace = {name: _namespace_limits(each, default) for each in written.namespaces for name in each.name}
    times = _set_values({"max_hold_age_s": written.max_hold_age, "max_timeout_s": written.max_timeout})
    return GangLimits(**times, default=default, by_namespace=by_namespace)


def _namespace_limits(written: NamespaceLimitsModel, base: NamespaceLimits) -> NamespaceLimits:
    names = NamespaceLimits._fields
    return base._replace(**_set_values({name: getattr(written, name) for name in names}))


def _profile(base: PolicyProfile, written: SettingsModel) -> PolicyProfile:
    weights = _set_values(written.weights.model_dump())
    kinds = WorkloadWeights(*(each._replace(**weights) for each in base.policy.workload_weights))
    policy = base.policy._replace(
        weights=base.policy.weights._replace(**weights),
        workload_weights=kinds,
        **_set_values(
            {
                "fill_bands": None if written.vram is None else FillBand(written.vram.low, written.vram.high),
                "degraded": written.degraded,
                "prefer_numa_zero": written.prefer_numa_zero,
                "shortlist": written.shortlist,
                "half_cost": written.half_cost,
                "filters": None
                if written.filters is None
                else tuple(FilterUse(each.name, each.on_failure == "refuse") for each in written.filters),
                "factors": None if written.factors is None else tuple(sorted(written.factors.items())),
                "demand_mix": None
                if written.mix is None
                else DemandMix(tuple((_want(each), each.weight) for each in written.mix)),
            }
        ),
    )
    if written.generation is not None:
        enough = written.generation.enough
        policy = policy._replace(enough_generation=None if enough is None else GPU_FAMILIES.index(enough))
    return PolicyProfile(
        policy,
        base.match,
        base.interconnect if written.required_topologies is None else _interconnect(written.required_topologies),
        base.isolation if written.isolation is None else written.isolation,
        base.min_vram_mib if written.min_vram is None else parse_mib(written.min_vram),
    )


def _want(written: WantModel) -> Demand:
    return Demand(
        gpus=written.gpus or 0,
        share=0 if written.share is None else max(1, round(WHOLE_GPU * written.share)),
        cpu_milli=round(1000 * written.cpu),
        products=None if written.products is None else frozenset(written.products),
    )


def _interconnect(accepted: tuple[str, ...]) -> Interconnect | None:
    """Return the weakest accepted interconnect: a stronger interconnect is always accepted."""
    if "pcie" in accepted:
        return None
    return Interconnect.NVLINK if "nvlink" in accepted else Interconnect.NVSWITCH


def _match(written: MatchModel) -> ProfileMatch:
    return ProfileMatch(
        frozenset(written.scheduler_name or ()),
        frozenset(written.namespace or ()),
        frozenset(written.workload_class or ()),
    )


def _set_values(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
