"""The effective values of a policy file, each with its origin. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from gputopo.model import Interconnect
from gputopo.render.report import render, text_table
from gputopo.render.wording import format_gib
from scheduler_core.policy.demand_mix import WHOLE_GPU, Demand, DemandMix
from scheduler_core.policy.factors import Weights
from scheduler_core.policy.file import PolicyFile
from scheduler_core.policy.gpu_families import GPU_FAMILIES
from scheduler_core.policy.limits import NamespaceLimits
from scheduler_core.policy.models import WeightsModel
from scheduler_core.policy.policy import FilterUse
from scheduler_core.policy.preemption import PreemptionPolicy, rule_text, window_text
from scheduler_core.policy.preemption_models import PREEMPTION_FIELDS
from scheduler_core.policy.profiles import BUILT_IN, Policies, PolicyProfile, ProfileMatch
from scheduler_core.request.workload_type import DETECTION_RULES

Path = tuple[str | int, ...]
_BUILT_IN = "built in"
_ACCEPTED = {None: "pcie, nvlink, nvswitch", Interconnect.NVLINK: "nvlink, nvswitch", Interconnect.NVSWITCH: "nvswitch"}


class EffectiveValue(NamedTuple):
    """A setting of the policy file."""

    setting: str  # key in the file
    value: str
    origin: str  # "built in" or "line N"


class EffectiveSection(NamedTuple):
    """A profile, or the settings for all pods."""

    title: str
    values: tuple[EffectiveValue, ...]


def effective_values(file: PolicyFile | None) -> tuple[EffectiveSection, ...]:
    """Return the settings for all pods, then the profiles in the order in which they match. None: built in."""
    policies = BUILT_IN if file is None else file.policies
    profiles = [
        EffectiveSection(_title(placement), tuple(_values(placement, _origins(file, at))))
        for at, placement in enumerate(policies.profiles)
    ]
    return (EffectiveSection("all pods", tuple(_common(policies, file))), *profiles)


def effective_values_text(parts: Iterable[EffectiveSection]) -> str:
    """Return a line for each value."""
    return render([part.title, text_table((), part.values)] for part in parts)


def _title(placement: PolicyProfile) -> str:
    return f"profile {placement.policy.name}: {_match_words(placement.match)}"


def _match_words(match: ProfileMatch) -> str:
    fields = {
        "schedulerName": match.schedulers,
        "namespace": match.namespaces,
        "workloadClass": {each.value for each in match.workload_classes},
    }
    words = [f"{key} {' or '.join(sorted(values))}" for key, values in fields.items() if values]
    return " and ".join(words) or "all other pods"


def _common(policies: Policies, file: PolicyFile | None) -> Iterable[EffectiveValue]:
    common = policies.node_policy
    off = [rule.name for rule in DETECTION_RULES if rule not in policies.parsing.rules]
    yield _value(file, ("staleness", "after"), f"{common.stale_after_s:g}s")
    yield _value(file, ("staleness", "handling"), common.stale.value)
    yield _value(file, ("workloadClass", "demands"), policies.parsing.needs_strength.value)
    yield _value(file, ("workloadClass", "rules"), f"all but {', '.join(off)}" if off else "all")
    yield from _gang_limits(policies, file)
    yield from _preemption(policies.preemption, file)
    yield _value(file, ("backfill", "mode"), policies.backfill.mode.value)
    yield _value(file, ("backfill", "maxGrace"), f"{policies.backfill.max_grace_s:g}s")


def _value(file: PolicyFile | None, path: tuple[str, str], value: str) -> EffectiveValue:
    is_set = file is not None and _is_set(file.model, path)
    return EffectiveValue(".".join(path), value, _line(file, path) if is_set else _BUILT_IN)


def _gang_limits(policies: Policies, file: PolicyFile | None) -> Iterable[EffectiveValue]:
    """Yield the limits of all namespaces, then the limits that the file sets for some."""
    limits = policies.limits
    times = [("maxHoldAge", f"{limits.max_hold_age_s:g}s"), ("maxTimeout", f"{limits.max_timeout_s:g}s")]
    for key, value in (*times, *_namespace_limits(limits.default)):
        yield _value(file, ("gangs", key), value)
    for at, each in enumerate(() if file is None else file.model.gangs.namespaces):
        for key, value in _namespace_limits(limits.limits_of(each.name[0])):
            if file is not None and _is_set(file.model, place := ("gangs", "namespaces", at, key)):
                yield EffectiveValue(f"gangs.{key} of {', '.join(each.name)}", value, _line(file, place))


def _preemption(policy: PreemptionPolicy, file: PolicyFile | None) -> Iterable[EffectiveValue]:
    """Yield the settings of preemption: times and limits, then each rule."""
    for field, name in PREEMPTION_FIELDS.items():
        found = getattr(policy, name)
        is_time = name.endswith("_s")
        text = found.value if field == "mode" else f"{found:g}s" if is_time else str(found)
        yield _value(file, ("preemption", to_camel(field)), text)
    yield _value(file, ("preemption", "windows"), "; ".join(map(window_text, policy.windows)) or "at any time")
    for at, each in enumerate(policy.rules):
        yield _value(file, ("preemption", "rules"), rule_text(each))._replace(setting=f"preemption.rules.{at}")


def _namespace_limits(limits: NamespaceLimits) -> list[tuple[str, str]]:
    return [(to_camel(field), str(value)) for field, value in limits._asdict().items()]


def _values(placement: PolicyProfile, origin: Callable[[Path], str]) -> Iterable[EffectiveValue]:
    policy = placement.policy
    for field, plain in policy.weights._asdict().items():
        alias = WeightsModel.model_fields[field].alias or field
        yield EffectiveValue(f"weights.{alias}", _weight(placement, field, plain), origin(("weights", alias)))
    enough = policy.enough_generation
    rows = (
        (("requiredTopologies",), _ACCEPTED[placement.interconnect]),
        (("minVram",), "none" if placement.min_vram_mib is None else format_gib(placement.min_vram_mib)),
        (("vram", "low"), f"{policy.fill_bands.low:g}"),
        (("vram", "high"), f"{policy.fill_bands.high:g}"),
        (("degraded",), policy.degraded.value),
        (("isolation",), "as pods say" if placement.isolation is None else placement.isolation.value),
        (("preferNumaZero",), str(policy.prefer_numa_zero).lower()),
        (("shortlist",), str(policy.shortlist)),
        (("halfCost",), f"{policy.half_cost:g}"),
        (("generation", "enough"), "none: the newer the better" if enough is None else GPU_FAMILIES[enough]),
        (("mix",), _mix(policy.demand_mix)),
        (("filters",), ", ".join(map(_filter_words, policy.filters)) or "none"),
        (("factors",), ", ".join(f"{name} {weight:g}" for name, weight in policy.factors) or "none"),
    )
    for path, value in rows:
        yield EffectiveValue(".".join(path), value, origin(path))


def _filter_words(use: FilterUse) -> str:
    return f"{use.name} (on failure: {'refuse' if use.refuse_on_failure else 'ignore'})"


def _mix(mix: DemandMix) -> str:
    """Return each request with its share of all requests."""
    total = sum(weight for _, weight in mix.wants)
    return ", ".join(f"{_want(want)} {100 * weight / total:.3g}%" for want, weight in mix.wants)


def _want(want: Demand) -> str:
    size = f"{want.gpus} GPU{'s' * (want.gpus > 1)}" if want.gpus else f"{want.share / WHOLE_GPU:g} of a GPU"
    cpu = f" with {want.cpu_milli / 1000:g} cores" if want.cpu_milli else ""
    return size + cpu + ("" if want.products is None else f" on {' or '.join(sorted(want.products))}")


def _weight(placement: PolicyProfile, field: str, plain: float) -> str:
    """Return the weight, and the weights of the workload classes that differ."""
    kinds: dict[str, Weights] = placement.policy.workload_weights._asdict()
    others = [f"{kind} {getattr(each, field):g}" for kind, each in kinds.items() if getattr(each, field) != plain]
    return f"{plain:g}" + (f" ({', '.join(others)})" if others else "")


def _origins(file: PolicyFile | None, at: int) -> Callable[[Path], str]:
    """Return the origin of the values of a profile: its own entry, the defaults, or built in."""

    def origin(path: Path) -> str:
        if file is None:
            return _BUILT_IN
        own: Path = ("profiles", at, *path) if at < len(file.model.profiles) else ("defaults", *path)
        for place in (own, ("defaults", *path)):
            if _is_set(file.model, place):
                return _line(file, place)
        return _BUILT_IN

    return origin


def _line(file: PolicyFile | None, path: Path) -> str:
    assert file is not None
    return f"line {file.positions.position_of(path).line}"


def _is_set(model: Any, path: Path) -> bool:
    """Return whether the file sets a value at that path."""
    for part in path:
        if isinstance(part, int):
            model = model[part]
            continue
        if not isinstance(model, BaseModel):
            return False
        names = {field.alias: name for name, field in type(model).model_fields.items()}
        if names[part] not in model.model_fields_set:
            return False
        model = getattr(model, names[part])
    return model is not None
