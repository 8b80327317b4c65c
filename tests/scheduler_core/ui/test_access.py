"""The pages for the users of a cluster: tokens, the login form, and the names that a tenant does not see."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
from starlette.types import ASGIApp, Message

from gputopo.kube.cluster_file import FileKube
from gputopo.kube.errors import UnavailableError
from gputopo.kube.page_reviews import PageUser, Verdict
from gputopo.kube.rbac import UI
from scheduler_core.cache.watch import list_kind
from scheduler_core.runtime.event_loop import NoWatches
from scheduler_core.runtime.page_access import PageAccess, ReviewQueue
from scheduler_core.ui import reports
from scheduler_core.ui.hidden_names import ANOTHER, without_hidden_names
from scheduler_core.ui.login import MAX_TOKEN, local_address
from scheduler_core.ui.main import _LOGINS, _MAX_VERDICTS, _VALID_S, sources
from scheduler_core.ui.rows_html import Viewer
from scheduler_core.ui.server import ui_app
from scheduler_core.ui.service import UiService
from scheduler_core.ui.streams import REFRESH
from scheduler_core.ui.viewers import ALL, COOKIE, NamespaceReviews, ReviewedViewers
from scheduler_core.ui.where import WhereAnswer
from tests.api_objects import Object
from tests.scheduler_core.ui.cluster_documents import (
    allocation,
    capacity_hold,
    gpu_machine,
    gpu_pod,
    node_gpus,
    waiting_gang,
)
from tests.scheduler_core.ui.pages import Page, now, service_of
from tests.scheduler_core.ui.requests import POD_NETWORK, Answered, answer_to, ask

SECRETS = ("secret", "model-x", "next-x", "secret-ns")
HTML = ("accept", "text/html")
MAY_LIST = {"admin": (ALL,), "tenant": ("mine",), "guest": ()}


def tenants() -> list[Object]:
    """A full node of two tenants, each with a gang that waits; capacity is held for the gang of one."""
    at = now()
    node, topology = gpu_machine("n", "8a100-2n-pairs12")
    gpus = [gpu.uuid or "" for gpu in topology.gpus]
    pods = {("mine", "web"): gpus[:2], ("secret-ns", "model-x"): gpus[2:6]}
    held = [allocation(gpu, *pod) for pod, own in pods.items() for gpu in own]
    running = [gpu_pod(*pod, len(own), "n", at) for pod, own in pods.items()]
    waiting = [*waiting_gang("secret-ns", "next-x", 1, 2, at - 900), *waiting_gang("mine", "llm", 1, 2, at)]
    alone = gpu_pod("mine", "alone", 2, None, at)
    return [
        node,
        *running,
        *waiting,
        alone,
        node_gpus("n", node, held, at),
        *capacity_hold("secret-ns", "next-x", "n", 2),
    ]


def review(token: str, _: str) -> Verdict:
    if token == "broken":
        raise UnavailableError("no answer", None)
    if token in MAY_LIST:
        return Verdict(200, user=PageUser(token))
    return Verdict(403, f"{token} may not get /map") if token == "nobody" else Verdict(401, "not accepted")


@pytest.fixture(scope="module")
def service() -> UiService:
    found = service_of(tenants())
    assert found.overview.reserved
    return found


@pytest.fixture
def app(service: UiService) -> ASGIApp:
    return app_of(service)


def app_of(service: UiService) -> ASGIApp:
    """The pages with reviewed tokens."""
    return ui_app(service, ReviewedViewers(PageAccess(review), lambda user, space: space in MAY_LIST[user.username]))


PAGES = (
    "/", "/?q=secret", "/?q=model", "/?group=product%3D", "/node?name=n", "/pod?namespace=mine&name=web",
    "/pod?namespace=mine&name=alone", "/gang?namespace=mine&name=llm", "/gang?namespace=mine&name=next-x",
    "/where?pods=1&gpus=2", "/where?pods=1&gpus=8", "/where", "/map.json", "/node.svg?name=n",
)  # fmt: skip


@pytest.mark.parametrize("path", PAGES)
def test_no_page_names_what_a_tenant_may_not_list(app: ASGIApp, path: str) -> None:
    tenant, admin = ask(app, path, "tenant"), ask(app, path, "admin")
    echoed = {"next-x"} if "next-x" in path else {"secret", "model"} if "q=" in path else set()
    words = [each for each in SECRETS if each not in echoed]

    assert tenant.status == admin.status == (404 if "next-x" in path else 200)
    assert not [each for each in words if each in tenant.text.replace('value="secret"', "")]


def test_an_administrator_sees_all_names(app: ASGIApp) -> None:
    assert "secret-ns/model-x" in ask(app, "/", "admin").text
    assert "secret-ns/next-x" in ask(app, "/gang?namespace=mine&name=llm", "admin").text
    assert "secret-ns/next-x" in ask(app, "/pod?namespace=mine&name=alone", "admin").text
    assert json.loads(ask(app, "/map.json", "admin").text)["gangs"][0]["namespace"] == "secret-ns"


def test_a_tenant_sees_its_own_names_and_the_number_of_the_others(app: ASGIApp) -> None:
    words = Page(ask(app, "/", "tenant").text).words
    found = json.loads(ask(app, "/map.json", "tenant").text)

    for each in ("mine/web (2)", "another namespace's pod (4)", "mine/llm", "1 gangs of other namespaces"):
        assert each in words
    assert "2 GPUs, another namespace" in words
    assert [gang["name"] for gang in found["gangs"]] == ["llm"]
    assert found["reserved"][0]["gpus"] == 2
    assert ANOTHER in Page(ask(app, "/pod?namespace=mine&name=alone", "tenant").text).words
    assert ANOTHER in Page(ask(app, "/gang?namespace=mine&name=llm", "tenant").text).words


def test_hidden_pods_have_one_colour_whatever_their_namespace(app: ASGIApp) -> None:
    classes = {attributes.get("class") for tag, attributes in Page(ask(app, "/", "guest").text).tags if tag == "i"}

    assert classes == {"th"}


@pytest.mark.parametrize("token", ["tenant", "guest"])
@pytest.mark.parametrize(
    ("hidden", "absent"),
    [
        ("/pod?namespace=secret-ns&name=model-x", "/pod?namespace=secret-ns&name=model-y"),
        ("/pod?namespace=secret-ns&name=model-x", "/pod?namespace=nowhere-x&name=model-x"),
        ("/gang?namespace=secret-ns&name=next-x", "/gang?namespace=secret-ns&name=next-y"),
        ("/gang?namespace=secret-ns&name=next-x", "/gang?namespace=nowhere-x&name=next-x"),
    ],
)
def test_hidden_objects_answer_like_missing_objects(app: ASGIApp, token: str, hidden: str, absent: str) -> None:
    def shape(answer: Answered) -> tuple[int, str]:
        text = answer.text.replace("nowhere-x", "secret-ns")
        return answer.status, text.replace("model-y", "model-x").replace("next-y", "next-x")

    assert shape(ask(app, hidden, token)) == shape(ask(app, absent, token))
    assert ask(app, hidden, token).status == 404


@pytest.mark.parametrize(
    ("token", "status"), [("", 401), ("forged", 401), ("nobody", 403), ("broken", 503), ("tenant", 200)]
)
@pytest.mark.parametrize("peer", [POD_NETWORK, "127.0.0.1"])
def test_every_page_needs_a_permitted_token_from_loopback_too(app: ASGIApp, token: str, status: int, peer: str) -> None:
    for path in (each for each in PAGES if "next-x" not in each):
        answer = ask(app, path, token, peer=peer)
        assert answer.status == status, path
        assert (answer.headers.get("www-authenticate") == "Bearer") == (status == 401)
        assert status == 200 or "GPUs" not in answer.text
    if status != 200:
        assert ask(app, "/events", token).status == status


def test_probes_and_assets_are_public_and_name_nothing(app: ASGIApp) -> None:
    for path in ("/healthz", "/readyz", "/ui.css", "/ui.js", "/icon.svg"):
        assert ask(app, path).status == 200
    broken = ui_app(_Broken(), ReviewedViewers(PageAccess(review), lambda _, __: True))
    for path in ("/healthz", "/readyz"):
        assert ask(broken, path) == (503, ask(broken, path).headers, "not working; the log says why\n")


class _Broken(UiService):
    def not_ready_reason(self) -> str | None:
        return "the object pods secret-ns/model-x is damaged"

    unhealthy = not_ready_reason


def test_pages_of_different_viewers_are_kept_apart(app: ASGIApp) -> None:
    admin, tenant = ask(app, "/", "admin"), ask(app, "/", "tenant")
    again = ask(app, "/", "tenant", ("if-none-match", admin.headers["etag"]))

    assert admin.headers["etag"] != tenant.headers["etag"]
    assert again.status == 200
    assert ask(app, "/", "tenant", ("if-none-match", tenant.headers["etag"])).status == 304
    assert (tenant.headers["cache-control"], tenant.headers["vary"]) == ("private, no-cache", "Authorization, Cookie")


PRIVATE = ({"scheme": "https"}, {"peer": "127.0.0.1"})


def form(token: str, page: str = "./") -> str:
    return urlencode({"token": token, "page": page})


def test_a_browser_logs_in_and_out() -> None:
    for origin in range(2):
        app = ui_app(service_of(tenants()), ReviewedViewers(PageAccess(review), lambda _, space: space == "mine"))
        tls = origin == 0
        host = ("host", "ui.example" if tls else "localhost:8480")
        how = {"scheme": "https"} if tls else {"peer": "127.0.0.1"}
        first = ask(app, "/node?name=n", "", HTML, host, **how)
        sent = ask(app, "/login", "", host, method="POST", body=form("tenant", "./node?name=n"), **how)
        cookie = sent.headers["set-cookie"]
        inside = ask(app, "/node?name=n", "", host, ("cookie", cookie.partition(";")[0]), **how)
        out = ask(app, "/logout", "", host, method="POST", **how)

        assert (first.status, 'type="password"' in first.text) == (401, True)
        assert (sent.status, sent.headers["location"]) == (303, "./node?name=n")
        assert cookie == (
            "__Host-gputopo-token=tenant; Path=/; HttpOnly; SameSite=Strict; Secure"
            if tls
            else f"{COOKIE}=tenant; HttpOnly; SameSite=Strict"
        )
        assert (inside.status, "Log out" in inside.text) == (200, True)
        assert (out.status, out.headers["set-cookie"].partition("=")[2][0]) == (303, ";")
        assert "Max-Age=0" in out.headers["set-cookie"]


def test_over_tls_a_cookie_that_another_host_could_have_set_is_ignored(app: ASGIApp) -> None:
    answers = [
        ask(app, "/", "", ("cookie", f"{name}=tenant"), scheme=scheme).status
        for name in (COOKIE, f"__Host-{COOKIE}")
        for scheme in ("https", "http")
    ]

    assert answers == [401, 200, 200, 401]


def test_behind_a_proxy_the_cookie_stays_limited_to_the_path_of_the_pages(app: ASGIApp) -> None:
    sent = ask(app, "/login", "", ("x-forwarded-proto", "https"), method="POST", body=form("tenant"))

    assert sent.headers["set-cookie"] == f"{COOKIE}=tenant; HttpOnly; SameSite=Strict; Secure"


def test_the_first_logins_of_all_users_wait_for_each_other_and_none_is_refused() -> None:
    access = PageAccess(lambda token, _: Verdict(200, user=PageUser(token)), max_verdicts=_MAX_VERDICTS, queue=_LOGINS)

    async def run() -> list[int]:
        found = await asyncio.gather(*(access.verdict(f"user-{number}", "/map") for number in range(300)))
        return [each.status for each in found]

    assert asyncio.run(run()) == [200] * 300


def test_more_verdicts_are_kept_than_are_reviewed_while_one_is_valid() -> None:
    assert _VALID_S / _LOGINS.pause_s < _MAX_VERDICTS


@pytest.mark.parametrize(
    "path", ["/where?pods=1&gpus=2", "/pod?namespace=mine&name=web", "/gang?namespace=mine&name=llm"]
)
def test_a_search_does_not_hold_up_other_requests(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search waits for what the loop does meanwhile: on the loop it would never end."""
    started, answered, service = threading.Event(), threading.Event(), service_of(tenants())

    def waits(*_: object) -> Any:
        started.set()
        assert answered.wait(5)
        return "a report"

    def prepared(*_: object) -> Any:
        return lambda _: WhereAnswer(waits())

    monkeypatch.setattr("scheduler_core.ui.pages.prepare_where", prepared)
    monkeypatch.setattr("scheduler_core.ui.reports.pod_report", waits)
    monkeypatch.setattr("scheduler_core.ui.reports.gang_report", waits)
    served = ui_app(service, ReviewedViewers(PageAccess(review), lambda *_: True))

    async def run() -> tuple[int, int]:
        slow = asyncio.create_task(answer_to(served, path, "tenant"))
        await asyncio.to_thread(started.wait, 5)
        quick = await answer_to(served, "/healthz")
        answered.set()
        return (await slow).status, quick.status

    assert asyncio.run(run()) == (200, 200)


