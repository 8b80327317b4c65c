"""PCI bus ids in the spellings of NVML, nvidia-smi, NCCL and sysfs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.bus_id import sysfs_bus_id


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("00000000:0A:00.0", "0000:0a:00.0", id="NVML"),
        pytest.param("0000:0a:00.0", "0000:0a:00.0", id="sysfs"),
        pytest.param(" 00000019:06:1F.7\n", "0019:06:1f.7", id="another domain, the last device and function"),
        pytest.param("00010000:01:00.0", "10000:01:00.0", id="a domain of five digits (VMD)"),
        pytest.param("ffff:ff:01.0", "ffff:ff:01.0", id="an invented switch of a hand-written NCCL file"),
        pytest.param("FFFFFFFF:FF:FF.0", None, id="NVML: not visible"),
        pytest.param("fffffff:ffff:ff", None, id="NCCL: not visible"),
        pytest.param("fffffff:ff:ff.0", None, id="NCCL, later: not visible"),
        pytest.param("0000:01.0", None, id="no bus"),
        pytest.param("0000:01:00.8", None, id="no such function"),
        pytest.param("", None, id="empty"),
    ],
)
def test_bus_ids_become_those_of_sysfs(text: str, expected: str | None) -> None:
    assert sysfs_bus_id(text) == expected


@given(st.text(alphabet="0123456789abcdefF:.x", max_size=24))
def test_a_bus_id_of_sysfs_stays_as_it_is(text: str) -> None:
    first = sysfs_bus_id(text)

    assert first is None or sysfs_bus_id(first) == first
