"""Why a server gave no answer, for people: the errors of urllib3 name its own classes. Pure."""

from __future__ import annotations

import http.client
import re
import ssl

from urllib3 import exceptions

_CONNECTION = re.compile(r"^\w+\(host=.*?\): ")  # in front of urllib3's messages
_TIMEOUT = re.compile(r"timeout=([\d.]+)\)")


def no_answer_reason(error: BaseException) -> str:
    """Return the reason in words. ``error``: of urllib3, or an ``OSError``."""
    if isinstance(error, exceptions.ProxyError):
        return f"the proxy cannot be used: {no_answer_reason(error.original_error)}"
    if isinstance(error, exceptions.NameResolutionError):
        return f"the name of the host cannot be resolved ({_system_text(error.__cause__)})"
    if isinstance(error, exceptions.NewConnectionError):  # also a ``TimeoutError`` of urllib3, but no time has passed
        return _system_text(error.__cause__) or _CONNECTION.sub("", str(error))
    if isinstance(error, exceptions.TimeoutError):
        limit = _TIMEOUT.search(str(error))
        return "it did not answer in time" + (f", within {round(float(limit[1]), 1):g} s" if limit else "")
    if isinstance(error, exceptions.SSLError) and error.args:
        return _tls_text(error.args[0])
    if isinstance(error, exceptions.ProtocolError):
        return _protocol_text(error)
    return _system_text(error) or _CONNECTION.sub("", str(error))


def _system_text(error: BaseException | None) -> str:
    text = error.strerror if isinstance(error, OSError) else None
    return f"{text[:1].lower()}{text[1:]}" if text else ""


def _tls_text(error: object) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"no TLS connection: {error.reason.lower().replace('_', ' ')}"
    return f"no TLS connection: {error}"


def _protocol_text(error: exceptions.ProtocolError) -> str:
    cause = error.args[-1] if error.args else error
    if isinstance(cause, exceptions.IncompleteRead | http.client.IncompleteRead):
        return "the answer broke off"
    if isinstance(cause, http.client.RemoteDisconnected):
        return "it closed the connection without an answer"
    if isinstance(cause, http.client.BadStatusLine):
        return "the answer is not HTTP"
    return _system_text(cause if isinstance(cause, BaseException) else None) or str(cause)