def test_while_a_report_is_made_the_cluster_does_not_change_and_afterwards_it_does() -> None:
    service, add_the_others = changing()
    before = service.namespaces()
    with service.unchanged():
        add_the_others()
        service.tick()
        assert service.namespaces() == before

    assert service.namespaces() == before | {"secret-ns"}


def test_an_update_that_was_due_while_a_report_was_made_precedes_the_next_report() -> None:
    service, add_the_others = changing()
    version = service.version
    with service.unchanged():
        add_the_others()
        service.tick()
        assert service.version == version
    assert service.version == version + 1
    with service.unchanged():
        add_the_others()  # no tick is due
    assert service.version == version + 1


def test_an_error_in_a_batch_that_waited_for_a_report_ends_the_daemon_and_not_the_report() -> None:
    service, add_the_others = changing()
    answered: list[bool] = []

    def fail(*_: object) -> None:
        raise RuntimeError("damaged")

    async def run() -> None:
        with service.running_watches(NoWatches()):
            with service.unchanged():
                add_the_others()
                service.view.apply_batch = fail  # type: ignore[method-assign,assignment]
            answered.append(service.stop_requested.is_set())

    with pytest.raises(RuntimeError, match="damaged"):
        asyncio.run(run())
    assert answered == [True]


def test_the_namespace_of_the_gang_whose_capacity_a_backfill_used_is_hidden() -> None:
    reservation = capacity_hold("mine", "llm", "n", 2)[0]
    backfill = {"gang": "gone-ns/big", "startBy": "2026-01-01T00:00:00Z", "until": "2026-01-01T01:00:00Z"}
    kept = {**reservation, "spec": {**reservation["spec"], "backfill": backfill}}
    service = service_of([gpu_machine("n", "8a100-2n-pairs12")[0], kept])

    assert "gone-ns" in service.namespaces()


