"""Start-up of the extender, planner and observer: settings, logs, API server, policy, election. Failures exit."""

from __future__ import annotations

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
def configured(read_settings: Callable[[Flags, Mapping[str, str]], S], flags: Flags) -> Iterator[S]:
    """Read the settings and start logging; stop logging at the end. Exit on an invalid setting."""
    try:
        settings = read_settings(flags, os.environ)
    except SettingError as error:
        fail(str(error))
    ignore_sigpipe()
    sink = logs.start_logging(settings.log, sys.stderr, _PACKAGES, {})
    try:
        yield settings
    finally:
        logs.stop_logging(sink)


def new_identity() -> str:
    """Return an identity that no other process has or had, so that a restarted process gets a new one."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


def connect_or_exit(role: Role) -> Kube:
    """Return a client of the API server. Exit without credentials."""
    try:
        return connect(role)
    except ConfigError as error:
        fail(str(error))


def load_policy(file: Path | None, base: Policy = BUILT_IN.node_policy) -> PolicyReload:
    """Load the policy file; without a file, the built-in policy. Exit if it is invalid. ``base``: the defaults."""
    if file is None:
        return PolicyReload(None, base=base)
    try:
        return PolicyReload(lambda: file.read_text(encoding="utf-8"), str(file), base)
    except PolicyError as error:
        fail(str(error))
    except (OSError, UnicodeDecodeError) as error:
        fail(f"cannot read the policy file {file}: {error}")


@contextmanager
def leader_election(
    lease: LeaseName, identity: str, can_lead: Callable[[], bool] = lambda: True
) -> Iterator[LeaderElector]:
    """Take part in the election within the context. Release the Lease at the end."""
    kube = connect_or_exit(ELECTION)
    elector = LeaderElector(kube, lease, identity, can_lead=can_lead)
    elector.start()
    try:
        yield elector
    finally:
        elector.stop()
        kube.close()
