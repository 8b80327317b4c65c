"""The snapshot document: round trip, and the faults of an invalid one."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.recording.io import dump_snapshot, load_snapshot, snapshot_schema
from agent.snapshot import (
    FORMAT,
    Host,
    Nvml,
    NvmlC2cLink,
    NvmlFabric,
    NvmlGpu,
    NvmlLink,
    NvmlMigDevice,
    NvmlPair,
    NvmlPlatform,
    Output,
    Snapshot,
    SnapshotError,
    Sysfs,
)

FULL = Snapshot(
    recorder="gputopo 0.1.0",
    scrubbed=("hostname", "serial"),
    host=Host(kernel="6.8.0-45-generic", cpus=128, memory_bytes=2**40),
    nvml=Nvml(
        driver_version="580.95.05",
        cuda_version=13000,
        device_count=2,
        gpus=(
            NvmlGpu(
                index=0,
                bus_id="00000000:07:00.0",
                compute_capability=(8, 0),
                mig_mode=1,
                mig_devices=(NvmlMigDevice(slot=0, uuid="MIG-1", gpu_instance=7),),
                fabric=NvmlFabric(state=3, clique=0),
                nvlinks=(
                    NvmlLink(link=0, active=False, errors={"nvmlDeviceGetNvLinkVersion": "NOT_SUPPORTED"}),
                    NvmlLink(link=1, active=True, counters={"recovery": 3}),
                ),
                c2c_links=(NvmlC2cLink(link=0, active=True, speed_mbps=44712),),
                ecc_mode=1,
                ecc_corrected=2,
                remapped_rows=(1, 0, 0, 1),
                platform=NvmlPlatform(slot=24, tray=5),
            ),
            NvmlGpu(index=1, errors={"nvmlDeviceGetHandleByIndex_v2": "GPU_IS_LOST"}),
        ),
        pairs=(NvmlPair(a=0, b=1, ancestor=50),),
    ),
    smi={"topo -m": Output("\tGPU0\nGPU0\t X\n"), "-L": Output("", exit_code=9, stderr="failed\n")},
    sysfs=Sysfs(files={"bus/pci/devices/0000:07:00.0/numa_node": "0\n"}, links={"bus/pci/devices/a": "devices/b"}),
    nccl="<system/>\n<!-- end -->",
)


def test_a_snapshot_survives_the_round_trip() -> None:
    assert load_snapshot(dump_snapshot(FULL)) == FULL


def test_bytes_are_read_like_text() -> None:
    assert load_snapshot(dump_snapshot(FULL).encode()) == FULL


def test_the_document_is_sorted_sparse_and_shows_texts_line_by_line() -> None:
    snapshot = Snapshot(nvml=Nvml(error="nvmlInit_v2: DRIVER_NOT_LOADED"), smi={"topo -m": Output("a\n\nb\n")})

    digest, *lines = [line for line in dump_snapshot(snapshot).splitlines() if line != "{"]
    assert re.fullmatch(r'  "digest": "[0-9a-f]{16}",', digest)
    assert lines == [
        '  "format": "gputopo.io/snapshot/v1",',
        '  "nvml": {',
        '    "error": "nvmlInit_v2: DRIVER_NOT_LOADED"',
        "  },",
        '  "smi": {',
        '    "topo -m": {',
        '      "stdout": [',
        '        "a",',
        '        "",',
        '        "b",',
        '        ""',
        "      ]",
        "    }",
        "  }",
        "}",
    ]
    assert dump_snapshot(snapshot).endswith("}\n")


def test_a_recording_that_was_changed_after_it_was_written_is_refused() -> None:
    text = dump_snapshot(Snapshot(nvml=Nvml(device_count=8)))

    with pytest.raises(SnapshotError, match="damaged or edited"):
        load_snapshot(text.replace('"device_count": 8', '"device_count": 4'))


def test_a_recording_without_digest_or_in_another_layout_is_read() -> None:
    snapshot = Snapshot(nvml=Nvml(device_count=8))
    document = json.loads(dump_snapshot(snapshot))

    assert load_snapshot(json.dumps(document)) == snapshot
    assert load_snapshot(json.dumps({key: document[key] for key in document if key != "digest"})) == snapshot


def test_an_empty_source_differs_from_a_source_that_was_not_read() -> None:
    empty_sources = Snapshot(nvml=Nvml(), smi={}, sysfs=Sysfs(), host=Host())

    assert load_snapshot(dump_snapshot(empty_sources)) == empty_sources
    assert dump_snapshot(empty_sources) != dump_snapshot(Snapshot())


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives(text: str) -> None:
    snapshot = Snapshot(smi={text: Output(text, stderr=text)}, sysfs=Sysfs(files={text: text}), nccl=text)

    assert load_snapshot(dump_snapshot(snapshot)) == snapshot


def test_keys_of_a_later_minor_version_are_ignored() -> None:
    assert load_snapshot(f'{{"format": "{FORMAT}", "host": {{"cpus": 4, "later": 1}}}}') == Snapshot(host=Host(cpus=4))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "invalid JSON: Input data was truncated", id="empty"),
        pytest.param("GPU0 X", "invalid JSON: JSON is malformed: invalid character (byte 0)", id="text"),
        pytest.param(b"\xff", "invalid JSON: JSON is malformed: invalid character (byte 0)", id="binary"),
        pytest.param("[1]", "not a recording: got [1]; expected an object with the key 'format'", id="an array"),
        pytest.param(
            '{"kind": "Node"}',
            'not a recording: the key \'format\' is missing; expected "format": "gputopo.io/snapshot/v1"',
            id="another document",
        ),
        pytest.param(
            '{"format": "gputopo.io/snapshot/v2", "nvml": 7}',
            'the recording has the format "gputopo.io/snapshot/v2"; '
            "this version of gputopo reads gputopo.io/snapshot/v1: "
            "use the version that wrote it, or a newer version",
            id="a newer version",
        ),
        pytest.param(
            f'{{"format": "{FORMAT}", "nvml": {{"gpus": [{{"index": "x"}}, {{}}]}}, "smi": {{"topo -m": '
            '{"stdout": ["a", 1]}}, "host": {"cpus": true}}',
            "not a recording:\n"
            "$.host.cpus: got true; expected a valid integer\n"
            '$.nvml.gpus[0].index: got "x"; expected a valid integer\n'
            "$.nvml.gpus[1].index: is missing\n"
            '$.smi["topo -m"].stdout: got ["a",1]; expected a valid string',
            id="every fault",
        ),
        pytest.param(
            f'{{"format": "{FORMAT}", "smi": 3, "sysfs": {{"files": ["a"]}}, "nccl": {{"{"k" * 80}": 1}}}}',
            "not a recording:\n"
            "$.smi: got 3; expected an object\n"
            '$.sysfs.files: got ["a"]; expected an object\n'
            f'$.nccl: got {{"{"k" * 55}...; expected a valid string',
            id="containers of the wrong kind, a long value",
        ),
    ],
)
def test_every_fault_is_listed(text: str | bytes, message: str) -> None:
    with pytest.raises(SnapshotError) as raised:
        load_snapshot(text)

    assert str(raised.value) == message


@pytest.mark.parametrize(
    "text", [pytest.param("[" * 100_000, id="deep"), pytest.param('{"a": "\ud800"}', id="lone surrogate")]
)
def test_hostile_text_is_refused(text: str) -> None:
    with pytest.raises(SnapshotError, match=r"^invalid JSON: "):
        load_snapshot(text)


def test_only_the_first_faults_are_listed() -> None:
    gpus = ",".join(["{}"] * 25)

    with pytest.raises(SnapshotError) as raised:
        load_snapshot(f'{{"format": "{FORMAT}", "nvml": {{"gpus": [{gpus}]}}}}')

    lines = str(raised.value).splitlines()
    assert lines[1] == "$.nvml.gpus[0].index: is missing"
    assert lines[20:] == ["$.nvml.gpus[19].index: is missing", "and 5 more"]


def test_a_value_of_the_wrong_kind_is_not_written() -> None:
    wrong = Snapshot(host=Host(cpus="many"))  # type: ignore[arg-type]

    with pytest.raises(SnapshotError) as raised:
        dump_snapshot(wrong)

    assert str(raised.value) == 'not a recording:\n$.host.cpus: got "many"; expected a valid integer'


def test_a_written_document_obeys_the_published_schema() -> None:
    validator = jsonschema.Draft202012Validator(snapshot_schema())

    assert [error.message for error in validator.iter_errors(json.loads(dump_snapshot(FULL)))] == []
    assert [error.message for error in validator.iter_errors({"format": "v0"})] == [f"{FORMAT!r} was expected"]


def test_reading_a_good_snapshot_does_not_import_pydantic() -> None:
    code = (
        "import sys; from agent.recording.io import load_snapshot; "
        "load_snapshot(sys.stdin.read()); print('pydantic' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input=dump_snapshot(FULL), capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
