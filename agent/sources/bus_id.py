"""PCI bus ids. NVML and NCCL write the domain with 8 digits and in capitals, sysfs with 4 and in small letters."""

from __future__ import annotations

import re

# A PCI device number has 5 bits. NVML writes a device that it cannot see as FFFFFFFF:FF:FF.0, which is none, therefore.
_BUS_ID = re.compile(r"(?:0x)?0*([0-9a-f]{1,8}):([0-9a-f]{2}):([01][0-9a-f])\.([0-7])", re.IGNORECASE)


def sysfs_bus_id(text: str) -> str | None:
    """A bus id as sysfs spells it ("0000:07:00.0"), or None where ``text`` names no device."""
    match = _BUS_ID.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{domain.zfill(4)}:{bus}:{device}.{function}".lower()