def test_no_form_where_the_token_could_be_read_on_its_way(app: ASGIApp) -> None:
    plain = ask(app, "/", "", HTML)
    for host, peer in (("localhost", POD_NETWORK), ("ui.example", "127.0.0.1")):
        assert 'type="password"' not in ask(app, "/", "", HTML, ("host", host), peer=peer).text
    proxied = ask(app, "/", "", HTML, ("x-forwarded-proto", "https"))

    assert (plain.status, 'type="password"' in plain.text, "not encrypted" in plain.text) == (401, False, True)
    assert 'type="password"' in proxied.text
    assert ask(app, "/login", method="POST", body=form("tenant")).status == 403


@pytest.mark.parametrize("path", ["/login", "/logout"])
def test_another_web_site_neither_logs_in_nor_out(app: ASGIApp, path: str) -> None:
    for site in ("cross-site", "same-site"):
        answer = ask(app, path, "", ("sec-fetch-site", site), method="POST", body=form("tenant"), scheme="https")
        assert (answer.status, "set-cookie" in answer.headers) == (403, False)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("", 401, "invalid token"),
        (form("a b"), 401, "invalid token"),
        (form("tenant\r\nSet-Cookie: x=y"), 401, "invalid token"),
        (form("x" * (MAX_TOKEN + 1)), 401, "a cookie takes"),
        (form("forged"), 401, "not accepted"),
        (form("nobody"), 403, "may not get /map"),
        (form("broken"), 503, "did not review the token"),
        ("x" * 20_000, 413, "too long"),
        ("&".join(f"f{number}=1" for number in range(20)), 401, ""),
    ],
)
def test_a_form_that_cannot_work_sets_no_cookie(app: ASGIApp, body: str, status: int, words: str) -> None:
    answer = ask(app, "/login", method="POST", body=body, scheme="https")

    assert answer.status == status
    assert words in answer.text
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("./node?name=n", "./node?name=n"),
        ("./", "./"),
        ("", "./"),
        ("https://evil.example/", "./"),
        ("//evil.example/node", "./"),
        ("./login", "./"),
        ("./node?name=\u00e4", "./"),
        ("./node?name=a\r\nb", "./node?name=ab"),
        ("../../x", "./"),
        ("javascript:alert(1)", "./"),
    ],
)
def test_after_the_login_only_own_pages_are_opened(address: str, expected: str) -> None:
    assert local_address(address, {"/", "/node"}) == expected


