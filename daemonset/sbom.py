"""The software bill of materials of a release, as CycloneDX 1.6: the wheel, the locked packages and the base image.

python -m daemonset.sbom WHEEL > sbom.cdx.json. The same files give the same bytes. Debian packages are not in it: the
image lists its own in var/lib/dpkg/status.d.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import re
import sys
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from daemonset.images import IMAGES, Image, load_images

LOCK = Path(__file__).with_name("requirements.lock")
_ENTRY = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>[^ ]+)(?: ; (?P<marker>.*))? \\\n"
    r"(?P<hashes>(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)"
    r"(?P<via>(?:    #.*\n)*)",
    re.MULTILINE,
)


class Locked(NamedTuple):
    """An entry of a lock file that uv wrote."""

    name: str
    version: str
    marker: str  # the platforms that need it; "": all
    hashes: tuple[str, ...]  # SHA-256 of its distributions, one for each platform
    parents: tuple[str, ...]  # the packages that require it; "gputopo" among them


def parse_lock(text: str) -> list[Locked]:
    """Return the entries of a lock file."""
    return [
        Locked(
            each["name"],
            each["version"],
            each["marker"] or "",
            tuple(re.findall("[0-9a-f]{64}", each["hashes"])),
            tuple(re.findall(r"^    #(?: via|  ) (?!-c )([\w.-]+)", each["via"], re.MULTILINE)),
        )
        for each in _ENTRY.finditer(text)
    ]


def make_bom(wheel: Path, locked: Iterable[Locked], images: Iterable[Image], epoch: int) -> Bom:
    """Return the bill of materials. ``epoch``: seconds since 1970 of the release."""
    name, version, *_ = wheel.name.split("-")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    root = Component(
        name=name,
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=name,
        purl=PackageURL("pypi", name=name, version=version),
        hashes=[_sha256(digest)],
    )
    packages = {each.name: (_package(each), each.parents) for each in locked}
    python = [_container(each) for each in images if each.name.endswith("/python")]
    when = dt.datetime.fromtimestamp(epoch, dt.UTC)
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{wheel.name}@sha256:{digest}"),
        metadata=BomMetaData(component=root, timestamp=when),
        components=[*(component for component, _ in packages.values()), *python],
    )
    parents = {name: root} | {key: component for key, (component, _) in packages.items()}
    for component, required_by in packages.values():
        for each in parents.keys() & required_by:  # some parents are left out of the image
            bom.register_dependency(parents[each], [component])
    bom.register_dependency(root, python)
    return bom


def _package(locked: Locked) -> Component:
    address = XsUri(f"https://pypi.org/project/{locked.name}/{locked.version}/")
    distribution = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION, url=address, hashes=map(_sha256, locked.hashes)
    )
    return Component(
        name=locked.name,
        version=locked.version,
        bom_ref=f"{locked.name}=={locked.version}",
        purl=PackageURL("pypi", name=locked.name, version=locked.version),
        external_references=[distribution],
        properties=[Property(name="python:marker", value=locked.marker)] if locked.marker else [],
    )


def _container(image: Image) -> Component:
    _, _, name = image.name.partition("/")
    return Component(
        name=image.name,
        version=image.tag,
        type=ComponentType.CONTAINER,
        bom_ref=image.reference,
        purl=PackageURL("docker", name=name, version=image.digest or image.tag),
        hashes=[_sha256(image.digest.removeprefix("sha256:"))] if image.digest else [],
    )


def _sha256(content: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=content)


if __name__ == "__main__":
    bill = make_bom(
        Path(sys.argv[1]),
        parse_lock(LOCK.read_text(encoding="utf-8")),
        load_images(IMAGES.read_text(encoding="utf-8")),
        int(os.environ.get("SOURCE_DATE_EPOCH", "0")),
    )
    print(JsonV1Dot6(bill).output_as_string(indent=2))
