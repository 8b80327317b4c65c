"""The key ``preemption`` of the policy file, as pydantic models, and its values.

The docstrings and descriptions of the models are part of the published schema.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, get_args
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from scheduler_core.policy.field_types import Count, Duration, FileModel, Name, Namespaces, WorkloadClasses
from scheduler_core.policy.preemption import (
    DEFAULT_PREEMPTION,
    PreemptionMatch,
    PreemptionMode,
    PreemptionPolicy,
    PreemptionRule,
    PreemptionWindow,
)

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = get_args(Day)
_TIME = re.compile(r"(?:([01]\d|2[0-3]):([0-5]\d)|24:00)", re.ASCII)
_MAX_RULES = 64  # each is compared with every running pod

Priority = Annotated[int, Field(ge=-(2**31), le=2**31 - 1, strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Price = Annotated[float, Field(gt=0, le=1_000, allow_inf_nan=False, strict=True)]


def _time_of_day(value: object) -> object:
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError('should be a time of day like "22:00", in quotes')
    return 86_400.0 if found[1] is None else int(found[1]) * 3600.0 + int(found[2]) * 60.0


def _zone(name: str) -> str:
    try:
        if name != "UTC":
            ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:  # of a name that is no path, or of no zone
        raise ValueError("should be a time zone like UTC or Europe/Berlin") from error
    return name


def _mode(value: object) -> object:
    return PreemptionMode.OFF.value if value is False else value  # in YAML 1.1 the word off is a Boolean


Mode = Annotated[PreemptionMode, BeforeValidator(_mode, json_schema_input_type=PreemptionMode | Literal[False])]
TimeOfDay = Annotated[float, BeforeValidator(_time_of_day, json_schema_input_type=str)]


class PreemptionMatchModel(FileModel):
    """Pods on one side of a rule: all given criteria must hold."""

    workload_class: WorkloadClasses | None = None
    namespace: Namespaces | None = None
    min_priority: Priority | None = Field(default=None, description="This priority or a higher one.")
    below_priority: Priority | None = Field(default=None, description="A lower priority than this.")

    @model_validator(mode="after")
    def _check_priorities(self) -> PreemptionMatchModel:
        least, below = self.min_priority, self.below_priority
        if least is not None and below is not None and below <= least:
            raise ValueError(f"belowPriority {below} should be higher than minPriority {least}: no pod matches both")
        return self

    @property
    def match(self) -> PreemptionMatch:
        """Return the values."""
        return PreemptionMatch(
            frozenset(self.workload_class or ()),
            frozenset(self.namespace or ()),
            self.min_priority,
            self.below_priority,
        )


class PreemptionRuleModel(FileModel):
    """Pods that may be evicted for certain gangs. A victim always has a lower priority than the gang."""

    name: Name
    victims: PreemptionMatchModel = Field(
        default=PreemptionMatchModel(), description="The running pods that the rule is for; all if absent."
    )
    beneficiaries: PreemptionMatchModel = Field(
        default=PreemptionMatchModel(), description="The gangs for which they may be evicted; all if absent."
    )
    allow: Flag = Field(default=True, description="false: these victims are never evicted for these gangs.")
    price: Price = Field(default=1.0, description="Factor of the lost work, by which victims are compared.")
    min_runtime: Duration | None = Field(default=None, description="Younger pods stay; default: as for all rules.")
    near_end: Duration | None = Field(default=None, description="Pods that end within this time stay.")
    needs_checkpoints: Flag = Field(default=False, description="Pods that declare that they save no checkpoints stay.")
    max_checkpoint_age: Duration | None = Field(
        default=None, description="Pods whose last checkpoint is older, or not reported, stay."
    )
    honours_never: Flag = Field(
        default=True, description='"Never" annotations of pods are honoured, as far as neverLimit allows.'
    )

    @property
    def rule(self) -> PreemptionRule:
        """Return the values."""
        return PreemptionRule(
            self.name,
            self.victims.match,
            self.beneficiaries.match,
            self.allow,
            self.price,
            self.min_runtime,
            self.near_end,
            self.needs_checkpoints,
            self.max_checkpoint_age,
            self.honours_never,
        )


class PreemptionWindowModel(FileModel):
    """A time of the week in which pods may be evicted."""

    days: Annotated[tuple[Day, ...], Field(min_length=1)] = Field(
        default=DAYS, description="Days on which the window opens."
    )
    opens: TimeOfDay = Field(default=0.0, description='"22:00"; default: midnight.')
    closes: TimeOfDay = Field(default=86_400.0, description='"06:00": on the next day if it is before it opens.')
    zone: Annotated[str, AfterValidator(_zone)] = Field(default="UTC", description="IANA time zone.")

    @model_validator(mode="after")
    def _check_length(self) -> PreemptionWindowModel:
        if self.opens == self.closes or (self.opens, self.closes) == (86_400.0, 0.0):
            raise ValueError("opens and closes should differ")
        return self

    @property
    def window(self) -> PreemptionWindow:
        """Return the values."""
        return PreemptionWindow(frozenset(map(DAYS.index, self.days)), self.opens, self.closes, self.zone)


def _some_windows(value: object) -> object:
    """Refuse an empty list, which could mean at any time, or never."""
    if value in ([], ()):
        raise ValueError(
            "should name at least one window; leave it out to evict pods at any time, or set mode: off to evict none"
        )
    return value


_Windows = Annotated[tuple[PreemptionWindowModel, ...], Field(min_length=1, max_length=64)]
Windows = Annotated[_Windows, BeforeValidator(_some_windows, json_schema_input_type=_Windows)]


class PreemptionModel(FileModel):
    """Which running pods may be evicted for a gang that does not fit."""

    mode: Mode | None = Field(default=None, description="off; dry-run: found victims are only reported; evict.")
    rules: Annotated[tuple[PreemptionRuleModel, ...], Field(max_length=_MAX_RULES)] | None = Field(
        default=None, description="In place of the built-in rules. The first that matches decides; none: pods stay."
    )
    wait: Duration | None = Field(default=None, description="A gang waits so long before pods are evicted for it.")
    min_runtime: Duration | None = Field(
        default=None, description="Younger pods stay, where a rule sets no other time."
    )
    cooldown: Duration | None = Field(default=None, description="A workload is not evicted again for so long.")
    max_evictions_per_hour: Count | None = Field(default=None, description="Pods with GPUs of the whole cluster.")
    windows: Windows | None = Field(
        default=None, description="Pods are evicted only in these times; at any time if absent."
    )
    never_limit: Duration | None = Field(
        default=None, description='A pod\'s "never" annotations protect it for so long after its start.'
    )
    default_checkpoint_age: Duration | None = Field(
        default=None, description="Age of the last checkpoint where too few pods report it."
    )
    default_restart: Duration | None = Field(default=None, description="Time of a restart where a pod reports none.")
    max_lost_work: Duration | None = Field(default=None, description="Lost work per GPU: more does not count.")
    max_grace: Duration | None = Field(default=None, description="An eviction gives a pod at most so long to end.")
    timeout: Duration | None = Field(default=None, description="Refused evictions are retried for so long.")
    max_plans: Annotated[int, Field(ge=1, le=100_000, strict=True)] | None = Field(
        default=None, description="Plans of one search."
    )
    max_search: Duration | None = Field(default=None, description="Time of one search.")

    @model_validator(mode="after")
    def _check_names(self) -> PreemptionModel:
        names = [each.name for each in self.rules or ()]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"rules should have different names; several are called {', '.join(duplicates)}")
        return self


_DURATIONS = {
    "wait": "wait_s",
    "min_runtime": "min_runtime_s",
    "cooldown": "cooldown_s",
    "never_limit": "never_limit_s",
    "default_checkpoint_age": "default_checkpoint_age_s",
    "default_restart": "default_restart_s",
    "max_lost_work": "max_lost_work_s",
    "max_grace": "max_grace_s",
    "timeout": "timeout_s",
    "max_search": "max_search_s",
}
_SAME = {name: name for name in ("mode", "max_evictions_per_hour", "max_plans")}
PREEMPTION_FIELDS = _DURATIONS | _SAME  # by field of the model; beside ``rules`` and ``windows``


def preemption_policy(written: PreemptionModel) -> PreemptionPolicy:
    """Return the values, with the built-in values of what the file does not set."""
    found = {to: value for name, to in PREEMPTION_FIELDS.items() if (value := getattr(written, name)) is not None}
    policy = DEFAULT_PREEMPTION._replace(**found)
    if written.rules is not None:
        policy = policy._replace(rules=tuple(each.rule for each in written.rules))
    if written.windows is not None:
        policy = policy._replace(windows=tuple(each.window for each in written.windows))
    return policy