def test_reviews_are_cached_and_bounded_and_an_api_server_that_fails_hides_names() -> None:
    asked: list[str] = []
    clock = [0.0]

    def may_list(_: PageUser, namespace: str) -> bool:
        asked.append(namespace)
        if namespace == "z":
            raise UnavailableError("no answer", None)
        return namespace in ("a", "b")

    async def run() -> Iterator[object]:
        reviews, user = NamespaceReviews(may_list, lambda: clock[0]), PageUser("tenant")
        first = await reviews.visible(user, frozenset("abcz"))
        again = await reviews.visible(user, frozenset("abc"))
        other = await reviews.visible(PageUser("other"), frozenset("a"))
        number = len(asked)
        clock[0] = 61.0  # allowed answers have expired, denied ones have not
        later = await reviews.visible(user, frozenset("abc"))
        return iter((first, again, other, later, asked[number:]))

    first, again, other, later, more = asyncio.run(run())
    assert (first, again, other, later) == ({"a", "b"}, {"a", "b"}, {"a"}, {"a", "b"})
    assert asked[:5] == [ALL, "a", "b", "c", "z"]
    assert more == ["a", "b"]


def test_names_in_sentences_are_replaced_and_paths_are_not() -> None:
    viewer = Viewer(namespaces=frozenset({"mine"}), hidden=frozenset({"other"}))
    words = 'blocked by "other/x.y-1", mine/web and pod other/z; see docs/other.md, nvidia.com/gpu, other'

    assert without_hidden_names(WhereAnswer(words, (("other/n", 1, 2),)), viewer) == WhereAnswer(
        f'blocked by "{ANOTHER}", mine/web and pod {ANOTHER}; see docs/other.md, nvidia.com/gpu, other',
        ((ANOTHER, 1, 2),),
    )
    assert without_hidden_names(words, Viewer()) == words


