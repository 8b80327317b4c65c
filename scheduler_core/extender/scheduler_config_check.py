"""Checks a KubeSchedulerConfiguration that calls the extender. Each finding has its reason. Pure.

ConfigurationError(ValueError)    the document is not a KubeSchedulerConfiguration
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from gputopo.durations import parse_duration
from gputopo.labels.keys import SCHEDULER_NAMES
from gputopo.labels.resources import is_gpu
from gputopo.process.decoding import convert
from scheduler_core.extender.scheduler_config import KIND
from scheduler_core.request.device_request import WHOLE

MAX_TIMEOUT_S, MIN_TIMEOUT_S = 5.0, 0.5  # httpTimeout
MIN_QPS = 100.0
# Score plugins and their weights, as kube-scheduler 1.36 and 1.37 have them by default.
SCORE_PLUGINS = {
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "NodeResourcesFit": 1,
    "PodTopologySpread": 2,
    "InterPodAffinity": 2,
    "DynamicResources": 2,
    "NodeResourcesBalancedAllocation": 1,
    "ImageLocality": 1,
}
_BALANCE = "NodeResourcesBalancedAllocation"
_POINTS = 2  # the minimum value of an island: see ``scheduler_config``


class ConfigurationError(ValueError):
    """The document is not a KubeSchedulerConfiguration."""


class Finding(NamedTuple):
    """A missing or wrong value."""

    at: str  # "extenders[0].ignorable"
    what: str  # "is true"
    why: str  # the consequence, and the value to write instead

    def __str__(self) -> str:
        return f"{self.at} {self.what}: {self.why}"


class ManagedResource(msgspec.Struct, frozen=True, rename="camel"):
    """An extended resource that an extender manages."""

    name: str
    ignored_by_scheduler: bool = False


class TlsConfig(msgspec.Struct, frozen=True):
    """The checked part of ``tlsConfig``."""

    insecure: bool = False


class ExtenderConfig(msgspec.Struct, frozen=True, rename={"url_prefix": "urlPrefix", "http_timeout": "httpTimeout"}):
    """An entry of ``extenders``. Absent and null mean the same."""

    url_prefix: str = ""
    filter: str | None = msgspec.field(default=None, name="filterVerb")
    prioritize: str | None = msgspec.field(default=None, name="prioritizeVerb")
    bind: str | None = msgspec.field(default=None, name="bindVerb")
    preempt: str | None = msgspec.field(default=None, name="preemptVerb")
    weight: int = 0
    cache_capable: bool = msgspec.field(default=False, name="nodeCacheCapable")
    ignorable: bool = False
    http_timeout: str | None = None
    tls: TlsConfig | None = msgspec.field(default=None, name="tlsConfig")
    managed: tuple[ManagedResource, ...] | None = msgspec.field(default=None, name="managedResources")

    @property
    def for_gpus(self) -> bool:
        """Return whether kube-scheduler calls it for GPU pods; without managed resources it is called for all pods."""
        return not self.managed or any(is_gpu(each.name) for each in self.managed)


class Plugin(msgspec.Struct, frozen=True):
    """A plugin of a profile. Weight 0: its default."""

    name: str
    weight: int = 0


class PluginSet(msgspec.Struct, frozen=True):
    """The plugins that a profile enables and disables at one extension point."""

    enabled: tuple[Plugin, ...] | None = None
    disabled: tuple[Plugin, ...] | None = None


class Plugins(msgspec.Struct, frozen=True):
    """The extension points at which weights are set."""

    multi_point: PluginSet = msgspec.field(default=PluginSet(), name="multiPoint")
    score: PluginSet = PluginSet()


class PluginArgs(msgspec.Struct, frozen=True):
    """``pluginConfig`` of one plugin."""

    name: str
    args: dict[str, Any] = {}


class SchedulerProfile(msgspec.Struct, frozen=True, rename={"plugin_config": "pluginConfig"}):
    """An entry of ``profiles``."""

    name: str = msgspec.field(default="default-scheduler", name="schedulerName")
    share: int | None = msgspec.field(default=None, name="percentageOfNodesToScore")
    plugins: Plugins = Plugins()
    plugin_config: tuple[PluginArgs, ...] | None = None


class ClientConnection(msgspec.Struct, frozen=True):
    """``clientConnection``."""

    qps: float = 50.0


class SchedulerConfiguration(msgspec.Struct, frozen=True):
    """The checked part of a KubeSchedulerConfiguration."""

    kind: str
    share: int | None = msgspec.field(default=None, name="percentageOfNodesToScore")
    connection: ClientConnection = msgspec.field(default=ClientConnection(), name="clientConnection")
    profiles: tuple[SchedulerProfile, ...] | None = None
    extenders: tuple[ExtenderConfig, ...] | None = None

    @property
    def gpu_profiles(self) -> dict[str, SchedulerProfile]:
        """Return the profiles of GPU pods by their path: gputopo's profiles if present, else all."""
        every = {f"profiles[{place}].": each for place, each in enumerate(self.profiles or ())} or {
            "": SchedulerProfile()
        }
        return {place: each for place, each in every.items() if each.name in SCHEDULER_NAMES} or every


