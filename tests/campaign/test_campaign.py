"""A sample of the campaign: hostile values of one tenant change no answer for another tenant."""

from __future__ import annotations

import pytest

from tests.campaign.attacks import (
    Attack,
    CommandAttack,
    attacks,
    command_attacks,
    run_attack,
    run_command_attack,
)

_STEP = 101  # of 90,000 values: a prime, so that every field and every kind of value has its turn


@pytest.mark.parametrize("attack", list(attacks()), ids=lambda each: each.name)
def test_hostile_fields_change_no_answer_for_another_tenant(attack: Attack) -> None:
    found = run_attack(attack, _STEP)

    assert found.tried > 0
    assert found.faults == ()


@pytest.mark.parametrize("attack", command_attacks(), ids=lambda each: f"{each.name} {each.resource.group}")
def test_hostile_objects_stop_no_command(attack: CommandAttack) -> None:
    found = run_command_attack(attack, _STEP)

    assert found.tried > 0
    assert found.faults == ()


def test_a_changed_answer_is_found() -> None:
    """The campaign sees what it is there to see."""
    (pending, *_) = attacks()

    assert run_attack(pending._replace(answer=None), _STEP).faults
