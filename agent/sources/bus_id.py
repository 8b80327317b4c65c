"""PCI bus ids. NVML and NCCL write the domain with 8 digits in upper case, sysfs with 4 digits in lower case."""

from __future__ import annotations

import re

# A PCI device number has 5 bits, so NVML's FFFFFFFF:FF:FF.0 for an unknown device does not match.
_BUS_ID = re.compile(r"(?:0x)?0*([0-9a-f]{1,8}):([0-9a-f]{2}):([01][0-9a-f])\.([0-7])", re.IGNORECASE)


def sysfs_bus_id(text: str) -> str | None:
    """Return a bus id in sysfs spelling ("0000:07:00.0"), or None where ``text`` is not a bus id."""
    match = _BUS_ID.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{domain.zfill(4)}:{bus}:{device}.{function}".lower()