class _Changing(NamedTuple):
    """A service that shows only one tenant's pods, and a function that gives it those of all."""

    service: UiService
    add_the_others: Callable[[], None]


def changing() -> _Changing:
    every = tenants()
    own = [each for each in every if "secret" not in json.dumps(each["metadata"]) and each["kind"] != "PlacementLedger"]
    text = json.dumps({"kind": "List", "items": every}).encode()
    found = service_of(own)

    def add_the_others() -> None:
        kube = FileKube(text, UI)
        for kind, source in sources().items():
            found.apply_batch(list_kind(kube, kind, source))

    return _Changing(found, add_the_others)


REPORTS = ("/pod?namespace=mine&name=alone", "/gang?namespace=mine&name=llm")


@pytest.mark.parametrize("path", REPORTS)
def test_a_namespace_that_is_newer_than_the_overview_is_hidden(path: str) -> None:
    service, add_the_others = changing()
    app = ui_app(service, ReviewedViewers(PageAccess(review), lambda _, space: space == "mine"))
    first = ask(app, path, "tenant")
    add_the_others()  # no tick follows
    second = ask(app, path, "tenant")

    assert (first.status, second.status) == (200, 200)
    assert ANOTHER in Page(second.text).words
    assert not [each for each in SECRETS if each in second.text]


