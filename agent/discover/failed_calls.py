"""NVML calls that failed although the GPU and the driver have what they ask for. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from agent.snapshot import ABSENT_ERRORS, Nvml, NvmlGpu

# Cards of one product differ in these: a card without a bridge may have no NVLink.
_DIFFERS_BY_BOARD = frozenset({"nvmlDeviceGetNvLinkState"})
# Every GPU and driver has these: "not supported" is a failure.
REQUIRED_CALLS = frozenset(
    {"nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetUUID"}
)
_ANCESTOR = "nvmlDeviceGetTopologyCommonAncestor"  # UNKNOWN for all pairs under WSL and in virtual machines


def failed_nvml_calls(nvml: Nvml) -> dict[str, str]:
    """Map each failed call to its errors: "UNKNOWN for GPU 3, 5". Lost GPUs, which fail in all calls, are left out.

    "Not supported" is a failure where another GPU of the same product and MIG mode answers the same call.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for call, error, where in _failures(nvml):
        places = found.setdefault(call, {}).setdefault(error, [])
        if where and where not in places:
            places.append(where)
    return {
        call: "; ".join(f"{error} for GPU {', '.join(gpus)}" if gpus else error for error, gpus in errors.items())
        for call, errors in found.items()
    }


def _failures(nvml: Nvml) -> Iterator[tuple[str, str, str]]:
    """Yield call, error and GPU of every failure."""
    yield from ((call, error, "") for call, error in nvml.errors.items() if _failed(error))
    reachable = [gpu for gpu in nvml.gpus if gpu.access_error is None]
    for gpu in reachable:
        peers = [peer for peer in reachable if (peer.name, peer.mig_mode) == (gpu.name, gpu.mig_mode)]
        for call, error in gpu.errors.items():
            if _failed(error) or call in REQUIRED_CALLS or _answered_by_peer(call, peers):
                yield call, error, str(gpu.index)
        for errors in gpu.part_errors:
            yield from ((call, error, str(gpu.index)) for call, error in errors.items() if _failed(error))
    expected = {_ANCESTOR} if all(pair.errors.get(_ANCESTOR) == "UNKNOWN" for pair in nvml.pairs) else set()
    indices = {gpu.index for gpu in reachable}
    for pair in nvml.pairs:
        if not {pair.a, pair.b} <= indices:
            continue
        failures = ((call, error) for call, error in pair.errors.items() if _failed(error) and call not in expected)
        yield from ((call, error, f"{pair.a}-{pair.b}") for call, error in failures)


def _failed(error: str) -> bool:
    return error not in ABSENT_ERRORS


def _answered_by_peer(call: str, peers: list[NvmlGpu]) -> bool:
    return call not in _DIFFERS_BY_BOARD and any(call not in peer.errors for peer in peers)


class AbsentCalls(NamedTuple):
    """The calls that each GPU has never answered; "not supported" is a failure for all others."""

    driver: str | None = None
    by_gpu: Mapping[str, tuple[int | None, frozenset[str]]] = {}  # name of the GPU -> MIG mode, calls


def record_absent_calls(known: AbsentCalls, nvml: Nvml) -> AbsentCalls:
    """Return the calls that were never answered up to now, by this driver and in this MIG mode."""
    same_driver = nvml.driver_version in (known.driver, None)
    by_gpu = dict(known.by_gpu) if same_driver else {}
    for gpu in nvml.gpus:
        if gpu.access_error is None:
            mode, never = by_gpu.get(gpu.identity, (gpu.mig_mode, _absent(gpu)))
            same_mode = gpu.mig_mode in (mode, None)
            by_gpu[gpu.identity] = (mode, never & _absent(gpu)) if same_mode else (gpu.mig_mode, _absent(gpu))
    return AbsentCalls(known.driver if same_driver and known.driver else nvml.driver_version, by_gpu)


def vanished_calls(known: AbsentCalls, nvml: Nvml) -> dict[str, str]:
    """Map each call that a GPU answered before, and says now that it does not have, to its errors."""
    found: dict[str, list[str]] = {}
    for gpu in nvml.gpus:
        never = known.by_gpu.get(gpu.identity, (None, _absent(gpu)))[1]
        for call in sorted(_absent(gpu) - never) if gpu.access_error is None else ():
            found.setdefault(call, []).append(f"{gpu.errors[call]} for GPU {gpu.index}, which answered before")
    return {call: "; ".join(errors) for call, errors in found.items()}


def _absent(gpu: NvmlGpu) -> frozenset[str]:
    return frozenset(call for call, error in gpu.errors.items() if error in ABSENT_ERRORS)
