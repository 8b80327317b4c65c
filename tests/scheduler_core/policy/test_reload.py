"""A policy file that changes while it is in use."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler_core.policy.file import PolicyError, parse_policy_file
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.policy.reload import PolicyReload

HEAD = "apiVersion: gputopo.io/v1alpha1\nkind: PlacementPolicy\n"
GOOD = HEAD + "defaults: {shortlist: 7}\n"
BETTER = HEAD + "defaults: {shortlist: 8}\n"
BAD = HEAD + "defaults: {shortlist: 0}\n"


def _reload(path: Path) -> PolicyReload:
    return PolicyReload(lambda: path.read_text(encoding="utf-8"), "policy.yaml")


def _look(reload: PolicyReload) -> tuple[bool, str | None]:
    """Reload; return whether the policies changed, and the error."""
    return reload.reload(), reload.error


def test_without_a_file_the_built_in_policy_is_used() -> None:
    reload = PolicyReload(None)

    assert (reload.current, reload.reload(), reload.error) == (BUILT_IN, False, None)


def test_invalid_file_at_the_start_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text(BAD)

    with pytest.raises(PolicyError, match=r"policy\.yaml:3:12: defaults\.shortlist: 0 should be"):
        _reload(path)


def test_valid_file_is_used_and_an_invalid_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text(GOOD)
    reload = _reload(path)
    assert (reload.reload(), reload.current) == (False, parse_policy_file(GOOD, "p").policies)

    path.write_text(BAD)
    trouble = "policy.yaml:3:12: defaults.shortlist: 0 should be greater than or equal to 1"
    assert _look(reload) == (False, trouble)
    assert reload.current == parse_policy_file(GOOD, "p").policies

    path.write_text(BETTER)
    assert _look(reload) == (True, None)
    assert _look(reload) == (False, None)
    assert reload.current == parse_policy_file(BETTER, "p").policies


def test_invalid_file_is_reported_again_after_a_valid_file(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text(GOOD)
    reload = _reload(path)
    path.write_text(BAD)
    first = _look(reload)
    assert _look(reload) == first

    path.unlink()
    assert _look(reload) != first
    path.write_text(BAD)
    assert _look(reload) == first


def test_restored_file_clears_the_error(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text(GOOD)
    reload = _reload(path)
    path.write_text(BAD)
    reload.reload()
    path.write_text(GOOD)

    assert _look(reload) == (False, None)


def test_equal_policies_written_differently_are_no_change(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text(GOOD)
    reload = _reload(path)
    path.write_text("# why\n" + GOOD)

    assert not reload.reload()


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(b"\xff\xfe\xfa")], ids=["gone", "binary"])
def test_unreadable_file_keeps_the_current_policies(tmp_path: Path, spoil: object) -> None:
    path = tmp_path / "p"
    path.write_text(GOOD)
    reload = _reload(path)
    assert callable(spoil)
    spoil(path)

    assert not reload.reload()
    assert reload.error is not None
    assert reload.current == parse_policy_file(GOOD, "p").policies
