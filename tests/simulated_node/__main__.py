"""Simulated GPU nodes in any cluster: ``python -m tests.simulated_node --nodes 20``.

For a development cluster, by default through ``kubectl proxy`` of somebody who may impersonate (an administrator). The
nodes register, send heartbeats and run what is bound to them until this program is interrupted; then they leave.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from tests.api_client import Client
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import SHAPES

HEARTBEAT_S = 10.0  # as kubelets do; the node lifecycle controller allows 40


def main(arguments: list[str]) -> int:
    """Run until SIGINT or SIGTERM."""
    options = _parser().parse_args(arguments)
    token = options.token_file.read_text().strip() if options.token_file else None
    api = Client(options.server, options.certificate_authority, token=token)
    shape = SHAPES[options.shape]()
    with Fleet(api, seed=options.seed, heartbeat_s=HEARTBEAT_S) as fleet:
        try:
            names = [f"{options.prefix}{number}" for number in range(options.nodes)]
            for node in fleet.add(*(NodeSpec(name=name, shape=shape) for name in names)):
                print(node.name, node.socket, node.snapshot, flush=True)
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
        finally:
            fleet.unregister()
    api.close()
    for failure in fleet.failures[:5]:
        print(failure, file=sys.stderr)
    return 1 if fleet.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulated_node", description=__doc__)
    parser.add_argument("--server", default="http://127.0.0.1:8001", help="the API server; default: kubectl proxy")
    parser.add_argument("--certificate-authority", type=Path, help="PEM file, for a server with https")
    parser.add_argument("--token-file", type=Path, help="bearer token, where no proxy authenticates")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--shape", choices=list(SHAPES), default="islands-4-4")
    parser.add_argument("--prefix", default="gputopo-sim-", help="of the names of the nodes")
    parser.add_argument("--seed", type=int, default=0, help="of the random choices")
    return parser


if __name__ == "__main__":
    # Before any thread starts: a blocked signal is one that sigwait receives, whichever thread it is sent to.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    sys.exit(main(sys.argv[1:]))
