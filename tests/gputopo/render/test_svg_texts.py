"""Texts are measured generously, cut at words, and say products and sizes as people do."""

import pytest

from gputopo.model import Gpu, Health
from gputopo.render.svg.words import (
    TIMES,
    counted_products,
    fit,
    longest,
    short_product,
    text_width,
    wrap,
)

# Advance widths of DejaVu Sans and DejaVu Sans Bold at 1000 units per em, as the font files say.
REGULAR = {"GPU 15": 3700, "A100-SXM4": 5772, "mlx5_10": 4252, "CPUs 48-63,176-191": 10272}
BOLD = {"GPU 15": 4106, "mlx5_10": 4618, "NUMA 3": 4462, "NV17 of 18": 6213}


@pytest.mark.parametrize("text", REGULAR)
def test_no_text_is_wider_than_its_estimate(text: str) -> None:
    assert REGULAR[text] <= text_width(text, 1000) <= 1.15 * REGULAR[text]


@pytest.mark.parametrize("text", BOLD)
def test_no_bold_text_is_wider_than_its_estimate(text: str) -> None:
    assert BOLD[text] <= text_width(text, 1000, bold=True) <= 1.2 * BOLD[text]


def test_east_asian_characters_take_a_full_em() -> None:
    assert text_width("図形", 10) == 20


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        pytest.param(200, "RTX PRO 6000 Max-Q", id="all of it"),
        pytest.param(100, "RTX PRO 6000…", id="whole words"),
        pytest.param(30, "RT…", id="letters of the first word"),
        pytest.param(11, "…", id="only the sign that there is more"),
        pytest.param(5, "", id="nothing"),
    ],
)
def test_texts_are_cut_at_words_if_possible(room: float, expected: str) -> None:
    assert fit("RTX PRO 6000 Max-Q", 11, room) == expected


@pytest.mark.parametrize(
    ("product", "expected"),
    [
        pytest.param("Tesla V100-SXM2-32GB", "V100-SXM2", id="memory at the end"),
        pytest.param("NVIDIA H100 80GB HBM3", "H100", id="memory and its kind"),
        pytest.param("NVIDIA A100 80GB PCIe", "A100 PCIe", id="memory in the middle"),
        pytest.param("NVIDIA GeForce RTX 4090", "RTX 4090", id="brands"),
        pytest.param("NVIDIA 80GB", "80GB", id="nothing else left"),
        pytest.param("NVIDIA ", "NVIDIA", id="only the vendor"),
        pytest.param(" ", "unknown GPU", id="blank"),
    ],
)
def test_products_are_called_as_people_call_them(product: str, expected: str) -> None:
    assert short_product(product) == expected


@pytest.mark.parametrize(
    ("room", "most", "expected"),
    [
        pytest.param(300, 3, ("one two three four",), id="one line is enough"),
        pytest.param(60, 3, ("one two", "three four"), id="two lines"),
        pytest.param(60, 1, ("one two…",), id="cut in the last line"),
        pytest.param(22, 3, ("one", "two", "th…"), id="words that are too long"),
        pytest.param(5, 2, ("", ""), id="no room"),
    ],
)
def test_texts_are_wrapped_at_words(room: float, most: int, expected: tuple[str, ...]) -> None:
    assert wrap("one two three four", 10, room, most) == expected


def test_the_longest_text_that_fits_is_chosen() -> None:
    assert [longest(("CPUs 0-63", "CPUs"), 10, room) for room in (100, 40, 10)] == ["CPUs 0-63", "CPUs", ""]


def test_gpus_without_products_are_only_counted() -> None:
    assert [counted_products([Gpu(index=i) for i in range(count)]) for count in (1, 2)] == ["1 GPU", "2 GPUs"]


def test_products_are_counted_in_the_order_of_the_gpus() -> None:
    gpus = [
        Gpu(index=0, product="NVIDIA A40"),
        Gpu(index=1, product="NVIDIA L4"),
        Gpu(index=2, product="NVIDIA A40"),
        Gpu(index=3),
        Gpu(index=4, health=Health.LOST),
    ]
    assert counted_products(gpus) == f"2 {TIMES} A40 + L4 + unknown GPU + lost GPU"
