"""``nvidia-smi -L``."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.errors import ParseError
from agent.sources.smi.listing import ListedGpu, ListedMig, Listing, parse_listing
from agent.sources.smi.unreachable import UnreachableGpu

A = "GPU-11111111-2222-3333-4444-5555555555aa"
B = "GPU-11111111-2222-3333-4444-5555555555bb"
M = "MIG-11111111-2222-5333-8444-555555555501"


def test_mig_devices_are_those_of_the_gpu_above_them() -> None:
    text = f"""\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: {A})
  MIG 3g.40gb     Device  0: (UUID: {M})
  MIG 1c.3g.40gb  Device  1: (UUID: {M[:-1]}2)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: {B})
"""

    assert parse_listing(text) == Listing(
        (
            ListedGpu(
                0, "NVIDIA A100-SXM4-80GB", A, (ListedMig(0, "3g.40gb", M), ListedMig(1, "1c.3g.40gb", f"{M[:-1]}2"))
            ),
            ListedGpu(1, "NVIDIA A100-SXM4-80GB", B),
        )
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", (), id="no GPU"),
        pytest.param(f"$ nvidia-smi -L\nGPU 0: Tesla T4 (UUID: {A})", (ListedGpu(0, "Tesla T4", A),), id="prompt"),
        pytest.param(
            f"   GPU 3: NVIDIA TITAN X (Pascal) (UUID: {A})",
            (ListedGpu(3, "NVIDIA TITAN X (Pascal)", A),),
            id="indented, and a bracket in the name",
        ),
        pytest.param("GPU 0: Tesla V100 (UUID: ...)", (ListedGpu(0, "Tesla V100", None),), id="UUID left out"),
        pytest.param("GPU 0: Tesla V100", (ListedGpu(0, "Tesla V100", None),), id="no UUID"),
        pytest.param(
            "GPU 0: Tesla C2050 (S/N: 0322210079212)", (ListedGpu(0, "Tesla C2050", None),), id="serial number"
        ),
        pytest.param("GPU 0:  (UUID: x)", (ListedGpu(0, None, None),), id="no name"),
        pytest.param(
            f"GPU 0: A100-SXM4-40GB (UUID: {A})\n MIG 1g.5gb Device 0: (UUID: MIG-{A}/7/0)",
            (ListedGpu(0, "A100-SXM4-40GB", A, (ListedMig(0, "1g.5gb", f"MIG-{A}/7/0"),)),),
            id="MIG UUID until driver 470",
        ),
    ],
)
def test_listings_of_all_ages_are_read(text: str, expected: tuple[ListedGpu, ...]) -> None:
    assert parse_listing(text).gpus == expected


def test_a_gpu_that_cannot_be_reached_does_not_hide_the_others() -> None:
    text = f"Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error\nGPU 0: NVIDIA L4 (UUID: {A})"

    assert parse_listing(text) == Listing(
        (ListedGpu(0, "NVIDIA L4", A),), (UnreachableGpu(1, "0000:34:00.0", "Unknown Error"),)
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("GPU 0: L4\nhello", "line 2: 'hello': not a line of `nvidia-smi -L`", id="another line"),
        pytest.param("GPU 0: L4\n\nGPU 0: L4", "line 3: 'GPU 0: L4': this GPU is listed twice", id="twice"),
        pytest.param(f"MIG 1g.5gb Device 0: (UUID: {M})", "a MIG device before any GPU", id="MIG first"),
        pytest.param("bash: nvidia-smi: command not found", "not a line of", id="no command"),
    ],
)
def test_an_error_quotes_the_line(text: str, why: str) -> None:
    with pytest.raises(ParseError) as refusal:
        parse_listing(text)

    assert why in str(refusal.value)


def test_a_quoted_line_is_cut_to_a_readable_length() -> None:
    with pytest.raises(ParseError) as refusal:
        parse_listing("x" * 100_000)

    assert len(str(refusal.value)) < 300


PIECES = st.sampled_from(
    ["GPU 0: L4", "GPU 12: ", "(UUID: ", A, ")", "\n", " ", "MIG 1g.5gb", "Device 0:", M, "(S/N: 1)"]
)


@given(st.text() | st.lists(PIECES).map("".join))
def test_any_text_is_a_listing_or_a_parse_error(text: str) -> None:
    try:
        listing = parse_listing(text)
    except ParseError:
        return

    assert len({gpu.index for gpu in listing.gpus}) == len(listing.gpus)
