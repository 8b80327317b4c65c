"""Judges a damaged input by what would be published of it."""

from __future__ import annotations

from enum import Enum

from agent.recording.inputs import InputError, decode_text, read_observation
from gputopo.cli.source import name_uncertain_facts
from gputopo.labels import encode_topology


class Verdict(Enum):
    """The result for one mutant."""

    RIGHT = "right"  # every published label is that of the undamaged input
    REFUSED = "refused"  # exit code 2 or 3, with a message
    REPORTED = "wrong, reported"  # a wrong label, with exit code 5
    UNREPORTED = "wrong, not reported"  # a wrong label, with exit code 0


def published_labels(data: bytes) -> tuple[dict[str, str], bool] | None:
    """Return the labels that `gputopo labels` prints, and whether its exit code is 5; None if the input is refused."""
    try:
        topology = read_observation(decode_text(data)).topology
    except InputError:
        return None
    if not topology.gpus:
        return None
    facts = encode_topology(topology)
    return facts.labels | facts.mirrors, bool(name_uncertain_facts(topology))


def judge(whole: dict[str, str], data: bytes) -> tuple[Verdict, dict[str, str]]:
    """Return the verdict on a mutant of an input with these labels, and the wrong labels."""
    found = published_labels(data)
    if found is None:
        return Verdict.REFUSED, {}
    labels, said = found
    wrong = {key: value for key, value in labels.items() if whole.get(key) != value}
    if not wrong:
        return Verdict.RIGHT, {}
    return Verdict.REPORTED if said else Verdict.UNREPORTED, wrong
