"""The package as a user installs it."""

import gputopo


def test_version_is_a_plain_release_number() -> None:
    assert gputopo.__version__.count(".") == 2
