"""Access to the pages with the names of all tenants."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Message

from gputopo.kube.errors import UnavailableError
from gputopo.kube.page_reviews import PageUser, Verdict
from scheduler_core.runtime.http_pages import HIDDEN_REASON, json_page, program_app
from scheduler_core.runtime.page_access import PageAccess, ReviewQueue

POD_NETWORK = "10.244.1.7"
BEARER = ("authorization", "Bearer secret")


def app(access: PageAccess | None = None) -> ASGIApp:
    pages = {"/plans": json_page(lambda: {"tenant": "a"})}
    return program_app(lambda: None, CollectorRegistry(), pages, access=access)


async def ask(served: ASGIApp, peer: str, path: str = "/plans", *headers: tuple[str, str]) -> tuple[int, str]:
    """Status and text of a page, as a peer with that address gets it."""
    sent: list[Message] = []
    raw = [(name.encode(), value.encode()) for name, value in headers]
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": raw, "client": (peer, 1)}

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await served(scope, receive, send)
    return sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:]).decode()


def reviewing(verdict: Verdict, calls: list[tuple[str, str]]) -> Callable[[str, str], Verdict]:
    def review(token: str, path: str) -> Verdict:
        calls.append((token, path))
        return verdict

    return review


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_peers_on_loopback_read_everything(peer: str) -> None:
    assert asyncio.run(ask(app(), peer)) == (200, '{"tenant":"a"}')


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_probe_that_fails_names_no_objects_to_the_pod_network(path: str) -> None:
    def reason() -> str:
        return "nothing about pods for 90 s: pods team-b/secret-0 cannot be read"

    failing = program_app(reason, CollectorRegistry(), {}, reason)

    assert asyncio.run(ask(failing, "127.0.0.1", path)) == (503, f"{reason()}\n")
    assert asyncio.run(ask(failing, POD_NETWORK, path)) == (503, f"{HIDDEN_REASON}\n")


@pytest.mark.parametrize("peer", [POD_NETWORK, "127.0.0.6", "::ffff:10.244.1.7", "fd00::7", "127.0.0.1.example", ""])
def test_by_default_others_read_only_the_probes_and_the_metrics(peer: str) -> None:
    status, text = asyncio.run(ask(app(), peer, "/plans", BEARER))

    assert (status, "tenant" in text, "kubectl port-forward" in text) == (403, False, True)
    assert [asyncio.run(ask(app(), peer, path))[0] for path in ("/healthz", "/readyz", "/metrics")] == [200] * 3


@pytest.mark.parametrize("header", [None, "Basic c2VjcmV0", "Bearer", "Bearer ", "Bearer   ", "secret"])
def test_without_a_token_nothing_is_reviewed(header: str | None) -> None:
    calls: list[tuple[str, str]] = []
    headers = () if header is None else (("authorization", header),)

    async def run() -> tuple[int, str]:
        return await ask(app(PageAccess(reviewing(Verdict(200), calls))), POD_NETWORK, "/plans", *headers)

    assert (asyncio.run(run())[0], calls) == (401, [])


@pytest.mark.parametrize("status", [200, 401, 403])
def test_a_verdict_is_kept_for_a_while_for_this_token_and_path(status: int) -> None:
    calls: list[tuple[str, str]] = []
    now = [0.0]

    async def run() -> list[int]:
        served = app(PageAccess(reviewing(Verdict(status, "because"), calls), lambda: now[0]))
        found = [(await ask(served, POD_NETWORK, "/plans", BEARER))[0] for _ in range(3)]
        found += [each for each, _ in await asyncio.gather(*(ask(served, POD_NETWORK, "/plans", BEARER),) * 1)]
        now[0] = 11.0
        return [*found, (await ask(served, POD_NETWORK, "/plans", BEARER))[0]]

    assert asyncio.run(run()) == [status] * 5
    assert calls == [("secret", "/plans")] * 2


def test_the_path_that_is_reviewed_is_the_path_that_is_served() -> None:
    calls: list[tuple[str, str]] = []

    async def run() -> tuple[int, str]:
        served = app(PageAccess(reviewing(Verdict(200), calls)))
        return await ask(served, POD_NETWORK, "/plans/../healthz", BEARER)

    assert (asyncio.run(run())[0], calls) == (404, [])


def test_hostile_tokens_wait_in_a_short_queue_and_metrics_are_answered_meanwhile() -> None:
    blocked, running = threading.Event(), [0]

    def review(_: str, __: str) -> Verdict:
        running[0] += 1
        blocked.wait(10)
        return Verdict(401)

    async def run() -> tuple[list[int], int, int]:
        served = app(PageAccess(review))
        tokens = [("authorization", f"Bearer {number}") for number in range(100)]
        asked = [asyncio.create_task(ask(served, POD_NETWORK, "/plans", each)) for each in tokens]
        await asyncio.sleep(0.2)
        metrics, _ = await ask(served, POD_NETWORK, "/metrics")
        at_once = running[0]
        blocked.set()
        return [status for status, _ in await asyncio.gather(*asked)], metrics, at_once

    started = time.monotonic()
    statuses, metrics, at_once = asyncio.run(run())

    assert (statuses.count(401), statuses.count(503), metrics, at_once) == (17, 83, 200, 1)  # one is under review
    assert time.monotonic() - started > 15 * 0.05  # one after the other, at most 20 per second


def test_hostile_tokens_keep_no_reader_out_whose_verdict_has_expired() -> None:
    now, is_open = [0.0], threading.Event()
    is_open.set()

    def review(token: str, _: str) -> Verdict:
        is_open.wait(10)
        return Verdict(200, user=PageUser(token)) if token.startswith("good") else Verdict(401)

    async def run() -> tuple[list[int], list[int]]:
        access = PageAccess(review, lambda: now[0])
        known = [f"good-{number}" for number in range(20)]
        for token in known:
            await access.verdict(token, "/plans")
        now[0] = 11.0
        is_open.clear()
        flood = [asyncio.create_task(access.verdict(f"junk-{number}", "/plans")) for number in range(100)]
        await asyncio.sleep(0)
        readers = [asyncio.create_task(access.verdict(token, "/plans")) for token in known]
        await asyncio.sleep(0)
        is_open.set()
        return [each.status for each in await asyncio.gather(*readers)], [
            each.status for each in await asyncio.gather(*flood)
        ]

    readers, flood = asyncio.run(run())
    assert readers == [200] * 20
    assert (flood.count(401), flood.count(503)) == (17, 83)


def test_without_an_answer_of_the_api_server_access_is_denied_and_not_cached(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers = [UnavailableError("timed out"), None]

    def review(_: str, __: str) -> Verdict:
        if (error := answers.pop(0)) is not None:
            raise error
        return Verdict(200)

    async def run() -> list[tuple[int, str]]:
        served = app(PageAccess(review))
        return [await ask(served, POD_NETWORK, "/plans", BEARER) for _ in range(2)]

    failed, answered = asyncio.run(run())
    assert failed == (503, "the API server did not review the token; try again, and see the log of this program\n")
    assert [record.fields["error"] for record in caplog.records] == ["timed out"]  # type: ignore[attr-defined]
    assert answered[0] == 200


def test_the_kept_verdicts_are_bounded() -> None:
    async def run() -> int:
        access = PageAccess(lambda _, __: Verdict(401))
        access._verdicts = {(b"%d" % number, "/plans"): (0.0, Verdict(401)) for number in range(256)}
        await ask(app(access), POD_NETWORK, "/plans", BEARER)
        return len(access._verdicts)

    assert asyncio.run(run()) == 256


def test_rejected_tokens_do_not_evict_the_verdicts_of_accepted_ones() -> None:
    asked: list[str] = []

    def answer(token: str, _: str) -> Verdict:
        asked.append(token)
        return Verdict(200, user=PageUser("reader")) if token == "good" else Verdict(401)

    async def run() -> None:
        access = PageAccess(answer, max_verdicts=3, queue=ReviewQueue(pause_s=0.0))
        for token in ("good", *(f"forged-{number}" for number in range(9)), "good"):
            await access.verdict(token, "/report")

    asyncio.run(run())
    assert asked.count("good") == 1


def user_of_token(token: str) -> PageUser:
    """Tokens "NAMESPACE/ACCOUNT/NUMBER" are of service accounts."""
    namespace, account, _ = token.split("/")
    return PageUser(f"system:serviceaccount:{namespace}:{account}")


def test_many_accepted_tokens_of_the_accounts_of_a_namespace_do_not_evict_the_verdicts_of_others() -> None:
    asked: list[str] = []

    def answer(token: str, _: str) -> Verdict:
        asked.append(token)
        return Verdict(200, user=user_of_token(token))

    async def run() -> None:
        access = PageAccess(answer, max_verdicts=4, queue=ReviewQueue(pause_s=0.0))
        flood = (f"team-a/account-{number % 5}/{number}" for number in range(20))
        for token in ("team-b/reader/0", *flood, "team-b/reader/0"):
            await access.verdict(token, "/report")

    asyncio.run(run())
    assert asked.count("team-b/reader/0") == 1


def test_a_reader_whose_verdict_has_expired_waits_for_one_unknown_token() -> None:
    now, reviewed = [0.0], list[str]()

    def answer(token: str, _: str) -> Verdict:
        reviewed.append(token)
        return Verdict(200, user=user_of_token(token))

    async def run() -> None:
        access = PageAccess(answer, lambda: now[0], queue=ReviewQueue(pause_s=0.0))
        await access.verdict("team-b/reader/0", "/report")
        now[0] = 11.0
        reviewed.clear()
        async with asyncio.TaskGroup() as tasks:
            for number in range(10):
                tasks.create_task(access.verdict(f"team-a/account-{number}/0", "/report"))
            await asyncio.sleep(0)
            tasks.create_task(access.verdict("team-b/reader/0", "/report"))

    asyncio.run(run())
    assert len(reviewed) == 11
    assert reviewed.index("team-b/reader/0") <= 2


@pytest.mark.parametrize("header", ["Bearer secret", "bearer secret", "Bearer   secret", "Bearer secret "])
def test_blanks_around_a_token_do_not_count(header: str) -> None:
    calls: list[tuple[str, str]] = []

    async def run() -> tuple[int, str]:
        served = app(PageAccess(reviewing(Verdict(200), calls)))
        return await ask(served, POD_NETWORK, "/plans", ("authorization", header))

    assert (asyncio.run(run())[0], calls) == (200, [("secret", "/plans")])
