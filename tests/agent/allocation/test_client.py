"""The client against a real gRPC server on a unix socket, and against other servers."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import grpc
import pytest

from agent.allocation.client import PodResourcesClient, PodResourcesError
from agent.allocation.wire import HeldDevices
from tests.agent.allocation.kubelet import kubelet, listing, pod

ONE = listing(pod("a", {"nvidia.com/gpu": ["GPU-1"]}))
HELD = (HeldDevices("default", "a", "main", "nvidia.com/gpu", ("GPU-1",)),)
PATIENT_S = 20.0  # for answers that come: this machine may be busy


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kubelet.sock"


def refusal(path: Path, timeout_s: float = PATIENT_S, clock: Callable[[], float] = time.monotonic) -> str:
    with closing(PodResourcesClient(path, timeout_s, clock)) as client, pytest.raises(PodResourcesError) as refused:
        client.list_held_devices()
    return str(refused.value)


def test_calls_reuse_one_connection(path: Path) -> None:
    peers = []

    def answer(context: grpc.ServicerContext) -> bytes:
        peers.append(context.peer())
        return ONE

    with kubelet(path, answer), closing(PodResourcesClient(path, PATIENT_S)) as client:
        assert [client.list_held_devices() for _ in range(50)] == [HELD] * 50
        assert len(set(peers)) == 1
        client.close()
        assert client.list_held_devices() == HELD


def test_a_response_larger_than_all_http2_windows_is_complete(path: Path) -> None:
    pods = [pod(f"pod-{n}", {"nvidia.com/gpu": [f"GPU-{n:04}-{'x' * 900}"]}) for n in range(3000)]

    with kubelet(path, lambda _: listing(*pods)), closing(PodResourcesClient(path, PATIENT_S)) as client:
        client.list_held_devices()

        assert [held.pod for held in client.list_held_devices()] == [f"pod-{n}" for n in range(3000)]


def test_after_a_kubelet_restart_a_new_connection_is_used(path: Path) -> None:
    with closing(PodResourcesClient(path, PATIENT_S)) as client:
        with kubelet(path, lambda _: ONE):
            assert client.list_held_devices() == HELD
        with pytest.raises(PodResourcesError):
            client.list_held_devices()
        with kubelet(path, lambda _: b""):
            assert client.list_held_devices() == ()
        with kubelet(path, lambda _: ONE):
            assert client.list_held_devices() == HELD


def test_a_missing_socket_is_named(path: Path) -> None:
    assert refusal(path) == f"{path}: No such file or directory"


def test_a_grpc_error_is_quoted(path: Path) -> None:
    def answer(context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit: 100 %")

    with kubelet(path, answer):
        assert refusal(path) == f"{path}: gRPC status 8: rejected by rate limit: 100 %"


def test_a_kubelet_without_the_api_has_its_own_message(path: Path) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        assert refusal(path) == f"{path}: the kubelet has no PodResources v1 API; Kubernetes 1.20 or newer is required"
    finally:
        server.stop(None).wait()


def test_an_invalid_response_is_rejected(path: Path) -> None:
    with kubelet(path, lambda _: b"\x0b"):
        assert refusal(path) == f"{path}: invalid response: byte 0: field 1 has the unsupported wire type 3"


def test_a_compressed_response_is_rejected(path: Path) -> None:
    def answer(context: grpc.ServicerContext) -> bytes:
        context.set_compression(grpc.Compression.Gzip)
        return ONE * 50

    with kubelet(path, answer):
        assert refusal(path) == f"{path}: invalid response: it is compressed, which was not requested"


@contextmanager
def listener(path: Path, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """Another server on that socket: ``serve`` gets the first connection."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def run() -> None:
            connection, _ = server.accept()
            with connection:
                serve(connection)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            thread.join(PATIENT_S)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """An HTTP/2 frame (RFC 9113 section 4.1)."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, END_HEADERS = 1, 4
OK_STATUS, NOT_FOUND_STATUS = b"\x88", b"\x8d"  # ":status 200" and "404" of HPACK's static table
GRPC_OK = b"\x00\x0bgrpc-status\x010"  # a literal header, not indexed


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        pytest.param(b"", "the kubelet closed the connection", id="closes"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b" " * 100, None, id="speaks HTTP/1.1"),
        pytest.param(
            frame(SETTINGS, 0, 0, b"") + frame(HEADERS, END_HEADERS | END_STREAM, 1, NOT_FOUND_STATUS),
            "HTTP status 404: the server on this socket is not a kubelet",
            id="is another server",
        ),
        pytest.param(
            frame(SETTINGS, 0, 0, b"") + frame(RST_STREAM, 0, 1, struct.pack(">I", 7)),
            "the kubelet reset the call (HTTP/2 error 7)",
            id="resets the stream",
        ),
        pytest.param(
            frame(SETTINGS, 0, 0, b"") + frame(GOAWAY, 0, 0, struct.pack(">II", 0, 0)),
            "the kubelet closed the connection (HTTP/2 error 0)",
            id="goes away",
        ),
        pytest.param(
            frame(SETTINGS, 0, 0, b"")
            + frame(HEADERS, END_HEADERS, 1, OK_STATUS)
            + frame(DATA, 0, 1, b"\0\0")
            + frame(HEADERS, END_HEADERS | END_STREAM, 1, GRPC_OK),
            "invalid response: 2 bytes are too short for a gRPC message",
            id="sends no message",
        ),
        pytest.param(
            frame(SETTINGS, 0, 0, b"")
            + frame(HEADERS, END_HEADERS, 1, OK_STATUS)
            + frame(DATA, 0, 1, b"\0\0\0\0\x09abc")
            + frame(HEADERS, END_HEADERS | END_STREAM, 1, GRPC_OK),
            "invalid response: its header says 9 bytes, it has 3",
            id="sends less than it announced",
        ),
    ],
)
def test_a_server_that_is_not_a_kubelet_is_an_error(path: Path, answer: bytes, says: str | None) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass

    with listener(path, serve):
        assert refusal(path) == f"{path}: {says}" if says else refusal(path).startswith(f"{path}: ")


def test_a_kubelet_that_hangs_is_a_timeout(path: Path) -> None:
    done = threading.Event()

    def serve(_: socket.socket) -> None:
        done.wait(PATIENT_S)

    with listener(path, serve):
        assert refusal(path, timeout_s=0.05) == f"{path}: timed out"
        done.set()


def test_a_slow_response_ends_at_the_deadline(path: Path) -> None:
    done = threading.Event()
    clock = iter((0.0, 0.0, 0.0, 2.0))  # the deadline, the connection, the first bytes, the next

    def serve(connection: socket.socket) -> None:
        connection.sendall(frame(SETTINGS, 0, 0, b""))
        done.wait(PATIENT_S)

    with listener(path, serve):
        assert refusal(path, 1.0, clock=lambda: next(clock)) == f"{path}: no answer before the deadline"
        done.set()


def test_an_endless_response_is_cut_off(path: Path) -> None:
    with kubelet(path, lambda _: bytes(17 * 2**20)):
        assert refusal(path) == f"{path}: the response exceeds 16 MiB"
