"""Requests of viewers."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from starlette.types import ASGIApp, Message

POD_NETWORK = "10.244.1.7"


class Answered(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


def ask(app: ASGIApp, path: str, token: str = "", *headers: tuple[str, str], **how: str) -> Answered:
    """The answer to a request, on an event loop of its own."""
    return asyncio.run(answer_to(app, path, token, *headers, **how))


async def answer_to(
    app: ASGIApp, path: str, token: str = "", *headers: tuple[str, str], method: str = "GET", body: str = "",
    peer: str = POD_NETWORK, scheme: str = "http",
) -> Answered:  # fmt: skip
    """The answer to a request."""
    sent: list[Message] = []
    where, _, query = path.partition("?")
    found = [("host", "ui.example"), *([("authorization", f"Bearer {token}")] if token else []), *headers]
    raw = [(name.encode(), value.encode()) for name, value in dict(found).items()]
    scope = {
        "type": "http", "method": method, "path": where, "query_string": query.encode(), "headers": raw,
        "client": (peer, 1), "scheme": scheme, "server": ("ui.example", 80),
    }  # fmt: skip

    async def receive() -> Message:
        return {"type": "http.request", "body": body.encode(), "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    text = b"".join(each.get("body", b"") for each in sent[1:]).decode()
    return Answered(sent[0]["status"], {key.decode(): value.decode() for key, value in sent[0]["headers"]}, text)
