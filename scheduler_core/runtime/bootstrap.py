"""How a command that follows the cluster begins, and how it ends where it cannot: for the extender and the planner."""

from __future__ import annotations

import logging
import os
import socket
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from gputopo.kube.client import Kube
from gputopo.kube.connect import connect
from gputopo.kube.errors import ConfigError
from gputopo.kube.rbac import ELECTION, Role
from gputopo.process import logs
from gputopo.process.daemon import fail, ignore_sigpipe
from gputopo.process.settings import SettingError
from scheduler_core.policy.file import PolicyError
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.policy.reload import PolicyReload
from scheduler_core.runtime.leader_election import LeaderElector, LeaseName

_PACKAGES = ("scheduler_core", "gputopo", "uvicorn", "asyncio")


class _Logged(Protocol):
    @property
    def log(self) -> str: ...


S = TypeVar("S", bound=_Logged)
Flags = Mapping[str, str | None]


@contextmanager
def configured(read: Callable[[Flags, Mapping[str, str]], S], flags: Flags) -> Iterator[S]:
    """Its settings; within, it logs as they say. Ends the process where one cannot be used."""
    try:
        settings = read(flags, os.environ)
    except SettingError as error:
        fail(str(error))
    ignore_sigpipe()
    sink = logs.start_logging(settings.log, sys.stderr, _PACKAGES, {})
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # it warns of every peer that is no HTTP client
    try:
        yield settings
    finally:
        logs.stop_logging(sink)


def new_identity() -> str:
    """One that no other process has or had: one that was started again must not be taken for the one before."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


def connect_or_exit(role: Role) -> Kube:
    """The API server; ends the process where there are no credentials for it."""
    try:
        return connect(role)
    except ConfigError as error:
        fail(str(error))


def load_policy(file: Path | None, base: Policy = BUILT_IN.node_policy) -> PolicyReload:
    """What the owner decides; ends the process where the file is none. ``base``: what holds where it is silent."""
    if file is None:
        return PolicyReload(None, base=base)
    try:
        return PolicyReload(lambda: file.read_text(encoding="utf-8"), str(file), base)
    except PolicyError as error:
        fail(str(error))
    except (OSError, UnicodeDecodeError) as error:
        fail(f"cannot read the policy file {file}: {error}")


@contextmanager
def leader_election(lease: LeaseName, me: str, fit: Callable[[], bool] = lambda: True) -> Iterator[LeaderElector]:
    """Within, it takes part in the election. The Lease is let go at the end, so that nobody waits for it to run out."""
    kube = connect_or_exit(ELECTION)
    leader = LeaderElector(kube, lease, me, fit=fit)
    leader.start()
    try:
        yield leader
    finally:
        leader.stop()
        kube.close()
