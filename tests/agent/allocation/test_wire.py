"""The decoder against protobuf's own encoder, and against invalid bytes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocation.wire import HeldDevices, PodResourcesWireError, decode_fields, decode_held_devices
from tests.agent.allocation.kubelet import listing, message, pod

names = st.text(max_size=12)
devices = st.dictionaries(names, st.lists(names, max_size=4), max_size=3)
pods = st.lists(st.tuples(names, names, names, devices), max_size=4)


def test_devices_are_decoded_and_other_fields_are_skipped() -> None:
    body = listing(
        pod("train-0", {"nvidia.com/gpu": ["GPU-a", "GPU-b"], "rdma/hca": ["mlx5_0"]}, namespace="ml", container="w"),
        pod("idle", {}),
    )

    assert decode_held_devices(body) == (
        HeldDevices("ml", "train-0", "w", "nvidia.com/gpu", ("GPU-a", "GPU-b")),
        HeldDevices("ml", "train-0", "w", "rdma/hca", ("mlx5_0",)),
    )


def test_an_empty_message_holds_nothing() -> None:
    assert decode_held_devices(b"") == ()


def test_a_name_that_is_missing_is_empty_and_the_last_of_two_counts() -> None:
    devices = b"\x0a\x01a\x0a\x01b\x12\x01x"  # resource_name "a", then "b"; device_ids "x"
    container = b"\x12" + bytes([len(devices)]) + devices
    inner = b"\x1a" + bytes([len(container)]) + container

    assert decode_held_devices(b"\x0a" + bytes([len(inner)]) + inner) == (HeldDevices("", "", "", "b", ("x",)),)


@given(pods)
def test_whatever_protobuf_encodes_is_decoded(pods: list[tuple[str, str, str, dict[str, list[str]]]]) -> None:
    body = listing(*(pod(name, held, namespace=space, container=inside) for name, space, inside, held in pods))

    assert decode_held_devices(body) == tuple(
        HeldDevices(space, name, inside, resource, tuple(ids))
        for name, space, inside, held in pods
        for resource, ids in held.items()
    )


@given(st.binary(max_size=200))
def test_random_bytes_are_decoded_or_rejected(body: bytes) -> None:
    with contextlib.suppress(PodResourcesWireError):
        assert all(isinstance(each, HeldDevices) for each in decode_held_devices(body))


@given(st.data())
def test_a_truncated_response_is_rejected_unless_cut_between_pods(data: st.DataObject) -> None:
    one = listing(pod("a", {"nvidia.com/gpu": ["GPU-a"]}))
    body = one + listing(pod("b", {"nvidia.com/gpu": ["GPU-b"]}))
    at = data.draw(st.integers(1, len(body) - 1).filter(lambda at: at != len(one)))

    with pytest.raises(PodResourcesWireError):
        decode_held_devices(body[:at])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        pytest.param(b"\x00\x01", "byte 0: field number 0 is invalid", id="field 0"),
        pytest.param(b"\x0b", "byte 0: field 1 has the unsupported wire type 3", id="a group"),
        pytest.param(b"\x08\xff", "byte 1: the message ends inside a varint", id="a number cut short"),
        pytest.param(b"\x08" + b"\x80" * 10, "byte 1: a varint of more than 10 bytes", id="a number without end"),
        pytest.param(
            b"\x12\x05ab", "byte 0: field 2 has 5 bytes and the message ends after 2", id="a string cut short"
        ),
        pytest.param(b"\x09\x00", "byte 0: field 1 has 8 bytes and the message ends after 1", id="64 bits cut short"),
    ],
)
def test_damage_is_located(body: bytes, says: str) -> None:
    with pytest.raises(PodResourcesWireError) as refused:
        list(decode_fields(body))

    assert str(refused.value) == says


def test_a_string_that_is_not_utf8_is_quoted() -> None:
    with pytest.raises(PodResourcesWireError) as refused:
        decode_held_devices(b"\x0a\x06\x1a\x04\x12\x02\x12\x00" + b"\x0a\x08\x1a\x06\x12\x04\x0a\x02\xff\xfe")

    assert str(refused.value) == r"a string is not UTF-8 (invalid start byte): b'\xff\xfe'"


def test_fixed_size_fields_of_the_future_are_skipped_by_their_size() -> None:
    assert list(decode_fields(b"\x31" + b"8bytes!!" + b"\x3d" + b"four" + b"\x40\x96\x01")) == [
        (6, b"8bytes!!"),
        (7, b"four"),
        (8, 150),
    ]


def test_the_messages_of_the_tests_are_those_of_the_kubelet() -> None:
    assert message("ContainerDevices", resource_name="r", device_ids=["d"]).SerializeToString() == b"\x0a\x01r\x12\x01d"
