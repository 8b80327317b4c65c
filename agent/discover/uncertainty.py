"""Uncertain facts of damaged or contradictory inputs. Pure.

Results of NVML are complete. Printed texts and files count as complete only if they show that nothing is missing:
indices without gaps, as many GPUs as the driver says, the same GPUs in every source, and products that are not parts of
each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import TYPE_CHECKING

from agent.discover.inventory import unreachable_indices
from agent.discover.links import compare_with_listed_ports, listed_ports
from agent.discover.parsed import ParsedSources
from agent.discover.ports import GpuPorts
from agent.discover.precedence import SourcePrecedence
from agent.discover.products import has_no_nvlink, is_known_product, misread_product, pair_links
from gputopo.model import FactGroup, Gpu, ProblemKind

if TYPE_CHECKING:
    from agent.sources.smi.topo import TopoMatrix

_SWITCHED_GPUS = 5  # so many GPUs that are all linked to each other need NVSwitches
_LEAST_SWITCHED = 6  # NVLinks of a GPU behind NVSwitches


def uncertain_facts(
    sources: ParsedSources, gpus: tuple[Gpu, ...], ports: Mapping[int, GpuPorts], precedence: SourcePrecedence
) -> tuple[FactGroup, ...]:
    """Return the uncertain facts; add a problem for each reason that no parser has reported."""
    if sources.nvml is not None and sources.nvml.gpus:
        missing = (sources.nvml.device_count or 0) - len(sources.nvml.gpus)
        if missing > 0:
            why = f"NVML counts {sources.nvml.device_count} GPUs, and the recording has {len(sources.nvml.gpus)}"
            precedence.add_problem("gpus", ProblemKind.INCOMPLETE, why)
        return (FactGroup.GPUS,) if missing > 0 else ()
    found = set(sources.topo.uncertain if sources.topo else ())
    found |= set(sources.nccl.uncertain if sources.nccl else ())
    for why in _gpu_conflicts(sources, gpus):
        precedence.add_problem("gpus", ProblemKind.INCOMPLETE, why)
        found.add(FactGroup.GPUS)
    if _some_products_missing(gpus):  # ``gaps`` reports which
        found.add(FactGroup.PRODUCTS)
    for why in _product_conflicts(sources, gpus):
        precedence.add_problem("gpus.product", ProblemKind.CONFLICT, why)
        found.add(FactGroup.PRODUCTS)
    for why in compare_with_listed_ports(sources, ports):
        precedence.add_problem("nvlink", ProblemKind.CONFLICT, why)
        found.add(FactGroup.NVLINK)
    for why in _lost_digits(sources.topo, gpus):
        precedence.add_problem("nvlink", ProblemKind.CONFLICT, why)
        found.add(FactGroup.NVLINK)
    if may_hide_links(sources, gpus):
        why = "nothing after the matrix explains NV#: it may be of `topo -mp`, which shows no NVLinks"
        advice = "paste all of `nvidia-smi topo -m`, and `nvidia-smi -L`"
        precedence.add_problem("nvlink", ProblemKind.UNKNOWN, f"{why}; {advice}")
        found.add(FactGroup.NVLINK)
    return tuple(group for group in FactGroup if group in found)


def may_hide_links(sources: ParsedSources, gpus: tuple[Gpu, ...]) -> bool:
    """Return whether the matrix may be of ``topo -mp``, which shows no NVLinks, of GPUs that may have some."""
    return sources.topo is not None and sources.topo.may_be_pci_only and not _has_no_links(sources, gpus)


def _has_no_links(sources: ParsedSources, gpus: tuple[Gpu, ...]) -> bool:
    """Return whether no two GPUs are connected: their products have no NVLink, or at most one has an active link."""
    if all(has_no_nvlink(gpu.product) for gpu in gpus):
        return True
    silent = {each.gpu.index for each in sources.link_status or () if each.all_inactive}
    inactive = silent | {index for index, (active, _) in listed_ports(sources).items() if not active}
    return sources.topo is not None and len({gpu.index for gpu in sources.topo.gpus} - inactive) < 2


def _gpu_conflicts(sources: ParsedSources, gpus: tuple[Gpu, ...]) -> Iterator[str]:
    indices = {gpu.index for gpu in gpus}
    skipped = sorted(set(range(max(indices, default=-1))) - indices)
    if skipped and sources.topo is None:  # the parser of the matrix reports them itself
        missing = f"GPU {skipped[0]} is" if len(skipped) == 1 else f"GPUs {_numbers(skipped)} are"
        yield f"{missing} not in the input, though higher indices are"
    if sources.query is not None and sources.query.attached != (described := len(sources.query.gpus)):
        attached = "an unknown number of" if sources.query.attached is None else sources.query.attached
        yield f"the driver has {attached} GPUs, and {described} are described (`nvidia-smi -i`?)"
    described_buses = {gpu.bus_id for gpu in sources.query.gpus} if sources.query else set()
    for lost in sources.query.unreachable if sources.query else ():
        if lost.index is None and lost.bus_id not in described_buses and sources.listing is None:
            yield f"nvidia-smi cannot reach GPU {lost.bus_id or '(unnamed)'}, which -q does not describe"
    unreachable = unreachable_indices(sources) if sources.listing else frozenset[int]()
    listed = {
        "topo -m": {gpu.index for gpu in sources.topo.gpus} if sources.topo else None,
        "-L": {gpu.index for gpu in sources.listing.gpus} | unreachable if sources.listing else None,
        "nvlink -s": {each.gpu.index for each in sources.link_status} if sources.link_status else None,
    }
    for command, found in listed.items():
        if found is not None and found | unreachable != indices:
            others = f"the other sources have GPU {_numbers(indices)}"
            yield f"nvidia-smi {command} has GPU {_numbers(found)}, {others}"


def _lost_digits(topo: TopoMatrix | None, gpus: tuple[Gpu, ...]) -> Iterator[str]:
    """Yield a message where every NVLink cell of ``topo -m`` shows the same number, which lacks a digit.

    Five GPUs or more that are all linked are behind NVSwitches, with 6 NVLinks or more (DGX-2).
    """
    cells = [] if topo is None else [cell for row in topo.cells for cell in row if cell is not None]
    lanes = {cell for cell in cells if isinstance(cell, int)}
    if topo is None or not topo.nvlink_shown or len(lanes) != 1:
        return
    (printed,) = lanes
    products = {gpu.product for gpu in gpus}
    whole = pair_links(products.pop()) if len(products) == 1 else ()
    if printed not in whole and any(len(str(each)) == 2 and str(printed) in str(each) for each in whole):
        yield f"topo -m shows NV{printed} for every NVLink, and {gpus[0].product} has NV{whole[0]}: a digit may be lost"
    elif len(topo.gpus) >= _SWITCHED_GPUS and set(cells) == lanes and printed < _LEAST_SWITCHED:
        yield f"topo -m shows NV{printed} for every pair of {len(topo.gpus)} GPUs: a digit may be lost"


def _numbers(indices: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(indices)))


def _some_products_missing(gpus: tuple[Gpu, ...]) -> bool:
    """Return whether some usable GPUs have a product and others have none."""
    return len({gpu.product is None for gpu in gpus if gpu.usable}) > 1


def _product_conflicts(sources: ParsedSources, gpus: tuple[Gpu, ...]) -> Iterator[str]:
    names = sorted({gpu.product for gpu in gpus if gpu.usable and gpu.product is not None})
    modes = {gpu.index: gpu.mig_enabled for gpu in gpus if gpu.usable}
    if sources.query is not None and None in modes.values() and {True, False} & set(modes.values()):
        unknown = [index for index, enabled in modes.items() if enabled is None]
        yield f"the MIG mode of GPU {_numbers(unknown)} is missing, though other GPUs have one"
    for one, other in combinations(names, 2):
        if _is_part(one, other) or _is_part(other, one) or sorted(one.split()) == sorted(other.split()):
            yield f"{one!r} and {other!r} differ by lost characters or words: the text may be damaged"
        elif _differ_by_a_damaged_character(one, other):
            yield f"{one!r} and {other!r} differ by one character: the text may be damaged"
    for product in names:
        if meant := misread_product(product):
            yield f"{product!r} is no known product, {meant!r} is one: the text may be damaged"
    listed = {gpu.index: gpu.product for gpu in sources.listing.gpus} if sources.listing else {}
    for each in sources.link_status or ():
        name = listed.get(each.gpu.index)
        if None not in (name, each.gpu.product) and name != each.gpu.product:
            yield f"GPU {each.gpu.index}: nvidia-smi -L says {name}, nvlink -s {each.gpu.product}"
    for gpu in sources.query.gpus if sources.query else ():
        for fact, printed in gpu.damaged:
            yield f"nvidia-smi -q prints {printed!r} as {fact}: the text may be damaged"
        if gpu.missing:
            yield f"nvidia-smi -q prints no {' and no '.join(gpu.missing)} of GPU {gpu.bus_id}: the text was cut"
    architectures = [gpu.architecture for gpu in sources.query.gpus] if sources.query else []
    if any(architectures) and not all(architectures):
        yield "nvidia-smi -q prints the architecture of some GPUs only"


def _differ_by_a_damaged_character(one: str, other: str) -> bool:
    """Return whether two names differ by one character as names of known products do not: "40GB" and "80GB" may."""
    changed = [at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b]
    if len(one) != len(other) or len(changed) != 1:
        return False
    (at,) = changed
    usual = (one[at] + other[at]).isdecimal() or one[at - 1] == " "
    return not (usual and is_known_product(one) and is_known_product(other))


def _is_part(short: str, long: str) -> bool:
    """Return whether ``short`` is ``long`` without some words, or without less than 40 % of its characters."""
    if Counter(short.split()) <= Counter(long.split()):
        return True
    characters = iter(long)
    return 0.6 * len(long) < len(short) and all(each in characters for each in short)