@pytest.mark.parametrize("path", REPORTS)
def test_a_namespace_that_appears_while_rights_are_reviewed_is_hidden(path: str) -> None:
    service, add_the_others = changing()

    def may_list(_: PageUser, space: str) -> bool:
        if space == "mine":
            add_the_others()
            service.tick()
        return space == "mine"

    answer = ask(ui_app(service, ReviewedViewers(PageAccess(review), may_list)), path, "tenant")

    assert ANOTHER in Page(answer.text).words
    assert not [each for each in SECRETS if each in answer.text]


def test_a_stream_without_names_continues_after_a_failed_review_and_ends_when_the_right_is_withdrawn() -> None:
    service = service_of(tenants())
    clock, verdicts = [0.0], {"now": "admin"}
    access = PageAccess(lambda _, path: review(verdicts["now"], path), lambda: clock[0])
    app = ui_app(service, ReviewedViewers(access, lambda user, space: space in MAY_LIST[user.username]))
    sent: asyncio.Queue[Message] = asyncio.Queue()

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def message(token: str) -> bytes:
        clock[0] += 60.0
        verdicts["now"] = token
        service.streams.send({"row": "secret-ns/model-x"})
        return bytes((await asyncio.wait_for(sent.get(), 10))["body"])

    async def run() -> list[bytes]:
        scope = {
            "type": "http", "method": "GET", "path": "/events", "query_string": b"", "scheme": "http",
            "headers": [(b"authorization", b"Bearer t")], "client": (POD_NETWORK, 1), "server": ("ui.example", 80),
        }  # fmt: skip

        async def serve() -> None:
            await app(scope, receive, sent.put)

        served = asyncio.create_task(serve())
        for _ in range(2):  # the head, and the first line
            await asyncio.wait_for(sent.get(), 10)
        found = [await message(token) for token in ("admin", "broken", "admin", "forged")]
        await asyncio.wait_for(served, 10)
        return found

    named, unknown, again, ended = asyncio.run(run())
    assert [b"secret" in each for each in (named, unknown, again, ended)] == [True, False, True, False]
    assert (REFRESH in unknown, ended) == (True, b"")


def test_a_viewer_does_not_wait_long_for_the_reviews_of_others() -> None:
    async def run() -> tuple[object, object]:
        reviews = NamespaceReviews(lambda _, space: space == "a", wait_s=0.01)
        async with reviews._turns.turn("other"):  # another viewer's reviews
            busy = await asyncio.wait_for(reviews.visible(PageUser("tenant"), frozenset("ab")), 10)
        return busy, await reviews.visible(PageUser("tenant"), frozenset("ab"))

    assert asyncio.run(run()) == (frozenset(), frozenset("a"))


