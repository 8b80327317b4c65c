"""The observer's settings."""

from __future__ import annotations

import pytest

from gputopo.process.settings import SettingError
from scheduler_core.observe.settings import ObserverSettings, read_settings


def test_by_default_nothing_ends_and_nothing_is_served() -> None:
    assert read_settings({}, {}) == ObserverSettings(
        output="text", for_s=None, every_s=None, listen=None, pages="loopback", log="text"
    )


def test_a_flag_beats_the_environment() -> None:
    found = read_settings({"for_s": "0s", "every_s": "10m"}, {"GPUTOPO_FOR": "1h", "GPUTOPO_LISTEN": ":9439"})

    assert (found.for_s, found.every_s, found.listen) == (0.0, 600.0, ("", 9439))


@pytest.mark.parametrize("text", ["0s", "soon"], ids=["nothing", "a-word"])
def test_a_summary_takes_some_time(text: str) -> None:
    with pytest.raises(SettingError, match=f"--every: '{text}'"):
        read_settings({"every_s": text}, {})