def parse_configuration(document: object) -> SchedulerConfiguration:
    """Return the configuration of a YAML document. Raises ``ConfigurationError``."""
    try:
        found = convert(document, SchedulerConfiguration)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"not a {KIND}: {error}") from error
    if found.kind != KIND:
        raise ConfigurationError(f"not a {KIND} but a {found.kind!r}")
    return found


def check_configuration(configuration: SchedulerConfiguration, resources: Collection[str]) -> tuple[Finding, ...]:
    """Return all findings. ``resources``: all resources of the nodes of the cluster."""
    asked = {place: each for place, each in enumerate(configuration.extenders or ()) if each.for_gpus}
    profiles = configuration.gpu_profiles
    plugins = max(sum(_weights(each.plugins).values()) for each in profiles.values())
    findings = [*_connection(configuration.connection)]
    for at, profile in profiles.items():
        findings += [*_sampling(at, profile, configuration), *_balance(at, profile)]
    if not asked:
        why = "kube-scheduler never calls gputopo; `gputopo scheduler-config` prints the missing part"
        findings.append(Finding("extenders", "has none for GPU pods", why))
    for place, extender in asked.items():
        at = f"extenders[{place}]"
        findings += [Finding(f"{at}.{key}", what, why) for rule in EXTENDER_RULES for key, what, why in rule(extender)]
        findings += [*_weight(at, extender, plugins), *_managed(at, extender, filter(is_gpu, resources))]
    findings += [_duplicate(place) for place in list(asked)[1:]]
    return tuple(findings)


def _connection(connection: ClientConnection) -> Iterator[Finding]:
    if 0 <= connection.qps < MIN_QPS:  # below 0: no limit
        why = f"it limits the pods per second; set {MIN_QPS:g} or more"
        yield Finding("clientConnection.qps", f"is {connection.qps or 50:g}", why)


def _sampling(at: str, profile: SchedulerProfile, configuration: SchedulerConfiguration) -> Iterator[Finding]:
    share = configuration.share if profile.share is None else profile.share
    if share != 100:
        place = at if profile.share is not None else ""
        why = "the extender sees a rotating sample of the nodes, and pods wait although an island is free; set 100"
        yield Finding(f"{place}percentageOfNodesToScore", "is not set" if share is None else f"is {share}", why)


def _balance(at: str, profile: SchedulerProfile) -> Iterator[Finding]:
    weights = _weights(profile.plugins)
    of_fit = [each.args for each in profile.plugin_config or () if each.name == "NodeResourcesFit"]
    strategy = (of_fit[0].get("scoringStrategy") or {}) if of_fit else {}
    kind = strategy.get("type", "LeastAllocated")
    names = [each.get("name", "") for each in strategy.get("resources") or ({"name": "cpu"}, {"name": "memory"})]
    if weights.get("NodeResourcesFit") and (kind != "MostAllocated" or {"cpu", "memory", WHOLE}.intersection(names)):
        why = "it works against gputopo's choice of nodes; set MostAllocated, with shares and MIG devices only"
        what = f"is {kind} by {', '.join(names)}"
        yield Finding(f"{at}pluginConfig NodeResourcesFit scoringStrategy", what, why)
    given = [each.args for each in profile.plugin_config or () if each.name == _BALANCE]
    resources = (given[0].get("resources") or ()) if given else ()
    if not weights.get(_BALANCE) or all(each.get("name") != WHOLE for each in resources):
        what = f"has no {WHOLE}" if weights.get(_BALANCE) else "is disabled"
        why = f"nodes of equal score are chosen at random, and GPUs remain without CPU or memory; add {WHOLE}"
        yield Finding(f"{at}pluginConfig {_BALANCE} resources", what, why)


