"""Credentials -> ``Kube``: of a pod's ServiceAccount, or of a kubeconfig, found as kubectl does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputopo import __version__
from gputopo.kube.client import Kube
from gputopo.kube.errors import ConfigError
from gputopo.kube.rbac import Role
from gputopo.kube.transport import relax_certificate_checks

if TYPE_CHECKING:
    from kubernetes.client import Configuration

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # where the kubelet mounts a pod's token and CA
_MISSING = "no such file"
_NO_FILES = "; --context {!r} needs a kubeconfig: name it with --kubeconfig or KUBECONFIG"
_MAX_NAMED = 20  # contexts in a message
# Errors of the kubernetes package for an invalid kubeconfig, in addition to its documented errors.
_UNUSABLE = (OSError, ValueError, TypeError, AttributeError, RecursionError)


def in_cluster(role: Role, account: Path = ACCOUNT, environ: Mapping[str, str] = os.environ) -> Kube:
    """Connect with this pod's ServiceAccount; a rotated token is read again. Raises ``ConfigError``."""
    from kubernetes.config import ConfigException  # noqa: PLC0415  0.7 s, and most commands need no cluster
    from kubernetes.config.incluster_config import InClusterConfigLoader  # noqa: PLC0415

    configuration = _configuration()
    try:
        InClusterConfigLoader(account / "token", account / "ca.crt", environ=environ).load_and_set(configuration)
    except (ConfigException, OSError) as error:
        raise ConfigError(f"not in a pod with a service account: {error}") from error
    return _kube(configuration, role)


def from_kubeconfig(role: Role, path: str | None = None, context: str | None = None) -> Kube:
    """Connect with a kubeconfig: ``path``, else KUBECONFIG, else ``~/.kube/config``. Raises ``ConfigError``."""
    import yaml  # noqa: PLC0415  the kubernetes package reads files with it, and passes its errors on
    from kubernetes import config  # noqa: PLC0415  0.7 s, and most commands need no cluster

    configuration, where = _configuration(), _kubeconfig(path)
    try:
        config.load_kube_config(config_file=where, context=context, client_configuration=configuration)
    except (config.ConfigException, yaml.YAMLError, *_UNUSABLE) as error:
        # The package validates little: for example, a kubeconfig that is a list raises TypeError in it.
        fault = _fault(where) or _context_fault(where, context) or error
        if fault == _MISSING and context is not None:
            fault += _NO_FILES.format(context)
        raise ConfigError(f"the kubeconfig {where} cannot be used: {fault}") from error
    return _kube(configuration, role)


def _fault(where: str) -> str | None:
    """Return why no file is a kubeconfig; None: the words of the kubernetes package say what is wrong."""
    try:
        files = [file for each in where.split(os.pathsep) if each and (file := Path(each).expanduser()).exists()]
    except (OSError, ValueError, RuntimeError):  # a name that no file can have
        return None
    if not files:
        return _MISSING
    return next(filter(None, map(_content_fault, files)), None)


def _context_fault(where: str, context: str | None) -> str | None:
    """Return that the kubeconfig has no such context, and which it has; None: it has the context, or is not valid."""
    import yaml  # noqa: PLC0415  as above
    from kubernetes import config  # noqa: PLC0415

    from gputopo.render.report import listed  # noqa: PLC0415  only for a message

    try:
        merged = config.kube_config.KubeConfigMerger(where).config
        wanted = context or merged.value.get("current-context")
        names = [str(each["name"]) for each in merged.value["contexts"]]
    except (config.ConfigException, yaml.YAMLError, KeyError, *_UNUSABLE):
        return None
    if not wanted or wanted in names:
        return None
    whose = "it has no context" if context else "its current-context names no context:"
    known = f"its contexts are {listed(list(map(repr, names)), _MAX_NAMED)}" if names else "it has no contexts"
    return f"{whose} {wanted!r}; {known}"


def _content_fault(file: Path) -> str | None:
    import yaml  # noqa: PLC0415  as above

    if not file.is_file():
        return f"{file} is not a file"
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        return f"{file}: {error.strerror}"
    except (ValueError, RecursionError, yaml.YAMLError):
        found = None
    if isinstance(found, dict) and isinstance(found.get("clusters"), list):
        return None
    return f"expected YAML with a list of clusters, as `kubectl config view` prints it; found {_kind(found)}"


def _kind(found: object) -> str:
    return "none" if isinstance(found, dict) else "other text" if found is not None else "no YAML"


def _kubeconfig(path: str | None) -> str:
    """Return the files to read, joined by ":". The kubernetes package looks at KUBECONFIG only when it is imported."""
    return path or os.environ.get("KUBECONFIG") or "~/.kube/config"


def context_names(path: str | None = None) -> list[str]:
    """Return the names of the contexts of a kubeconfig. Raises an error of the kubernetes package."""
    from kubernetes import config  # noqa: PLC0415  as above

    contexts, _ = config.list_kube_config_contexts(config_file=_kubeconfig(path))
    return [str(each["name"]) for each in contexts]


def default_namespace(path: str | None = None, context: str | None = None, account: Path = ACCOUNT) -> str:
    """Return kubectl's default namespace: the context's, else this pod's, else "default"."""
    import yaml  # noqa: PLC0415  as above
    from kubernetes import config  # noqa: PLC0415

    try:
        contexts, current = config.list_kube_config_contexts(config_file=_kubeconfig(path))
        chosen = next((each for each in contexts if each["name"] == context), current)
        return str(chosen["context"].get("namespace") or "default")
    except (config.ConfigException, yaml.YAMLError, *_UNUSABLE):
        try:
            return (account / "namespace").read_text(encoding="utf-8").strip() or "default"
        except OSError:
            return "default"


def connect(role: Role, path: str | None = None, context: str | None = None) -> Kube:
    """Connect as kubectl does: with a kubeconfig if there is any, else with this pod's ServiceAccount."""
    try:
        return from_kubeconfig(role, path, context)
    except ConfigError as no_kubeconfig:
        if path is not None or context is not None:
            raise
        try:
            return in_cluster(role)
        except ConfigError as no_pod:
            raise ConfigError(
                f"no cluster to connect to: {_clause(no_kubeconfig)}; {_clause(no_pod)}. Set KUBECONFIG"
            ) from no_pod


def _clause(error: ConfigError) -> str:
    return str(error).rstrip(".")


def _configuration() -> Configuration:
    from kubernetes.client import Configuration  # noqa: PLC0415  0.7 s, and most commands need no cluster

    configuration: Any = Configuration()
    configuration.retries = False  # the callers retry
    configuration.keep_alive = True  # a load balancer may drop idle connections
    return configuration


def _kube(configuration: Configuration, role: Role) -> Kube:
    from kubernetes.client import ApiClient  # noqa: PLC0415  0.7 s, and most commands need no cluster

    api = ApiClient(configuration)
    relax_certificate_checks(api)
    api.user_agent = f"gputopo-{role.name}/{__version__}"
    return Kube(api, role)
