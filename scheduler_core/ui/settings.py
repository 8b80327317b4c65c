"""Settings of ``gputopo ui-server``. ``gputopo.process.settings`` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from gputopo.kube.page_reviews import AUDIENCE
from gputopo.process import settings
from gputopo.process.settings import LOG_HELP, Setting, SettingError, log_setting, parse_address, parse_path
from scheduler_core.runtime.tls import Certificates

API_SERVER = "api-server"


def _parse_listen(text: str) -> tuple[str, int]:
    found = parse_address(text)
    if found is None:
        raise ValueError("the pages cannot be off: expected HOST:PORT")
    return found


class UiServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the pages in a cluster."""

    listen: Annotated[
        tuple[str, int],
        Setting("--listen", "HOST:PORT", ":8480", _parse_listen),
        "The address of the pages, /healthz and /readyz. Every page needs a token.",
    ]
    tls_cert: Annotated[
        Path | None,
        Setting("--tls-cert", "FILE", "", parse_path),
        "The certificate of the pages with its chain, PEM. It enables TLS. A rotated file is loaded within seconds.",
    ]
    tls_key: Annotated[
        Path | None,
        Setting("--tls-key", "FILE", "", parse_path),
        "The private key of that certificate, PEM, not encrypted.",
    ]
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
        if self.tls_cert is None or self.tls_key is None:
            return None
        return Certificates(self.tls_cert, self.tls_key)

    @property
    def token_audience(self) -> str | None:
        """Return the audience of tokens; None: the API server's."""
        return None if self.audience == API_SERVER else self.audience


def read_settings(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> UiServerSettings:
    """Return the settings. ``flags``: values by field, None where not given. Raises ``SettingError``."""
    found = settings.read_settings(UiServerSettings, flags, environ)
    if (found.tls_cert is None) != (found.tls_key is None):
        raise SettingError("--tls-cert and --tls-key go together: give both or none")
    if not found.audience:
        raise SettingError(f"--audience is empty: give a name such as {AUDIENCE}, or {API_SERVER}")
    return found
