"""The server for tests ends, whatever its clients do."""

from http.client import HTTPConnection
from urllib.parse import urlsplit

from tests.api_server import Answer, api_server


def test_a_client_that_keeps_its_connection_does_not_keep_the_server_from_ending() -> None:
    with api_server(lambda _: Answer({})) as server:
        client = HTTPConnection(urlsplit(server.url).netloc, timeout=60)
        client.request("GET", "/")
        assert client.getresponse().read() == b"{}"

    assert client.sock is not None
    assert client.sock.recv(1) == b""
    client.close()
