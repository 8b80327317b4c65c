"""``gputopo extender``: its options. The command imports the program, ``main``, only to run it.

Exit codes: 0 terminated by a signal; 1 internal error; 2 bad usage, no credentials, or an unusable address or
certificate.
"""

from __future__ import annotations

import click

from gputopo.process.settings import command_options
from scheduler_core.extender import settings
from scheduler_core.runtime.bootstrap import configured


@click.command()
@command_options(settings.ExtenderSettings)
def extender(**flags: str | None) -> None:
    """Serve kube-scheduler as an HTTP extender: filter and score nodes for GPU pods.

    The extender watches nodes, pods and NodeGpus, and answers filter and prioritize from this cache. It writes only
    two things to the cluster: an Event on a pod whose required shape does not hold, and its acknowledgements in the
    ledgers of planners. `gputopo scheduler-config` prints the KubeSchedulerConfiguration that calls it.

    The cluster is that of KUBECONFIG or ~/.kube/config if that file exists, also in a pod; else, in a pod, that of its
    ServiceAccount. For another context, set the kubeconfig's current context.

    \b
    Examples:
      gputopo extender                                           in the pod of kube-scheduler
      KUBECONFIG=~/.kube/config gputopo extender --log text      try it from outside the cluster
      curl 'localhost:9439/decisions?last=1' | jq .              show the last decision
    """
    from scheduler_core.extender.main import serve_forever  # noqa: PLC0415  needs the extra "cluster", --help does not

    with configured(settings.read_settings, flags) as found:
        serve_forever(found)
