"""Start-up of `gputopo show --from`, as a ratio to a bare interpreter and to an empty click command.

Whole processes, in turns (A B C A B C ...), medians of CPU time: wall time means little on a busy machine. Bytecode
is cached, as in an installed package; with PYTHONDONTWRITEBYTECODE gputopo alone would be compiled each time.
Aim: below 1.5 times the empty click command. Run: make bench
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

ROUNDS = 21
EMPTY_CLICK = "import click; click.command()(lambda: None)([], standalone_mode=False)"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
MACHINES = Path(__file__).parents[1] / "fixtures" / "machines"


def commands(folder: Path) -> dict[str, list[str]]:
    """Return name -> command line. The pasted matrix is that of the recorded DGX A100."""
    recorded = MACHINES / "8a100-8n-nvswitch12" / "snapshot.json"
    show = [sys.executable, "-c", "from gputopo.cli.main import main; main()", "show", "--from"]
    matrix = subprocess.run([*show, "dgx-a100", "-o", "matrix", "--ascii"], capture_output=True, text=True, check=True)
    (folder / "topo.txt").write_text(matrix.stdout)
    return {
        "python -c pass": [sys.executable, "-c", "pass"],
        "empty click command": [sys.executable, "-c", EMPTY_CLICK],
        "gputopo --version": [*show[:-2], "--version"],
        "gputopo show --from topo.txt": [*show, str(folder / "topo.txt")],
        "gputopo show --from snapshot.json": [*show, str(recorded)],
        "gputopo show --from dgx-a100": [*show, "dgx-a100"],
    }


def cpu_ms(command: list[str]) -> float:
    """Return user and system time of a run, in milliseconds."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command} ended with {status}")
    return 1000 * (usage.ru_utime + usage.ru_stime)


def main(folder: Path) -> None:
    """Print a row per command."""
    wanted = commands(folder)
    times: dict[str, list[float]] = {name: [] for name in wanted}
    for command in wanted.values():
        cpu_ms(command)  # fills the bytecode cache
    for _ in range(ROUNDS):
        for name, command in wanted.items():
            times[name].append(cpu_ms(command))
    medians = {name: statistics.median(each) for name, each in times.items()}
    bare, click = medians["python -c pass"], medians["empty click command"]
    print(f"{'start-up, CPU time':<36} {'ms':>7} {'/ python':>9} {'/ click':>8}")
    for name, each in medians.items():
        print(f"{name:<36} {each:7.1f} {each / bare:9.2f} {each / click:8.2f}")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
