"""The policy file: YAML -> ``Policies``, with every fault at its line. No I/O.

PolicyError(ValueError)   the file is not one; the message has a line for each fault: where, what, and what is allowed

The models below are what a user may write; their JSON Schema is published as docs/schema/policy.v1alpha1.json.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel

from gputopo.labels.keys import API_GROUP
from gputopo.model import Interconnect
from scheduler_core.policy.demand_mix import WHOLE_GPU, Demand, DemandMix
from scheduler_core.policy.gpu_families import GPU_FAMILIES
from scheduler_core.policy.policy import FillBand, Handling, Policy, WorkloadWeights
from scheduler_core.policy.profiles import BUILT_IN, Policies, PolicyProfile, ProfileMatch, WorkloadClass
from scheduler_core.policy.yaml_positions import Position, YamlPositions
from scheduler_core.request.pod_request import ParsingPolicy, Strength
from scheduler_core.request.workload_type import DETECTION_RULE_NAMES, DETECTION_RULES

API_VERSION = f"{API_GROUP}/v1alpha1"
KIND = "PlacementPolicy"
_DURATION = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)(ms|s|m|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_WORDING = {
    "missing": "is missing",
    "model_type": "should be a mapping of keys to values",
    "dict_type": "should be a mapping of keys to values",
    "tuple_type": "should be a list",
    "too_short": "should name at least one",
}  # where pydantic's own words speak of Python
# Definitions of schema v1alpha1 keep the names and descriptions under which they were published.
_PUBLISHED_DEFINITIONS = {
    WorkloadClass: ("Personality", "What a pod is, for whoever writes a policy."),
    Strength: ("Wish", "How much a pod wants something. Nothing said is None: it is preferred, and weighs as usual."),
}
_SHOWN = 60  # characters of a value that is quoted
_MOST_BYTES = 2**20  # thousands of profiles: they take seconds to read

Weight = Annotated[float, Field(ge=0, le=100, strict=True)]
Share = Annotated[float, Field(gt=0, le=1, strict=True)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=253, strict=True)]


class PolicyFault(NamedTuple):
    """One thing that is wrong."""

    at: Position
    what: str


class PolicyError(ValueError):
    """The text is no policy file."""

    def __init__(self, name: str, faults: Iterable[PolicyFault]) -> None:
        self.faults = tuple(sorted(faults))
        super().__init__("\n".join(f"{name}:{each.at.line}:{each.at.column}: {each.what}" for each in self.faults))


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _seconds(value: object) -> object:
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("should be a duration like 90s, 15m or 1h")
    return float(found[1]) * _UNITS[found[2]]


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
Names = Annotated[
    tuple[Name, ...], BeforeValidator(_listed, json_schema_input_type=Name | tuple[Name, ...]), Field(min_length=1)
]
Personalities = Annotated[
    tuple[WorkloadClass, ...],
    BeforeValidator(_listed, json_schema_input_type=WorkloadClass | tuple[WorkloadClass, ...]),
    Field(min_length=1),
]
Duration = Annotated[float, BeforeValidator(_seconds, json_schema_input_type=str)]


class WeightsModel(_Model):
    """How much each factor counts. What is left out stays as it is; 0 turns a factor off."""

    bandwidth: Weight | None = None
    leftover: Weight | None = None
    numa: Weight | None = None
    nic: Weight | None = None
    health: Weight | None = None
    contiguous: Weight | None = None
    isolation: Weight | None = None
    siblings: Weight | None = None
    packing: Weight | None = None
    spread: Weight | None = None
    utilisation: Weight | None = None
    cost: Weight | None = None
    spot: Weight | None = None
    on_demand: Weight | None = None
    generation: Weight | None = None


class BandModel(_Model):
    """How full the memory of a shared GPU should be."""

    low: Share = 0.7
    high: Share = 0.8

    @model_validator(mode="after")
    def _in_order(self) -> BandModel:
        if self.low > self.high:
            raise ValueError(f"low {self.low} should not be above high {self.high}")
        return self


class GenerationModel(_Model):
    """What counts as new."""

    enough: Family | None = Field(default=None, description="From this GPU family on all are equally good.")


class WantModel(_Model):
    """One kind of request, and how often it comes."""

    weight: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] = Field(
        description="How often it comes, in any unit."
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
    def _of_one_sort(self) -> WantModel:
        if (self.gpus is None) is (self.share is None):
            raise ValueError("should say either gpus or share")
        return self


def _some(wants: tuple[WantModel, ...]) -> tuple[WantModel, ...]:
    """Not by ``min_length``: that counts only items without a fault, and would name two where there is one."""
    if not wants:
        raise ValueError("should name at least one")
    return wants


class SettingsModel(_Model):
    """What a profile decides."""

    weights: WeightsModel = WeightsModel()
    required_topologies: Annotated[tuple[Literal["pcie", "nvlink", "nvswitch"], ...], Field(min_length=1)] | None = (
        Field(default=None, description="What may join the GPUs of a pod that has several. A better one always may.")
    )
    vram: BandModel | None = None
    degraded: Handling | None = Field(default=None, description="GPUs that are worse than they should be.")
    isolation: Strength | None = Field(default=None, description="Training and inference on different nodes.")
    prefer_numa_zero: bool | None = Field(default=None, strict=True)
    shortlist: Annotated[int, Field(ge=1, le=100_000, strict=True)] | None = None
    half_cost: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] | None = Field(
        default=None, description="Cost per GPU and hour that is worth half of what is free."
    )
    generation: GenerationModel | None = None
    mix: Annotated[tuple[WantModel, ...], AfterValidator(_some)] | None = Field(
        default=None, description="What pods usually ask for: what is left over of a node is judged by it."
    )


class MatchModel(_Model):
    """For which pods a profile is: all that is said must hold."""

    scheduler_name: Names | None = None
    namespace: Names | None = None
    personality: Personalities | None = None


class ProfileModel(SettingsModel):
    """One profile. The first that matches a pod counts."""

    name: Name
    match: MatchModel


class StalenessModel(_Model):
    """Nodes of which nobody has confirmed anything for too long. The same for all profiles."""

    after: Duration | None = None
    handling: Handling | None = None


class PersonalityModel(_Model):
    """How pods are recognised."""

    demands: Strength = Field(
        default=Strength.REQUIRED, description="How strong what rules demand is, where a pod says nothing."
    )
    rules: dict[RuleName, Annotated[bool, Field(strict=True)]] = Field(
        default_factory=dict, description="Rules that do not count: false."
    )


class PolicyModel(_Model):
    """A policy file."""

    api_version: Version
    kind: Kind
    staleness: StalenessModel = StalenessModel()
    personality: PersonalityModel = PersonalityModel()
    defaults: SettingsModel = SettingsModel()
    profiles: tuple[ProfileModel, ...] = ()

    @model_validator(mode="after")
    def _names_differ(self) -> PolicyModel:
        names = [each.name for each in self.profiles]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"profiles should have names of their own; several are called {', '.join(twice)}")
        if "default" in names:
            raise ValueError("no profile should be called default: what it is for is said under defaults")
        return self


class PolicyFile(NamedTuple):
    """A file that was read."""

    policies: Policies
    model: PolicyModel
    positions: YamlPositions


def parse_policy_file(text: str, name: str, base: Policy = BUILT_IN.node_policy) -> PolicyFile:
    """The policies in a file's text. ``name``: of the file, for messages. ``base``: what holds where it is silent.

    Raises ``PolicyError``.
    """
    if (size := len(text.encode())) > _MOST_BYTES:
        large = f"this has {size} bytes, and a policy file should have {_MOST_BYTES} at most, as a ConfigMap has"
        raise PolicyError(name, [PolicyFault(Position(1, 1), large)])
    try:
        positions = YamlPositions.parse_yaml(text)
        model = PolicyModel.model_validate({} if positions.value is None else positions.value)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = Position(1, 1) if mark is None else Position(mark.line + 1, mark.column + 1)
        raise PolicyError(name, [PolicyFault(at, f"this is no YAML: {error.problem or error.context}")]) from error
    except ValidationError as error:
        faults = {PolicyFault(positions.position_of(each["loc"]), _fault_text(each)) for each in error.errors()}
        raise PolicyError(name, faults) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that there is not
        raise PolicyError(
            name, [PolicyFault(Position(1, 1), f"this is no YAML: {error}".partition("\n")[0])]
        ) from error
    return PolicyFile(policies_from_model(model, base), model, positions)


def policies_from_model(model: PolicyModel, built_in: Policy) -> Policies:
    """What the model stands for."""
    off = {name for name, counts in model.personality.rules.items() if not counts}
    reading = ParsingPolicy(tuple(rule for rule in DETECTION_RULES if rule.name not in off), model.personality.demands)
    base = _profile(PolicyProfile(built_in), model.defaults)
    stale = {"stale_after_s": model.staleness.after, "stale": model.staleness.handling}
    base = base._replace(policy=base.policy._replace(**_set_values(stale)))
    profiles = [_profile(base, each)._replace(match=_match(each.match)) for each in model.profiles]
    named = [
        placement._replace(policy=placement.policy._replace(name=each.name))
        for placement, each in zip(profiles, model.profiles, strict=True)
    ]
    return Policies((*named, base), reading)


def policy_schema() -> dict[str, Any]:
    """Return the JSON Schema of a policy file, docs/schema/policy.v1alpha1.json."""
    schema = PolicyModel.model_json_schema(by_alias=True, mode="validation")
    definitions = schema["$defs"]
    for kind, (name, description) in _PUBLISHED_DEFINITIONS.items():
        definitions[name] = definitions.pop(kind.__name__) | {"title": name, "description": description}
    schema["$defs"] = dict(sorted(definitions.items()))
    text = json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    for kind, (name, _) in _PUBLISHED_DEFINITIONS.items():
        text = text.replace(f'"#/$defs/{kind.__name__}"', f'"#/$defs/{name}"')
    published: dict[str, Any] = json.loads(text)
    return published


def _profile(base: PolicyProfile, said: SettingsModel) -> PolicyProfile:
    weights = _set_values(said.weights.model_dump())
    kinds = WorkloadWeights(*(each._replace(**weights) for each in base.policy.workload_weights))
    policy = base.policy._replace(
        weights=base.policy.weights._replace(**weights),
        workload_weights=kinds,
        **_set_values(
            {
                "fill_bands": None if said.vram is None else FillBand(said.vram.low, said.vram.high),
                "degraded": said.degraded,
                "prefer_numa_zero": said.prefer_numa_zero,
                "shortlist": said.shortlist,
                "half_cost": said.half_cost,
                "demand_mix": None
                if said.mix is None
                else DemandMix(tuple((_want(each), each.weight) for each in said.mix)),
            }
        ),
    )
    if said.generation is not None:
        enough = said.generation.enough
        policy = policy._replace(enough_generation=None if enough is None else GPU_FAMILIES.index(enough))
    return PolicyProfile(
        policy,
        base.match,
        base.interconnect if said.required_topologies is None else _interconnect(said.required_topologies),
        base.isolation if said.isolation is None else said.isolation,
    )


def _want(said: WantModel) -> Demand:
    return Demand(
        gpus=said.gpus or 0,
        share=0 if said.share is None else max(1, round(WHOLE_GPU * said.share)),
        cpu_milli=round(1000 * said.cpu),
        products=None if said.products is None else frozenset(said.products),
    )


def _interconnect(accepted: tuple[str, ...]) -> Interconnect | None:
    """The least of them: what is better than that is always accepted."""
    if "pcie" in accepted:
        return None
    return Interconnect.NVLINK if "nvlink" in accepted else Interconnect.NVSWITCH


def _match(said: MatchModel) -> ProfileMatch:
    return ProfileMatch(
        frozenset(said.scheduler_name or ()), frozenset(said.namespace or ()), frozenset(said.personality or ())
    )


def _set_values(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _fault_text(error: Any) -> str:
    """One of pydantic's errors, for whoever wrote the file."""
    where = ".".join(str(part) for part in error["loc"] if part != "[key]")
    if error["type"] == "extra_forbidden":
        return f"{where} is not known here; allowed: {', '.join(_fields(error['loc'][:-1]))}"
    if error["type"] in _WORDING:
        return f"{where} {_WORDING[error['type']]}".strip()
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    quoted = repr(error["input"])
    shown = "" if isinstance(error["input"], dict | list | BaseModel) else quoted[:_SHOWN] + " "
    return f"{where}: {shown}{message}".removeprefix(": ")


def _fields(loc: tuple[int | str, ...]) -> list[str]:
    """What may be written at that place."""
    model: Any = PolicyModel
    for part in loc:
        if isinstance(part, str):
            fields = {field.alias: field.annotation for field in model.model_fields.values()}
            model = _model_in(fields[part])
    return [field.alias or "" for field in model.model_fields.values()]


def _model_in(annotation: Any) -> Any:
    """The model in ``Model``, ``Model | None``, ``tuple[Model, ...]`` or what is made of those."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _model_in(each)) is not None), None)
