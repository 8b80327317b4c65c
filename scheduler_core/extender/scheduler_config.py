"""Generates the KubeSchedulerConfiguration that calls the extender. Pure.

The weight of the extender follows from the arithmetic of kube-scheduler: the extender's score of a node, 0 to 10,
counts ``score x weight x 10``; each plugin counts 0 to 100 times its own weight. In the second scheduler's profile the
plugins add up to 3 + 2 + 1 + 2 + 2 + 1 + 1 + 2 = 14, so to 1400 at most. At weight 75 a point is 750:

* two points, 1500, are more than all plugins together, and a pair of GPUs on 600 GB/s of NVLink instead of on PCIe is
  worth more than two: 4 of 10 parts x (600 / (600 + 300) - 0.1) x 10 = 2.3. So no plugin outweighs an island;
* one point, a matter of NUMA or of a NIC, is more than the default preferences of plugins (NodeResourcesFit,
  NodeResourcesBalancedAllocation and ImageLocality, 100 each) and each single preference of the pod (200), and less
  than all preferences of pod and administrator together;
* at equal points, the plugins decide: they balance CPU, memory and GPUs of a node. The points already include which
  nodes to fill, except for shares and MIG devices: for these, NodeResourcesFit fills nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum

from gputopo.labels.keys import GPU_RESOURCES, SCHEDULER_NAME, SCHEDULER_NAMES
from gputopo.labels.resources import is_gpu
from scheduler_core.request.device_request import WHOLE

API_VERSION = "kubescheduler.config.k8s.io/v1"
KIND = "KubeSchedulerConfiguration"
LOOPBACK = "http://127.0.0.1:9440"
NAMESPACE = "gputopo"
SERVICE = f"gputopo-extender.{NAMESPACE}.svc"
WEIGHT = 75
TIMEOUT_S = 3  # answers take milliseconds; each second is one in which that scheduler schedules nothing


class Caller(Enum):
    """The kube-scheduler that calls the extender."""

    SECOND = "second"  # a second kube-scheduler, in the same pod
    CLUSTER = "cluster"  # the cluster's, through a Service


def managed_resources(resources: Iterable[str]) -> tuple[str, ...]:
    """Return these GPU resources and the resources that any cluster may get, in a stable order."""
    others = sorted({each for each in resources if is_gpu(each)} - set(GPU_RESOURCES))
    return (*GPU_RESOURCES, *others)


def render_configuration(
    resources: Collection[str],
    caller: Caller = Caller.SECOND,
    namespace: str = NAMESPACE,
    *,
    quality_and_cost: bool = False,
) -> str:
    """Return the file as YAML, with comments.

    ``resources``: all resources of the nodes of the cluster. ``namespace``: of scheduler and extender.
    ``quality_and_cost``: with the scheduler names of the policy in ``policy.quality_and_cost``, too.
    """
    names = managed_resources(resources)
    balanced = "\n".join(f"            - {{name: {name}, weight: 1}}" for name in (*names, "cpu", "memory"))
    packed = "\n".join(f"              - {{name: {name}, weight: 1}}" for name in names if name != WHOLE)
    listed = "\n".join(f"      - {{name: {name}, ignoredByScheduler: false}}" for name in names)
    scoring = _SCORING.format(balanced=balanced, packed=packed)
    profiles = SCHEDULER_NAMES if quality_and_cost else (SCHEDULER_NAME,)
    return _FRAMES[caller].format(
        type=f"apiVersion: {API_VERSION}\nkind: {KIND}",
        name=SCHEDULER_NAME,
        loopback=LOOPBACK,
        service=f"gputopo-extender.{namespace}.svc",
        namespace=namespace,
        profiles="\n".join(_PROFILES[caller].format(name=name, scoring=scoring) for name in profiles),
        behaviour=_BEHAVIOUR.format(weight=WEIGHT, timeout=TIMEOUT_S, listed=listed),
    )


_SECOND = """\
# Printed by `gputopo scheduler-config`; docs/scheduler.md explains the values.
{type}
leaderElection:
  leaderElect: true
  resourceName: {name}
  resourceNamespace: {namespace}
clientConnection: # the default of 50 and 100 limits a scheduler to 54 pods a second
  qps: 500
  burst: 1000
percentageOfNodesToScore: 100 # a smaller sample may miss the only free island
profiles:
{profiles}
extenders:
  - urlPrefix: {loopback}
{behaviour}"""

_CLUSTER = """\
# For the cluster's own kube-scheduler: merge this into the file of its --config. GPU pods use the profile {name}
# (spec.schedulerName); pods without GPUs keep their profile and its sampling of nodes.
{type}
clientConnection: # the default of 50 and 100 limits a scheduler to 54 pods a second
  kubeconfig: /etc/kubernetes/scheduler.conf
  qps: 500
  burst: 1000
profiles:
  - schedulerName: default-scheduler
{profiles}
extenders:
  # The address of the Service: `kubectl -n {namespace} get service gputopo-extender`. kube-scheduler runs in the
  # network of its host, which cannot resolve names of Services; serverName is the name in the certificate.
  - urlPrefix: https://SERVICE_ADDRESS:9440
    enableHTTPS: true
    tlsConfig:
      serverName: {service}
      caFile: /etc/kubernetes/gputopo/ca.crt
      certFile: /etc/kubernetes/gputopo/tls.crt
      keyFile: /etc/kubernetes/gputopo/tls.key
{behaviour}"""

_SCORING = """\
    pluginConfig:
      - name: NodeResourcesBalancedAllocation # of equal nodes, prefer balanced use of GPUs, CPU and memory
        args:
          resources:
{balanced}
      - name: NodeResourcesFit
        args:
          scoringStrategy: # full nodes first where gputopo has no preference: not by whole GPUs or CPU
            type: MostAllocated
            resources:
{packed}
      - name: PodTopologySpread
        args:
          defaultingType: List # the default spreads the pods of every ReplicaSet over nodes
          defaultConstraints: []"""

_BEHAVIOUR = """\
    filterVerb: filter
    prioritizeVerb: prioritize
    preemptVerb: preempt # without it, kube-scheduler deletes pods whose GPUs do not help the pod that preempts
    weight: {weight} # two points outweigh all plugins together
    nodeCacheCapable: true # node names only; false sends megabytes per pod, and nodes are scored as if they were idle
    ignorable: false # true would ignore topology and reservations while the extender starts
    httpTimeout: {timeout}s # blocks the whole scheduling loop; answers take milliseconds
    managedResources: # exact list, generated by `gputopo scheduler-config` from the nodes
{listed}
"""

_FRAMES = {Caller.SECOND: _SECOND, Caller.CLUSTER: _CLUSTER}
_PROFILES = {
    Caller.SECOND: "  - schedulerName: {name}\n{scoring}",
    Caller.CLUSTER: (
        "  - schedulerName: {name}\n"
        "    percentageOfNodesToScore: 100 # a smaller sample may miss the only free island\n{scoring}"
    ),
}