def test_many_searches_of_one_tenant_delay_no_report_of_another(
    service: UiService, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[str] = []
    report = reports.pod_report

    def noted(*given: Any) -> str:
        served.append("report")
        return report(*given)

    def searching(*_: object) -> Callable[[Callable[[], bool]], WhereAnswer]:
        def search(_: Callable[[], bool]) -> WhereAnswer:
            served.append("search")
            return WhereAnswer("found")

        return search

    monkeypatch.setattr("scheduler_core.ui.pages.prepare_where", searching)
    monkeypatch.setattr(reports, "pod_report", noted)

    async def run() -> tuple[list[int], int]:
        application = app_of(service)
        for token in ("guest", "tenant"):
            await answer_to(application, "/map.json", token)  # reviewed
        searches = [asyncio.create_task(answer_to(application, "/where?pods=1&gpus=1", "guest")) for _ in range(40)]
        await asyncio.sleep(0)
        found = await answer_to(application, "/pod?namespace=mine&name=web", "tenant")
        return [each.status for each in await asyncio.gather(*searches)], found.status

    statuses, status = asyncio.run(run())

    assert status == 200
    assert served.index("report") <= 2
    assert statuses.count(503) > 0
    assert set(statuses) == {200, 503}


def accounts_app(service: UiService, may_list: Callable[[PageUser, str], bool] = lambda *_: False) -> ASGIApp:
    """The pages for tokens "NAMESPACE:ACCOUNT"."""

    def review_account(token: str, _: str) -> Verdict:
        return Verdict(200, user=PageUser(f"system:serviceaccount:{token}"))

    access = PageAccess(review_account, queue=ReviewQueue(pause_s=0.0))
    return ui_app(service, ReviewedViewers(access, may_list))


@pytest.mark.parametrize("path", ["/?q={}", "/?group={}", "/node.svg?name=n&x={}"])
def test_many_pages_of_the_accounts_of_a_namespace_delay_no_page_of_another_tenant(
    path: str, service: UiService
) -> None:
    """A tenant may create any number of accounts in its namespace."""
    answered: list[str] = []

    async def run() -> list[int]:
        application, accounts = accounts_app(service), [f"team-a:account-{number}" for number in range(4)]

        async def fetch(token: str, number: int) -> int:
            found = await answer_to(application, path.format(number), token)
            if found.status == 200:
                answered.append(token)
            return found.status

        for token in (*accounts, "team-b:reader"):
            await answer_to(application, "/map.json", token)  # reviewed
        flood = [fetch(accounts[number % 4], number) for number in range(40)]
        return await asyncio.gather(*flood, fetch("team-b:reader", 0))

    statuses = asyncio.run(run())

    assert statuses[-1] == 200
    assert answered.index("team-b:reader") <= 2
    assert set(statuses) == {200, 503}


def test_reviews_for_many_accounts_of_a_namespace_do_not_hide_names_from_another_tenant() -> None:
    reviewed: list[str] = []

    def may_list(user: PageUser, space: str) -> bool:
        reviewed.append(user.username)
        return space != ALL

    async def run() -> frozenset[str] | None:
        reviews, spaces = NamespaceReviews(may_list), frozenset("abc")
        flood = [PageUser(f"system:serviceaccount:team-a:account-{number}") for number in range(10)]
        async with asyncio.TaskGroup() as tasks:
            for each in flood:
                tasks.create_task(reviews.visible(each, spaces))
            await asyncio.sleep(0)
            found = tasks.create_task(reviews.visible(PageUser("reader"), spaces))
        return found.result()

    assert asyncio.run(run()) == frozenset("abc")
    assert reviewed.index("reader") <= 2
