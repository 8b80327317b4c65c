"""Settings of ``gputopo ui-server``. ``gputopo.process.settings`` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from gputopo.kube.page_reviews import AUDIENCE
from gputopo.process import settings
from gputopo.process.settings import LOG_HELP, Setting, SettingError, log_setting, parse_required_address
from scheduler_core.runtime.tls import (
    TLS_CERT_HELP,
    TLS_CERT_SETTING,
    TLS_KEY_HELP,
    TLS_KEY_SETTING,
    Certificates,
    certificates_of,
)

API_SERVER = "api-server"


class UiServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the pages in a cluster."""

    listen: Annotated[
        tuple[str, int],
        Setting("--listen", "HOST:PORT", ":8480", parse_required_address),
        "The address of the pages, /healthz and /readyz. Every page needs a token.",
    ]
    tls_cert: Annotated[Path | None, TLS_CERT_SETTING, TLS_CERT_HELP]
    tls_key: Annotated[Path | None, TLS_KEY_SETTING, TLS_KEY_HELP]
    audience: Annotated[
        str,
        Setting("--audience", "NAME", AUDIENCE, str),
        f"The audience that tokens must be issued for. {API_SERVER}: the tokens that the API server itself accepts, "
        "such as those of an OpenID Connect provider. Use it only with TLS: such a token is valid for the API server.",
    ]
    log: Annotated[str, log_setting(), LOG_HELP]

    @property
    def certificates(self) -> Certificates | None:
        """Return the TLS files; None: plain HTTP."""
        return certificates_of(self.tls_cert, self.tls_key)

    @property
    def token_audience(self) -> str | None:
        """Return the audience of tokens; None: the API server's."""
        return None if self.audience == API_SERVER else self.audience


def read_settings(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> UiServerSettings:
    """Return the settings. ``flags``: values by field, None where not given. Raises ``SettingError``."""
    found = settings.read_settings(UiServerSettings, flags, environ)
    certificates_of(found.tls_cert, found.tls_key)
    if not found.audience:
        raise SettingError(f"--audience is empty: give a name such as {AUDIENCE}, or {API_SERVER}")
    return found
