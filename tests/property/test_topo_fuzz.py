"""Properties of the `topo -m` parser: any text gives a matrix or a ParseError; wrong islands always have a problem."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.sources.errors import ParseError
from agent.sources.kernel_list import parse_single_number
from agent.sources.smi.topo import TopoMatrix, parse_topo
from gputopo.model import MAX_GPUS, PcieDistance
from tests.topo_text import ERAS, HARMLESS, Era, Machine, damaged, in_terminal, islands, numa, printed, said

WORDS = [
    *("GPU0", "GPU1", "GPU2", "GPU10", "NIC0", "mlx5_0", "bnxt_re0", "X", " X ", "NV1", "NV12", "SYS", "SOC", "NODE"),
    *("PIX", "PHB", "OK", "NS", "CPU Affinity", "NUMA Affinity", "GPU NUMA ID", "0-63", "0,5-11", "0", "N/A", "..."),
    *("Legend:", "NV#  = links", "PIX  = bridge", "NIC0: mlx5_0", "nvidia-smi topo -mp", "\x1b[4m", "[0m", "&nbsp;"),
    *("\t", "\n", "  ", "\n\n", "0: ", "1: ", "> ", "# ", "\x1f", "|", "\r\n", "ﬁ", "\u3000", "<br>", "\\n", "<-- no"),
]


def lawful(text: str) -> TopoMatrix | None:
    """Parse and check the properties of every matrix. None: rejected."""
    try:
        matrix = parse_topo(text)
    except ParseError:
        return None
    size = len(matrix.gpus)
    indices = [gpu.index for gpu in matrix.gpus]
    assert indices == sorted(set(indices))
    assert 1 <= size <= MAX_GPUS
    assert matrix.cells == tuple(zip(*matrix.cells, strict=True))  # symmetric
    assert all(matrix.cells[i][i] is None for i in range(size))
    assert all(len(nic.distances) == size for nic in matrix.nics)
    assert matrix.problems or matrix.known_cells == size * (size - 1)
    for gpu in matrix.gpus:
        parse_single_number(gpu.numa_affinity)
    return matrix


@given(st.text())
@settings(deadline=None)
def test_any_text_gives_a_lawful_matrix_or_a_parse_error(text: str) -> None:
    lawful(text)


@given(st.lists(st.sampled_from(WORDS), max_size=80).map("".join))
@example("GPU0\tGPU02\tCPU Affinity\nGPU0\tX\tNV1\t0\n")  # found by fuzzing: two labels of one index
@settings(max_examples=300, deadline=None)
def test_any_mix_of_its_words_gives_a_valid_matrix_or_a_parse_error(text: str) -> None:
    lawful(text)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Any machine of 1 to 16 GPUs: NVLinks between some, PCIe between the others."""
    size = draw(st.integers(1, 16))
    lanes = st.sampled_from([1, 2, 4, 6, 12, 18, 36])
    linked = draw(st.sampled_from([st.sampled_from(PcieDistance), lanes, lanes | st.sampled_from(PcieDistance)]))
    upper = {(i, j): draw(linked) for i in range(size) for j in range(i + 1, size)}
    cells = tuple(tuple(upper.get((min(i, j), max(i, j))) for j in range(size)) for i in range(size))
    nics = draw(st.lists(st.tuples(*[st.sampled_from(PcieDistance)] * size), max_size=4))
    nodes = draw(st.integers(1, 2))
    node_of = [i * nodes // size for i in range(size)]
    cpus = ("0-31,64-95", "32-63,96-127") if draw(st.booleans()) else ("0-31", "32-63")
    wide = draw(st.booleans())
    texts = ("0-1", "2-3") if wide else ("0", "1")
    return Machine(cells, tuple(nics), tuple(cpus[at] for at in node_of), tuple(texts[at] for at in node_of))


@pytest.mark.parametrize("era", ERAS.values(), ids=ERAS)
@given(machine=machines())
@settings(max_examples=20, deadline=None)
def test_driver_output_is_parsed_exactly(era: Era, machine: Machine) -> None:
    matrix = parse_topo(printed(machine, era))

    assert matrix.problems == ()
    assert matrix.cells == machine.cells
    assert [gpu.cpu_affinity for gpu in matrix.gpus] == list(machine.cpus)
    assert [gpu.numa_affinity for gpu in matrix.gpus] == (
        list(machine.numa) if era.columns > 1 else [None] * len(machine.cells)
    )
    assert [nic.distances for nic in matrix.nics] == list(machine.nics)


@pytest.mark.parametrize("change", HARMLESS)
@given(machine=machines(), era=st.sampled_from(list(ERAS)))
@settings(max_examples=15, deadline=None)
def test_a_paste_that_only_changes_the_form_changes_nothing(change: str, machine: Machine, era: str) -> None:
    text = printed(machine, ERAS[era])

    assert said(parse_topo(HARMLESS[change](text))) == said(parse_topo(text))


@given(machine=machines(), era=st.sampled_from(["418", "525", "550"]), width=st.integers(40, 240), joined=st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_terminal_of_any_width_never_changes_an_island_without_an_error(
    machine: Machine, era: str, width: int, *, joined: bool
) -> None:
    text = printed(machine, ERAS[era])
    whole, matrix = parse_topo(text), lawful(in_terminal(text, width, joined=joined))

    assert matrix is None or matrix.problems or (matrix.cells, numa(matrix)) == (whole.cells, numa(whole))


@given(machine=machines(), era=st.sampled_from(list(ERAS)), step=st.integers(29, 97))
@settings(max_examples=25, deadline=None)
def test_damage_is_repaired_or_refused_or_said(machine: Machine, era: str, step: int) -> None:
    text = printed(machine, ERAS[era])
    whole = parse_topo(text)
    for name, rest in damaged(text, step):
        matrix = lawful(rest)
        assert matrix is None or matrix.problems or islands(matrix) == islands(whole), name


@given(machine=machines(), data=st.data())
@settings(max_examples=30, deadline=None)
def test_any_few_changed_characters_are_repaired_or_refused_or_said(machine: Machine, data: st.DataObject) -> None:
    text = printed(machine, ERAS["580-no-legend"])
    for _ in range(3):
        at = data.draw(st.integers(0, len(text) - 1))
        text = (
            text[:at] + data.draw(st.sampled_from(["", "\n", " ", "\t", "X", "1", "GPU", "NV", "?"])) + text[at + 1 :]
        )
    matrix = lawful(text)

    whole = [set(island) for island in islands(parse_topo(printed(machine, ERAS["580-no-legend"])))]
    assert matrix is None or matrix.problems or [set(each) for each in islands(matrix)] == whole


@given(machine=machines(), era=st.sampled_from(list(ERAS)), data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_cut_at_any_byte_never_changes_an_island_or_numa_node_without_an_error(
    machine: Machine, era: str, data: st.DataObject
) -> None:
    text = printed(machine, ERAS[era])
    whole = parse_topo(text)
    matrix = lawful(text[: data.draw(st.integers(0, len(text)))])
    if matrix is not None and not matrix.problems:
        assert islands(matrix) == islands(whole)
        assert all(cut in (None, node) for cut, node in zip(numa(matrix), numa(whole), strict=True))


GARBAGE = {
    "one row for ever": "GPU0\t X \t" + "NV1\t" * 100_000,
    "rows without end": "GPU0\t X \tNV12\tSYS\t0-63\t0\n" * 20_000,
    "headers without end": "GPU0 GPU1\n" * 20_000,
    "a header and its continuation without end": "GPU0 GPU1 CPU Affinity\n" + "NIC1 NIC2\n" * 20_000,
    "a row and its continuation without end": "GPU0 GPU1 CPU Affinity\nGPU0 X\n" + "SYS\n" * 50_000,
    "blanks": "GPU0" + " " * 400_000 + "X",
    "line ends": "\n" * 400_000,
    "escape codes": "\x1b[" * 200_000,
    "tags": "<br" * 100_000,
    "entities": "&#" * 200_000,
    "digits": "GPU0 X " + "1" * 400_000,
    "a CPU list": "GPU0 X " + "1," * 200_000,
    "names": "GPU0 GPU1 " + "a1 " * 100_000,
    "an equals sign far away": "PIX" + " " * 400_000 + "=",
}


@pytest.mark.parametrize("text", GARBAGE.values(), ids=GARBAGE)
def test_garbage_takes_time_in_proportion_to_its_length(text: str) -> None:
    """400 KB take a fraction of a second; a pattern that backtracks would take hours."""
    lawful(text)


@pytest.mark.parametrize(
    ("cpus", "numa"),
    [
        (("0-31", "32-63"), ("0-1", "2-3")),
        (("0-47,96-143", "48-95,144-191"), ("0,2", "1,3")),
        (("0-127", "128-255"), ("0-7", "8-15")),
    ],
)
@pytest.mark.parametrize("era", ["418", "525", "550"])
def test_affinities_that_a_terminal_of_any_width_broke(era: str, cpus: tuple[str, str], numa: tuple[str, str]) -> None:
    pair: tuple[tuple[PcieDistance | None, ...], ...] = ((None, PcieDistance.PIX), (PcieDistance.PIX, None))
    text = printed(Machine(cells=pair, nics=(), cpus=cpus, numa=numa), ERAS[era])
    whole = parse_topo(text)

    for width in range(24, 80):
        found = lawful(in_terminal(text, width, joined=False))
        if found is None or found.problems:
            continue
        for gpu, expected in zip(found.gpus, whole.gpus, strict=True):
            assert gpu.cpu_affinity in (None, expected.cpu_affinity), width
            assert gpu.numa_affinity in (None, expected.numa_affinity), width
