"""A sample of the mutants of each format: no wrong label is published unreported. `make mutants` runs all."""

import pytest
from click.testing import CliRunner

from gputopo.cli import main
from tests.mutants.campaign import run_first_of_two, run_format
from tests.mutants.inputs import inputs
from tests.mutants.judge import Verdict, judge, published_labels

SAMPLE = 60  # mutants per text
INPUTS = inputs()


@pytest.mark.parametrize("kind", INPUTS)
def test_nothing_wrong_is_published_of_a_damaged_input(kind: str) -> None:
    result = run_format(kind, INPUTS[kind], SAMPLE)

    assert [(case.mutant, case.labels) for case in result.wrong] == []
    # `topo -p2p` alone is no input: it shows no links.
    assert (result.counts[Verdict.REFUSED] == sum(result.counts.values())) == (kind == "`topo -p2p`")


def test_a_damaged_matrix_does_not_give_way_to_that_of_another_machine() -> None:
    result = run_first_of_two(SAMPLE)

    assert [(case.mutant, case.labels) for case in result.wrong] == []
    assert sum(result.counts.values()) >= SAMPLE // 2


def test_every_input_is_published_undamaged_where_its_format_can_show_the_gpus() -> None:
    published = {kind: [published_labels(text.encode()) for text in texts] for kind, texts in INPUTS.items()}

    complete = {kind for kind, found in published.items() if all(each and not each[1] for each in found)}
    assert complete == INPUTS.keys() - {"`-L`", "`nvlink -s`", "`topo -p2p`"}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [("gpus", Verdict.RIGHT), ("islands", Verdict.UNREPORTED)],
)
def test_the_judge_compares_with_the_undamaged_input(labels: str, expected: Verdict) -> None:
    text = INPUTS["`topo -m`"][1].encode()
    published = published_labels(text)
    assert published is not None
    whole = published[0] | ({} if labels == "gpus" else {"gputopo.io/islands": "1-1"})

    assert judge(whole, text)[0] is expected
    assert judge(whole, b"nothing")[0] is Verdict.REFUSED


def test_the_judge_agrees_with_the_command() -> None:
    text = INPUTS["`topo -m`"][0]
    cut = text[: len(text) // 8]

    result = CliRunner().invoke(main.main, ["labels", "--from", "-"], input=cut)

    published = published_labels(cut.encode())
    assert published is not None
    assert result.exit_code == 5
    assert dict(line.split("=", 1) for line in result.stdout.split()) == published[0]
