"""``gputopo extender``: its options, read into settings. The program itself, ``main``, is imported when it is run.

Exit codes: 0 told to end; 1 an error of its own; 2 bad usage, no credentials, or an address or certificate that cannot
be used.
"""

from __future__ import annotations

import click

from gputopo.process.settings import command_options
from scheduler_core.extender import settings
from scheduler_core.runtime.bootstrap import configured


@click.command()
@command_options(settings.TABLE)
def extender(**flags: str | None) -> None:
    """Serve kube-scheduler: which nodes suit a GPU pod, and how well.

    It watches nodes, pods and NodeGpus, and answers filter and prioritize from what it knows. It changes nothing in
    the cluster but to write an Event on a pod whose required shape did not hold, and in the ledger of a planner what
    it vouches for. `gputopo scheduler-config` prints the KubeSchedulerConfiguration that calls it. KUBECONFIG names
    the cluster where it does not run in one.

    \b
    Examples:
      gputopo extender                                           beside kube-scheduler, in one pod
      KUBECONFIG=~/.kube/config gputopo extender --log text      try it from outside; nothing calls it
      curl 'localhost:9439/decisions?last=1' | jq .              what it decided last
    """
    from scheduler_core.extender.main import serve_forever  # noqa: PLC0415  needs the extra "cluster", --help does not

    with configured(settings.read_settings, flags) as read:
        serve_forever(read)
