"""NVML calls that failed although the GPU and the driver have what they ask for. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from agent.snapshot import ABSENT_ERRORS, Nvml, NvmlGpu

# Cards of one product differ in these: a card without a bridge may have no NVLink.
_DIFFERS_BY_BOARD = frozenset({"nvmlDeviceGetNvLinkState"})
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
            if _failed(error) or _answered_by_peer(call, peers):
                yield call, error, str(gpu.index)
        for errors in gpu.part_errors:
            yield from ((call, error, str(gpu.index)) for call, error in errors.items() if _failed(error))
    expected = {_ANCESTOR} if all(pair.errors.get(_ANCESTOR) == "UNKNOWN" for pair in nvml.pairs) else set()
    for pair in nvml.pairs:
        failures = ((call, error) for call, error in pair.errors.items() if _failed(error) and call not in expected)
        yield from ((call, error, f"{pair.a}-{pair.b}") for call, error in failures)


def _failed(error: str) -> bool:
    return error not in ABSENT_ERRORS


def _answered_by_peer(call: str, peers: list[NvmlGpu]) -> bool:
    return call not in _DIFFERS_BY_BOARD and any(call not in peer.errors for peer in peers)
