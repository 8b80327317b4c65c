"""The format of the policy file, as pydantic models, and its JSON Schema (docs/schema/policy.v1alpha1.json).

The docstrings and descriptions of the models are part of the published schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    create_model,
    model_validator,
)

from gputopo.labels.keys import API_GROUP
from gputopo.quantities import parse_mib
from scheduler_core.policy.extensions import FACTORS_GROUP, FILTERS_GROUP, Extension, installed_extensions
from scheduler_core.policy.factors import FACTORS
from scheduler_core.policy.field_types import Count, Duration, FileModel, Name, Names, Namespaces, WorkloadClasses
from scheduler_core.policy.gpu_families import GPU_FAMILIES
from scheduler_core.policy.limits import DEFAULT_BACKFILL, BackfillMode, BackfillPolicy, GpuLimit
from scheduler_core.policy.policy import Handling
from scheduler_core.policy.preemption_models import PreemptionModel
from scheduler_core.policy.workload_class import WorkloadClass
from scheduler_core.request.pod_request import Strength
from scheduler_core.request.workload_type import DETECTION_RULE_NAMES

API_VERSION = f"{API_GROUP}/v1alpha1"
KIND = "PlacementPolicy"
# The descriptions of enums in the published schema.
_DESCRIPTIONS: dict[type[Enum], str] = {
    Handling: "How degraded nodes are handled.",
    WorkloadClass: "The workload class of a pod.",
    Strength: "How strongly a pod requires a property. None: it is preferred, with the usual weight.",
}
OLD_KEY, NEW_KEY = "personality", "workloadClass"  # files with the old key stay valid in 0.x
_PERCENT = re.compile(r"(\d{1,3})%", re.ASCII)

Weight = Annotated[float, Field(ge=0, le=100, strict=True)]
Share = Annotated[float, Field(gt=0, le=1, strict=True)]

_MOST_MEMORY_MIB = 1 << 24  # 16 TiB; more than any GPU has


def _gpu_limit(value: object) -> GpuLimit:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return GpuLimit(value)
    percent = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if percent is None or int(percent[1]) > 100:
        raise ValueError("should be a number of GPUs like 64, or a share of all GPUs like 50%")
    return GpuLimit(percent=int(percent[1]))


def _among(words: Sequence[str]) -> Callable[[str], str]:
    def check(word: str) -> str:
        if word not in words:
            raise ValueError(f"should be one of {', '.join(words)}" if len(words) > 1 else f"should be {words[0]}")
        return word

    return check


def _enum(words: Sequence[str]) -> Any:
    return Field(json_schema_extra={"enum": list(words)})


Version = Annotated[str, AfterValidator(_among((API_VERSION,))), _enum((API_VERSION,))]
Kind = Annotated[str, AfterValidator(_among((KIND,))), _enum((KIND,))]
Family = Annotated[str, AfterValidator(_among(GPU_FAMILIES)), _enum(GPU_FAMILIES)]
RuleName = Annotated[str, AfterValidator(_among(DETECTION_RULE_NAMES)), _enum(DETECTION_RULE_NAMES)]
# Any: the validator returns a GpuLimit.
HeldGpus = Annotated[Any, BeforeValidator(_gpu_limit, json_schema_input_type=int | str)]


if TYPE_CHECKING:
    WeightsModel = FileModel
else:
    WeightsModel = create_model(
        "WeightsModel",
        __base__=FileModel,
        __doc__="The weight of each factor. A factor that is left out keeps its weight; 0 turns it off.",
        **dict.fromkeys(FACTORS, (Weight | None, None)),
    )


class BandModel(FileModel):
    """The target fill level of the memory of a shared GPU."""

    low: Share = 0.7
    high: Share = 0.8

    @model_validator(mode="after")
    def _check_order(self) -> BandModel:
        if self.low > self.high:
            raise ValueError(f"low {self.low} should not be above high {self.high}")
        return self


class GenerationModel(FileModel):
    """The GPU generations that count as new."""

    enough: Family | None = Field(default=None, description="From this GPU family on all are equally good.")


class WantModel(FileModel):
    """A kind of request, and its frequency."""

    weight: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] = Field(
        description="The frequency of such requests, in any unit."
    )
    gpus: Annotated[int, Field(ge=1, le=1024, strict=True)] | None = Field(default=None, description="Whole GPUs.")
    share: Annotated[float, Field(gt=0, lt=1, strict=True)] | None = Field(
        default=None, description="Of one GPU, where pods share them."
    )
    cpu: Annotated[float, Field(ge=0, le=4096, strict=True)] = Field(
        default=0.0, description="Cores of the whole pod; 0: as many as there are do."
    )
    products: Names | None = Field(
        default=None, description="GPUs that will do, as gpu-model names them; all if absent."
    )

    @model_validator(mode="after")
    def _check_size(self) -> WantModel:
        if (self.gpus is None) is (self.share is None):
            raise ValueError("should set either gpus or share")
        return self


def _check_not_empty(wants: tuple[WantModel, ...]) -> tuple[WantModel, ...]:
    """Instead of ``min_length``, which counts only valid items and would report one fault twice."""
    if not wants:
        raise ValueError("should name at least one")
    return wants


def _check_memory(text: str) -> str:
    found = parse_mib(text)
    if not found or found > _MOST_MEMORY_MIB:
        raise ValueError("should be an amount of GPU memory above 0, or left out; example: 40Gi")
    return text


def _filter_name(name: str) -> str:
    return _installed(name, installed_extensions().filters, FILTERS_GROUP)


def _factor_name(name: str) -> str:
    return _installed(name, installed_extensions().factors, FACTORS_GROUP)


def _installed(name: str, extensions: dict[str, Extension], group: str) -> str:
    found = extensions.get(name)
    if found is None:
        names = ", ".join(extensions) or "none"
        raise ValueError(f"should be an installed entry point of the group {group}; installed: {names}")
    if found.error is not None:
        raise ValueError(f"cannot be used: {found.error}")
    return name


FilterName = Annotated[Name, AfterValidator(_filter_name)]
FactorName = Annotated[Name, AfterValidator(_factor_name)]


class FilterModel(FileModel):
    """A filter of an installed Python package."""

    name: FilterName = Field(description="An entry point of the group gputopo.filters.")
    on_failure: Literal["refuse", "ignore"] = Field(
        default="refuse", description="What a node counts as if the function raises, is too slow, or is disabled."
    )


class SettingsModel(FileModel):
    """The settings of a profile."""

    weights: WeightsModel = WeightsModel()
    required_topologies: Annotated[tuple[Literal["pcie", "nvlink", "nvswitch"], ...], Field(min_length=1)] | None = (
        Field(
            default=None,
            description="Accepted interconnects between the GPUs of a pod. A better one is always accepted.",
        )
    )
    min_vram: Annotated[str, AfterValidator(_check_memory)] | None = Field(
        default=None, description="Memory that each GPU of a pod must have: 40Gi. A pod may require more.", strict=True
    )
    vram: BandModel | None = None
    degraded: Handling | None = Field(default=None, description="The handling of degraded GPUs.")
    isolation: Strength | None = Field(default=None, description="Training and inference on different nodes.")
    prefer_numa_zero: bool | None = Field(
        default=None, description="On nodes that only labels describe, prefer GPUs on NUMA node 0.", strict=True
    )
    shortlist: Annotated[int, Field(ge=1, le=100_000, strict=True)] | None = Field(
        default=None,
        description="The maximum number of suitable nodes that the extender returns for a pod, best first.",
    )
    half_cost: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] | None = Field(
        default=None, description="Cost per GPU and hour that is worth half of what is free."
    )
    generation: GenerationModel | None = None
    mix: Annotated[tuple[WantModel, ...], AfterValidator(_check_not_empty)] | None = Field(
        default=None, description="The usual requests of pods: free capacity that they cannot use counts as a fragment."
    )
    filters: Annotated[tuple[FilterModel, ...], Field(max_length=16)] | None = Field(
        default=None, description="Filters of installed Python packages, after gputopo's own."
    )
    factors: Annotated[dict[FactorName, Weight], Field(max_length=16)] | None = Field(
        default=None, description="Score factors of installed Python packages: entry points of gputopo.factors."
    )


class MatchModel(FileModel):
    """The pods that a profile applies to: all given criteria must hold."""

    scheduler_name: Names | None = None
    namespace: Namespaces | None = None
    workload_class: WorkloadClasses | None = None


class ProfileModel(SettingsModel):
    """A profile. The first profile that matches a pod applies."""

    name: Name
    match: MatchModel


class StalenessModel(FileModel):
    """Nodes with a topology that was not confirmed for too long. The same for all profiles."""

    after: Duration | None = None
    handling: Handling | None = None


class WorkloadClassModel(FileModel):
    """How the workload class of a pod is recognized."""

    demands: Strength = Field(
        default=Strength.REQUIRED, description="The strength of the requirements of rules, where a pod sets none."
    )
    rules: dict[RuleName, Annotated[bool, Field(strict=True)]] = Field(
        default_factory=dict, description="false turns a rule off."
    )


class NamespaceLimitsModel(FileModel):
    """The limits of the gangs of one namespace."""

    held_gpus: HeldGpus | None = Field(
        default=None, description="GPUs in capacity holds: a number, or a share of all GPUs (at least 16) like 50%."
    )
    queued_gangs: Count | None = Field(
        default=None, description="Gangs and single pods that are planned. More wait until one of them has started."
    )
    gated_pods: Count | None = Field(default=None, description="Pods of these gangs.")
    starting_gangs: Count | None = Field(
        default=None,
        description="Gangs that have places and are not bound yet. Single pods that are planned together count as one.",
    )


class NamedLimitsModel(NamespaceLimitsModel):
    """Limits of these namespaces."""

    name: Namespaces


class GangLimitsModel(NamespaceLimitsModel):
    """Limits of gangs, for each namespace."""

    max_hold_age: Duration | None = Field(
        default=None,
        description="A capacity hold ends at this age; then its namespace gets no hold of this priority for as long.",
    )
    max_timeout: Duration | None = Field(
        default=None,
        description="A gang that asks for a longer gang-timeout is rolled back after this time.",
    )
    namespaces: tuple[NamedLimitsModel, ...] = Field(default=(), description="Other limits of some namespaces.")

    @model_validator(mode="after")
    def _check_names(self) -> GangLimitsModel:
        names = [name for each in self.namespaces for name in each.name]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"namespaces should name each namespace once; named several times: {', '.join(duplicates)}"
            )
        return self


def _backfill_mode(value: object) -> object:
    return BackfillMode.OFF.value if value is False else value  # in YAML 1.1 the word off is a Boolean


class BackfillModel(FileModel):
    """Which gangs may use capacity that is held for another gang, until that gang can start."""

    mode: (
        Annotated[BackfillMode, BeforeValidator(_backfill_mode, json_schema_input_type=BackfillMode | Literal[False])]
        | None
    ) = Field(
        default=None,
        description="off; deadline: gangs whose pods have an activeDeadlineSeconds that ends them in time; estimate: "
        "also gangs that only say how long they run, which are evicted in time.",
    )
    max_grace: Duration | None = Field(
        default=None, description="Pods with a longer grace period use no held capacity."
    )

    @property
    def policy(self) -> BackfillPolicy:
        """Return the values, with the built-in values of what the file does not set."""
        built_in = DEFAULT_BACKFILL
        grace = built_in.max_grace_s if self.max_grace is None else self.max_grace
        return BackfillPolicy(self.mode or built_in.mode, grace)


class PolicyModel(FileModel):
    """A policy file."""

    api_version: Version
    kind: Kind
    staleness: StalenessModel = StalenessModel()
    workload_class: WorkloadClassModel = WorkloadClassModel()
    gangs: GangLimitsModel = GangLimitsModel()
    preemption: PreemptionModel = PreemptionModel()
    backfill: BackfillModel = BackfillModel()
    defaults: SettingsModel = SettingsModel()
    profiles: tuple[ProfileModel, ...] = ()

    @model_validator(mode="after")
    def _check_names(self) -> PolicyModel:
        names = [each.name for each in self.profiles]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"profiles should have different names; several are called {', '.join(duplicates)}")
        if "default" in names:
            raise ValueError("no profile should be called default: set its values under defaults")
        return self


def policy_schema() -> dict[str, Any]:
    """Return the JSON Schema of a policy file."""
    found = PolicyModel.model_json_schema(by_alias=True, mode="validation")
    for enum, description in _DESCRIPTIONS.items():
        found["$defs"][enum.__name__]["description"] = description
    for mapping in (found, found["$defs"]["MatchModel"]):
        mapping["properties"][OLD_KEY] = mapping["properties"][NEW_KEY] | {"deprecated": True}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}
