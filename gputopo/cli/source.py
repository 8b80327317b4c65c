"""The topology that a command is about: of this machine, of a file, of a bundled example machine, or of a node."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NoReturn

import click

from gputopo.cli.cluster import topology_of_node
from gputopo.cli.terminal import NO_GPU, exit_with_error, near_names_text, read_packed, stdin_kind

if TYPE_CHECKING:
    from gputopo.model import NodeTopology

_QUOTED = 60  # characters of a name that is not found


def cluster_topology(
    source: str | None, *, node: str | None, kubeconfig: str | None, context: str | None
) -> NodeTopology | None:
    """Return the topology of ``node``, or None if no node is named."""
    if node is None:
        return None
    if source is not None:
        raise click.UsageError(f"--node {node} and the machine {source} exclude each other")
    return topology_of_node(node, kubeconfig, context)


def topology_of(source: str | None, stdin_option: str = "--from -") -> NodeTopology:
    """Return the topology of a value of `--from`, or of this machine. Exit with an error if it has no GPU.

    ``stdin_option``: what makes the command read standard input.
    """
    from agent.recording.inputs import InputError, read_observation  # noqa: PLC0415  start-up of --help and --version

    if source is None:
        from agent.recording.probe import probe_machine  # noqa: PLC0415  imports NVML
        from agent.recording.topology import observe_snapshot  # noqa: PLC0415

        inputs = observe_snapshot(probe_machine())
    else:
        text = _read_input(source)
        try:
            inputs = read_observation(text)
        except InputError as error:
            if source == "-" and not text.strip() and stdin_kind() == "pipe":
                exit_with_error(f"{source}: the command before the pipe printed nothing: {error}")
            exit_with_error(f"{source}: {error}")
    if not inputs.topology.gpus:
        _exit_without_gpu(source, inputs.advice, stdin_option)
    return inputs.topology


def _exit_without_gpu(source: str | None, advice: str, stdin_option: str) -> NoReturn:
    if source is not None:
        exit_with_error(f"{source}: {advice}", NO_GPU)
    hint = "To show another machine: gputopo show --from NAME; gputopo machines lists the bundled example machines"
    if stdin_kind() is not None:
        hint = f"Standard input is not read without {stdin_option}\n{hint}"
    exit_with_error(f"{advice}\n{hint}", NO_GPU)


def name_uncertain_facts(topology: NodeTopology) -> str:
    """Return the names of the uncertain facts of a damaged or incomplete input, as words; "" if there are none."""
    from gputopo.model import FactGroup  # noqa: PLC0415  start-up of --help and --version

    found = set(topology.uncertain)
    if topology.nvlink is not None and topology.nvlink.unknown:
        found.add(FactGroup.NVLINK)
    names = {
        FactGroup.GPUS: "the list of GPUs",
        FactGroup.NVLINK: "NVLinks",
        FactGroup.NUMA: "NUMA nodes",
        FactGroup.PRODUCTS: "products",
    }
    return ", ".join(names[group] for group in FactGroup if group in found)


def _read_input(source: str) -> str:
    """Return the text of a file, of standard input, or of a bundled example machine."""
    from agent.recording.inputs import decode_text  # noqa: PLC0415  start-up of --help and --version

    is_file = source == "-" or os.path.exists(source)  # noqa: PTH110  pathlib costs 8 ms of start-up
    return decode_text(read_packed(source if is_file else _recording(source)))


def _recording(name: str) -> str:
    """Return the path of the recording of a bundled example machine."""
    from agent.recording import bundled  # noqa: PLC0415  only for a name

    folder = bundled.bundled_directory()
    snapshot = bundled.find_recording(name, folder) or bundled.find_recording(name.lower(), folder)
    if snapshot is None:
        meant = near_names_text(name, _aliases(), most=3)
        quoted = repr(name if len(name) <= _QUOTED else f"{name[:_QUOTED]}...")
        exit_with_error(
            f"{quoted} is neither a file nor a bundled example machine{meant}\n"
            "gputopo machines lists the bundled example machines"
        )
    return snapshot


def _aliases() -> list[str]:
    from agent.recording import bundled  # noqa: PLC0415  only for a message

    return sorted(alias for each in bundled.list_machines(bundled.bundled_directory()) for alias in each.aliases)
