"""The bundled example machines, by name."""

from pathlib import Path

from agent.recording.bundled import bundled_directory, find_recording, list_machines


def test_every_machine_has_a_title_an_alias_and_a_recording() -> None:
    listed = list(list_machines(bundled_directory()))

    assert len(listed) >= 30
    assert all(machine.title and machine.aliases and Path(machine.snapshot).is_file() for machine in listed)


def test_a_machine_is_found_by_name_and_by_alias() -> None:
    named = {name: each.snapshot for each in list_machines(bundled_directory()) for name in (each.name, *each.aliases)}

    assert {name: find_recording(name, bundled_directory()) for name in named} == named


def test_an_unknown_name_is_not_found(tmp_path: Path) -> None:
    assert find_recording("dgx-a1000", bundled_directory()) is None
    assert list(list_machines(str(tmp_path))) == []
