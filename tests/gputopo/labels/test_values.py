"""Every text becomes a value that Kubernetes takes, and two texts never become one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.labels.values import gfd_value, is_label_value, label_value
from tests.property.strategies import texts

LONG = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition MIG 1g.24gb"  # 67: k8s-device-plugin#1876

SPELLED = {
    "a product as users know it": ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
    "runs of white space": ("Tesla  V100\t SXM2", "Tesla-V100-SXM2"),
    "a dropped character leaves its hash": ("Quadro RTX 6000/8000", "Quadro-RTX-60008000-d40da7b1"),
    "too long": (LONG, "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Editio-d7abe883"),
    "ends trimmed": ("-x-", "x-c6cf95e5"),
    "nothing left": ("é", "4a99557e"),
}


@pytest.mark.parametrize(("text", "value"), SPELLED.values(), ids=SPELLED)
def test_label_values_are_spelled_so_that_people_recognise_them(text: str, value: str) -> None:
    assert label_value(text) == value


def test_a_blank_text_has_no_label_value() -> None:
    with pytest.raises(ValueError, match="' ' cannot be a label value: leave the label out"):
        label_value(" ")


GFD = {
    "as it is": ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
    "characters dropped": ("Quadro RTX 6000/8000", "Quadro-RTX-60008000"),
    "too long for Kubernetes": (LONG, label_value(LONG)),
    "nothing": (" ", None),
}


@pytest.mark.parametrize(("text", "value"), GFD.values(), ids=GFD)
def test_mirrors_are_spelled_as_gpu_feature_discovery_does_where_that_is_valid(text: str, value: str | None) -> None:
    assert gfd_value(text) == value


@given(st.text() | texts)
def test_every_text_becomes_a_valid_value_or_none(text: str) -> None:
    if text.strip():
        assert is_label_value(label_value(text))
    assert gfd_value(text) is None or is_label_value(gfd_value(text) or "")


@given(st.lists(st.text(min_size=1).filter(lambda text: text == " ".join(text.split())), min_size=2, unique=True))
def test_two_texts_never_become_one_value_but_for_blanks_against_dashes(names: list[str]) -> None:
    distinct = {name.replace(" ", "-") for name in names}

    assert len({label_value(name) for name in names}) == len(distinct)