def _weight(at: str, extender: ExtenderConfig, plugins: int) -> Iterator[Finding]:
    # score x weight x 10, against 100 x the weight of each plugin
    least = plugins * 100 // (10 * _POINTS) + 1
    if extender.weight < least:
        why = f"the plugins, {plugins * 100}, outweigh an island of {_POINTS} points x weight x 10; set {least} or more"
        yield Finding(f"{at}.weight", f"is {extender.weight}", why)


def _managed(at: str, extender: ExtenderConfig, resources: Iterable[str]) -> Iterator[Finding]:
    at = f"{at}.managedResources"
    listed = extender.managed or ()
    if not listed:
        yield Finding(at, "is empty", "every pod goes through the extender, and waits while it is down")
        return
    for name in sorted(set(resources) - {each.name for each in listed}):
        yield Finding(at, f"has no {name}", "nodes have it, and pods that request it are placed without the extender")
    for each in listed:
        if each.ignored_by_scheduler:
            why = "kube-scheduler does not count it, and puts more pods on a node than it has GPUs; set false"
            yield Finding(at, f"has {each.name} with ignoredByScheduler", why)


def _duplicate(place: int) -> Finding:
    why = "kube-scheduler rejects two extenders for one resource; remove one of them"
    return Finding(f"extenders[{place}]", "is called for GPU pods too", why)


Wrong = tuple[str, str, str]  # key, ``Finding.what``, ``Finding.why``


def _verbs(extender: ExtenderConfig) -> Iterator[Wrong]:
    for verb, configured in (("filter", extender.filter), ("prioritize", extender.prioritize)):
        if configured != verb:
            yield f"{verb}Verb", f"is {configured or 'not set'}", f"the extender answers {verb!r}"
    if extender.preempt != "preempt":
        why = "kube-scheduler deletes pods whose GPUs do not help the pod that preempts; set 'preempt'"
        yield "preemptVerb", f"is {extender.preempt or 'not set'}", why
    if extender.bind:
        yield "bindVerb", "is set", "the extender does not have this verb; remove it"


def _flags(extender: ExtenderConfig) -> Iterator[Wrong]:
    if not extender.cache_capable:
        why = "kube-scheduler sends megabytes per pod, and scores every node as if it were idle; set true"
        yield "nodeCacheCapable", "is not true", why
    if extender.ignorable:
        why = "while the extender is down or starts, GPU pods are placed without topology and break islands; set false"
        yield "ignorable", "is true", why


def _timeout(extender: ExtenderConfig) -> Iterator[Wrong]:
    seconds = MAX_TIMEOUT_S if extender.http_timeout is None else parse_duration(extender.http_timeout)
    if seconds is None or not MIN_TIMEOUT_S <= seconds <= MAX_TIMEOUT_S:
        why = (
            f"a slow answer stops all scheduling for that time; with a short timeout, pods fail under load; set "
            f"{MIN_TIMEOUT_S:g}s to {MAX_TIMEOUT_S:g}s"
        )
        yield "httpTimeout", f"is {extender.http_timeout}", why


def _transport(extender: ExtenderConfig) -> Iterator[Wrong]:
    if re.match(r"http://(127\.|localhost\b|\[::1\])", extender.url_prefix):
        return
    if not extender.url_prefix.startswith("https://"):
        why = "beyond loopback, other servers could answer for the extender or read its answers; use https"
        yield "urlPrefix", f"is {extender.url_prefix or 'not set'}", why
    if extender.tls is not None and extender.tls.insecure:
        yield "tlsConfig.insecure", "is true", "other servers could answer for the extender; set its CA in caFile"


EXTENDER_RULES: tuple[Callable[[ExtenderConfig], Iterator[Wrong]], ...] = (_verbs, _flags, _timeout, _transport)


def _weights(plugins: Plugins) -> dict[str, int]:
    """Return the weights of the score plugins of a profile."""
    weights = dict(SCORE_PLUGINS)
    for section, every_scores in ((plugins.multi_point, False), (plugins.score, True)):
        for gone in section.disabled or ():
            weights = {} if gone.name == "*" else {name: each for name, each in weights.items() if name != gone.name}
        for each in section.enabled or ():
            if every_scores or each.weight or each.name in SCORE_PLUGINS:
                weights[each.name] = each.weight or SCORE_PLUGINS.get(each.name, 1)
    return weights
