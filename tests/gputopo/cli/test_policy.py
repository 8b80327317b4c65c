"""`gputopo policy`."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from gputopo.cli.main import main

GOOD = "apiVersion: gputopo.io/v1alpha1\nkind: PlacementPolicy\nprofiles: [{name: a, match: {namespace: x}}]\n"


def test_good_file(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(GOOD)
    found = CliRunner().invoke(main, ["policy", "check", str(path)])

    assert (found.exit_code, found.stdout) == (
        0,
        f"{path}: valid; profiles, in the order of matching: a, default\n",
    )


def test_bad_file_says_where_and_ends_with_2(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(GOOD + "default: {}\n")
    found = CliRunner().invoke(main, ["policy", "check", str(path)])

    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr == (
        f"gputopo: {path}:4:1: default: unknown key; allowed: apiVersion, kind, staleness, workloadClass, "
        "gangs, preemption, backfill, defaults, profiles\n"
    )


def test_standard_input_and_binary() -> None:
    assert CliRunner().invoke(main, ["policy", "check", "-"], input=GOOD).exit_code == 0
    found = CliRunner().invoke(main, ["policy", "check", "-"], input=b"\xff\xfd")

    assert found.exit_code == 2
    assert "not UTF-8 text" in found.stderr


def test_show_with_and_without_a_file(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(GOOD + "defaults: {shortlist: 7}\n")
    built_in, of_file = (CliRunner().invoke(main, ["policy", "show", *args]).stdout for args in ([], [str(path)]))

    assert "profile default: all other pods\n" in built_in
    assert "line" not in built_in
    assert [line.split() for line in of_file.splitlines() if "shortlist" in line] == [
        ["shortlist", "7", "line", "4"]
    ] * 2
