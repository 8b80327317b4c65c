"""The command line as a user types it, in a process of its own where that matters."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from gputopo import __version__, render
from gputopo.cli import main, show, terminal

TOPO = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-15\t0\nGPU1\tNV4\t X \t0-15\t0\n"


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(main.main, arguments, input=stdin)


@pytest.mark.parametrize("output", show.FORMATS)
def test_a_pasted_matrix_is_shown_in_every_format_that_can_say_it(output: str) -> None:
    result = run("show", "--from", "-", "-o", output, stdin=TOPO)

    if output == "nccl-xml":  # a matrix has no bus ids
        assert (result.exit_code, "bus id" in result.stderr) == (2, True)
    else:
        assert result.exit_code == 0
        assert "GPU0" in result.stdout or output in ("json", "yaml", "labels", "svg")


@pytest.mark.parametrize(
    ("columns", "drawn", "width"),
    [("60", 60, 60), ("60", 0, 60), ("60", None, 60), ("", 70, 70), ("0", 70, 70), ("x", 70, 70), ("9" * 5000, 70, 70),
     ("", 0, None), ("", None, None)],
)  # fmt: skip
def test_the_width_is_columns_or_that_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: str, drawn: int | None, width: int | None
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("sys.stdout.isatty", lambda: drawn is not None)
    monkeypatch.setattr("os.get_terminal_size", lambda: os.terminal_size((drawn or 0, 0)))

    assert terminal.terminal_width() == width


def test_watch_sets_the_width_of_a_table_that_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run("show", "dgx-1").stdout
    monkeypatch.setenv("COLUMNS", "60")
    narrow = run("show", "dgx-1").stdout

    assert max(map(len, whole.splitlines())) > 80
    assert max(map(len, narrow.splitlines())) <= 60
    assert "\x1b" not in narrow
    for output in ("json", "yaml", "labels", "svg", "dot"):  # no lines that may be folded
        monkeypatch.delenv("COLUMNS", raising=False)
        plain = run("show", "dgx-1", "-o", output).stdout
        monkeypatch.setenv("COLUMNS", "60")
        assert run("show", "dgx-1", "-o", output).stdout == plain


def test_the_command_offers_the_formats_that_there_are() -> None:
    assert show.FORMATS == render.FORMATS


def test_json_has_the_islands() -> None:
    result = run("show", "--from", "-", "-o", "json", stdin=TOPO)

    assert json.loads(result.stdout)["islands"] == [[0, 1]]


def test_a_recorded_machine_is_known_by_name() -> None:
    assert "A100-SXM4-40GB" in run("show", "--from", "dgx-a100").stdout


def test_ascii_means_ascii() -> None:
    assert run("show", "--from", "dgx-1", "--ascii").stdout.isascii()


CODES = {
    "healthy, checked": (("show", "--check", "--from", "dgx-a100"), 0),
    "degraded, not checked": (("show", "--from", "link-down"), 0),
    "degraded, checked": (("show", "--check", "--from", "link-down"), 1),
    "no such file": (("show", "--from", "nowhere"), 2),
    "a folder": (("show", "--from", "/"), 2),
    "no such option": (("show", "--frm", "x"), 2),
    "no such format": (("show", "-o", "pdf", "--from", "dgx-1"), 2),
    "no such GPU": (("path", "0", "99", "--from", "dgx-1"), 2),
    "no GPU": (("show", "--from", "no-gpu"), 3),
    "no driver": (("labels", "--from", "no-driver"), 3),
    "mismatch": (("show", "--from", "driver-mismatch"), 3),
    "equal": (("diff", "dgx-1", "dgx-1", "--exit-code"), 0),
    "different": (("diff", "dgx-1", "dgx-2", "--exit-code"), 1),
    "different, not asked": (("diff", "dgx-1", "dgx-2"), 0),
}


@pytest.mark.parametrize(("arguments", "code"), CODES.values(), ids=CODES)
def test_exit_codes(arguments: tuple[str, ...], code: int) -> None:
    result = run(*arguments)

    assert result.exit_code == code
    assert bool(code) <= bool(result.stderr.strip())  # every failure has its reason on standard error


def test_findings_are_summarized_on_standard_error_beside_the_whole_result() -> None:
    checked = run("show", "--check", "--from", "link-down")
    compared = run("diff", "dgx-1", "dgx-2", "--exit-code")

    assert checked.stdout == run("show", "--from", "link-down").stdout
    assert checked.stderr == "gputopo: degraded: gpu1.nvlink, gpu2.nvlink\n"
    assert compared.stdout == run("diff", "dgx-1", "dgx-2").stdout
    assert compared.stderr.startswith("gputopo: the machines differ: gpu 0 ")
    assert " more\n" in compared.stderr


def test_an_invalid_topology_is_quoted_with_its_source() -> None:
    result = run("show", "--from", "-", stdin="GPU0 what\n")

    assert result.exit_code == 2
    assert result.stderr.startswith("gputopo: -: ")
    assert result.stdout == ""


def test_an_unknown_name_is_answered_with_near_names_in_short_lines() -> None:
    result = run("show", "--from", "dgx-a1000")

    assert "'dgx-a1000' is neither a file nor a bundled example machine; did you mean dgx-a100 or" in result.stderr
    assert "gputopo machines" in result.stderr
    assert max(map(len, result.stderr.splitlines())) < 160


def test_another_machine_without_gpu_says_what_to_do_there() -> None:
    for name in ("driver-mismatch", "no-gpu", "no-driver"):
        result = run("show", "--from", name)

        assert result.stderr.startswith(f"gputopo: {name}: no GPU found: ")
        assert " here" not in result.stderr
        assert "gputopo show --from NAME" not in result.stderr  # another machine was asked for


def test_a_number_of_machines_is_bounded() -> None:
    result = run("simulate", "--cluster", "dgx-1*9999999999")

    assert result.exit_code == 2
    assert result.stderr == "gputopo: --cluster 'dgx-1*9999999999': expected at most 99,999 machines\n"


def test_labels_are_what_kubectl_takes() -> None:
    result = run("labels", "--from", "dgx-a100", "--mirror", "off", "--annotations")

    lines = dict(line.split("=", 1) for line in result.stdout.splitlines())
    assert lines["gputopo.io/islands"] == "8"
    assert lines["gputopo.io/topology"].startswith('{"v":1')
    assert not any(key.startswith("nvidia.com/") for key in lines)
    assert "nvidia.com/gpu.count=8" in run("labels", "--from", "dgx-a100").stdout


def test_labels_take_the_machine_as_show_does() -> None:
    assert run("labels", "dgx-a100").stdout == run("labels", "--from", "dgx-a100").stdout
    both = run("labels", "dgx-1", "--from", "dgx-a100")
    assert (both.exit_code, "dgx-1 and --from dgx-a100 exclude each other" in both.stderr) == (2, True)


@pytest.mark.parametrize("command", ["show", "labels"])
def test_an_empty_name_is_not_this_machine(command: str) -> None:
    """As of a shell variable that is not set."""
    found = run(command, "--from", "")

    assert (found.exit_code, found.stderr.splitlines()[0]) == (
        2,
        "gputopo: '' is neither a file nor a bundled example machine",
    )


def test_a_path_says_why() -> None:
    assert "connected directly by 1 NVLink" in run("path", "0", "1", "--from", "dgx-1").stdout


def test_differences_are_shown() -> None:
    assert "- driver_version: 470.182.03" in run("diff", "dgx-1", "dgx-2").stdout


def test_the_recorded_machines_are_listed() -> None:
    assert "dgx-a100" in run("machines").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell: str) -> None:
    assert "_GPUTOPO_COMPLETE" in run("completion", shell).stdout


def test_the_version_is_the_packages() -> None:
    assert run("--version").stdout == f"gputopo, version {__version__}\n"


def commands() -> list[str]:
    return main.main.list_commands(click.Context(main.main))


@pytest.mark.parametrize("command", commands())
def test_every_command_explains_itself_with_examples(command: str) -> None:
    text = run(command, "--help").stdout

    assert command == "machines" or "Examples:\n" in text
    assert "\b" not in text


def test_the_help_lists_every_exit_code() -> None:
    _, _, codes = run("--help").stdout.partition("Exit codes: ")
    listed = re.findall(r"(?:^|; )(\d+) ", " ".join(codes.partition("\n\n")[0].split()))

    assert listed == ["0", "1", "2", "3", "4", "5", "70", "130"]


@pytest.mark.parametrize("name", main.COMMANDS)
@pytest.mark.parametrize("width", [30, 80, 200], ids=str)
def test_the_list_of_commands_has_the_first_sentence_of_their_help(name: str, width: int) -> None:
    listed = click.Command(name, help=main.COMMANDS[name].summary)

    assert listed.get_short_help_str(width) == main.COMMANDS[name].load().get_short_help_str(width)


def test_the_list_of_commands_imports_no_command() -> None:
    code = (
        "import sys; from gputopo.cli.main import main; main(['--help'], standalone_mode=False); "
        "print('imported:', *sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    listed, _, imported = printed.rpartition("imported:")

    assert [name for name in main.COMMANDS if f"\n  {name} " not in listed] == []
    assert {each.module for each in main.COMMANDS.values()} & set(imported.split()) == set()


RECORDED = (0, 3)  # 3: this machine has no GPU, which the recording shows


def test_this_machine_is_recorded_and_can_be_shown_again(tmp_path: Path) -> None:
    """Whatever this machine is: with or without GPU."""
    target = tmp_path / "node.json"

    assert run("record", "-o", str(target)).exit_code in RECORDED
    assert run("show", "--from", str(target)).exit_code == run("show").exit_code
    assert json.loads(target.read_text())["scrubbed"] == ["hostname", "processes", "serial"]
    assert run("record", "--scrub-uuids").stdout.startswith("{")
    assert run("diff", str(target)).exit_code == run("show").exit_code


def test_a_recording_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    result = run("record", "-o", str(tmp_path / "missing" / "node.json"))

    assert (result.exit_code, "cannot write" in result.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    pipe, real, link = tmp_path / "pipe", tmp_path / "real.json", tmp_path / "link.json"
    os.mkfifo(pipe)
    link.symlink_to(real)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        assert run("record", "-o", str(pipe)).exit_code in RECORDED
        assert reader.stdout is not None
        assert reader.stdout.read().startswith(b"{")

    assert run("record", "-o", str(link)).exit_code in RECORDED
    assert (pipe.is_fifo(), link.is_symlink(), real.read_text()[0]) == (True, True, "{")
    assert run("record", "-o", "").exit_code == 2


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """A command line with `gputopo` in it, in a shell."""
    line = command.replace("gputopo", f"{sys.executable} -m gputopo")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # as users have it
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, env=environment)


ENDINGS = {
    "standard input closed": ("gputopo show --from - <&-", 2, "standard input is closed"),
    "standard output closed": ("gputopo show --from l4 >&-", 2, "standard output is closed"),
    "disk full": ("gputopo show --from l4 >/dev/full", 2, "cannot write to standard output: No space left on device"),
    "disk full for a list": (
        "gputopo machines >/dev/full",
        2,
        "cannot write to standard output: No space left on device",
    ),
    "disk full for a help text": (
        "gputopo show --help >/dev/full",
        2,
        "cannot write to standard output: No space left",
    ),
    "endless input": ("gputopo show --from /dev/zero", 2, "/dev/zero: input exceeds 64 MiB"),
    "an encoding without arrows": ("PYTHONIOENCODING=latin-1 gputopo path 0 5 --from dgx-1", 0, ""),
    "a file packed by xz": (
        r"printf '\xfd7zXZ\x00' | gputopo show --from -",
        2,
        "-: packed by xz; unpack it first: xz -dc FILE",
    ),
    "a command that does not exist": ("gputopo shwo", 2, "No such command 'shwo'; did you mean show?"),
    "a selector that is none": (
        """echo '{"kind":"Node","apiVersion":"v1","metadata":{"name":"n"}}' | gputopo nodes -l === --from -""",
        2,
        "'===' is not a label selector",
    ),
    "a machine to simulate that does not exist": ("gputopo simulate --cluster dgx-3", 2, "did you mean dgx-2"),
    "nodes to simulate without a column": (
        "printf 'sn,gpu\nn,8\n' | gputopo simulate --cluster -",
        2,
        "-: there is no column cpu_milli; expected columns:",
    ),
    "nodes to simulate without numbers": (
        "printf 'sn,cpu_milli,memory_mib,gpu,model\nn,x,1,8,T4\n' | gputopo simulate --cluster -",
        2,
        "node 1 (sn=n, cpu_milli=x, memory_mib=1, gpu=8, model=T4): 'x' is not an integer in decimal digits",
    ),
    "a command that prints nothing": (
        "true | gputopo show --from -",
        2,
        "-: the command before the pipe printed nothing: the input is empty; expected one of:",
    ),
    "an empty file": ("gputopo show --from - </dev/null", 2, "-: the input is empty; expected one of:"),
    "an option by another name": (
        "gputopo show --machine dgx-1",
        2,
        "No such option '--machine'. Did you mean '--from'?",
    ),
    "two machines": (
        "gputopo path 0 1 --from dgx-1 --from l4",
        2,
        "--from is given 2 times (dgx-1, l4): name one",
    ),
    "the table of nvidia-smi": (
        r"printf 'Fri Nov 27 09:00:00\n+----+\n| NVIDIA-SMI 580.95.05  Driver |\n' | gputopo show --from -",
        2,
        "-: this is the table of `nvidia-smi` without arguments, which has no topology; use { nvidia-smi -L; nvidia",
    ),
    "help about a command that does not exist": ("gputopo help shwo", 2, "No such command 'shwo'; did you mean show?"),
    "nvidia-smi failing": ("echo 'No devices were found' | gputopo show --from -", 3, "sees no GPU"),
}


@pytest.mark.parametrize(("command", "code", "message"), ENDINGS.values(), ids=ENDINGS)
def test_endings_have_their_codes_and_say_why(command: str, code: int, message: str) -> None:
    result = shell(command)

    assert (result.returncode, "Traceback" in result.stderr) == (code, False)
    assert message in result.stderr


def test_a_reader_that_goes_ends_the_program_as_it_ends_others() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "gputopo", "show", "--from", "l4"]
    with subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        assert process.stderr is not None
        assert process.stderr.read() == b""

    assert process.returncode == -signal.SIGPIPE


def test_an_error_of_ours_is_not_taken_for_degraded_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGPIPE)
    with pytest.raises(SystemExit) as ended:
        terminal.run_program(lambda: 1 // 0)
    signal.signal(signal.SIGPIPE, before)

    assert ended.value.code == 70
    assert "ZeroDivisionError" in capsys.readouterr().err


BESIDE_A_THREAD = """
import atexit, ssl, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from gputopo.cli.terminal import run_program

def connect():
    while True:
        ssl.create_default_context()

def program():
    atexit.register(lambda: print("removed"))
    ThreadPoolExecutor(1).submit(print, "computed").result()  # its thread waits for more
    threading.Thread(target=connect, daemon=True).start()
    time.sleep(0.05)
    print("listed")
    sys.exit(4)

run_program(program)
"""


def test_a_program_ends_with_its_code_while_a_thread_uses_openssl() -> None:
    """Without this it is killed by a signal in most runs: the thread uses what OpenSSL has freed."""
    command = [sys.executable, "-c", BESIDE_A_THREAD]
    for _ in range(3):
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (ended.returncode, ended.stdout, ended.stderr) == (4, "computed\nlisted\nremoved\n", "")


def test_labels_of_half_a_matrix_claim_no_islands_and_say_why() -> None:
    half = "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\nGPU0\t X \tNV4\tSYS\tSYS\t0-15\n"

    result = run("labels", "--from", "-", stdin=half)

    assert "islands" not in result.stdout
    assert "gpu-topology" not in result.stdout
    assert "degraded" not in result.stdout
    assert "GPU2-GPU3" in result.stderr
    assert (result.exit_code, "(NVLinks uncertain): uncertain labels are left out" in result.stderr) == (5, True)


RING = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tNV18\tNV18\t0-15\t0
GPU1\tNV18\t X \tNV18\tNV18\t0-15\t0
GPU2\tNV18\tNV18\t X \tNV18\t16-31\t1
GPU3\tNV18\tNV18\tNV18\t X \t16-31\t1
"""


def keys(labels: str) -> set[str]:
    return {line.partition("=")[0].rpartition("/")[2] for line in labels.splitlines()}


def test_a_matrix_that_is_cut_on_the_right_has_no_labels_at_all() -> None:
    cut = "".join(line[:27] + "\n" for line in RING.expandtabs(8).splitlines())

    result = run("labels", "--from", "-", stdin=cut)

    assert (result.exit_code, result.stdout.strip()) == (5, "")
    assert "the list of GPUs" in result.stderr


def test_a_lost_digit_of_one_cell_leaves_out_what_depends_on_nvlinks() -> None:
    result = run("labels", "--from", "-", stdin=RING.replace("NV18", "NV1", 1))

    assert result.exit_code == 5
    assert keys(result.stdout) == {"schema", "gpus", "numa-layout", "gpu.numa"}
    checked = run("show", "--check", "--from", "-", stdin=RING.replace("NV18", "NV1", 1))
    assert (checked.exit_code, "health is unknown" in checked.stderr) == (5, True)


def test_numa_nodes_that_contradict_each_other_are_left_out() -> None:
    result = run("labels", "--from", "-", stdin=RING.replace("0-15\t0", "0-15\t1", 1))

    assert result.exit_code == 5
    assert not {"numa-layout", "gpu.numa"} & keys(result.stdout)
    assert {"gpus", "islands"} <= keys(result.stdout)


def test_labels_of_a_whole_matrix_are_printed_with_exit_code_0() -> None:
    result = run("labels", "--from", "-", stdin=RING)

    assert result.exit_code == 0
    assert {"gpus", "islands", "largest-island", "numa-layout"} <= keys(result.stdout)


def in_terminal(**environment: str) -> bytes:
    """Return the output of `gputopo show` in a terminal."""
    reading, writing = pty.openpty()
    command = [sys.executable, "-m", "gputopo", "show", "--from", "link-down"]
    with subprocess.Popen(command, stdout=writing, env=os.environ | {"TERM": "xterm"} | environment) as process:
        os.close(writing)
        parts = []
        while True:
            try:
                parts.append(os.read(reading, 65536))
            except OSError:  # Linux ends a pty with EIO
                break
            if not parts[-1]:
                break
    os.close(reading)
    assert process.returncode == 0
    return b"".join(parts)


def test_colour_is_for_terminals_and_for_those_who_want_it() -> None:
    coloured, plain = in_terminal(NO_COLOR=""), in_terminal(NO_COLOR="1")

    assert b"\x1b[" in coloured
    assert b"\x1b[" not in plain
    assert b"\x1b[" not in run("show", "--from", "link-down").stdout.encode()
    assert click.unstyle(coloured.decode()).replace("\r\n", "\n") == plain.decode().replace("\r\n", "\n")


def test_the_help_lists_the_exit_codes() -> None:
    text = run("--help").stdout.split("Exit codes:")[1]
    assert [code for code in "0123456" if f" {code} " in text] == list("012345")


HEALTH = {"healthy": ("dgx-1", False), "degraded": ("link-down", True), "no driver": ("no-driver", False),
          "a typo": ("nowhere", False), "a cut matrix": ("cut.txt", False)}  # fmt: skip


@pytest.mark.parametrize(("machine", "degraded"), HEALTH.values(), ids=HEALTH)
def test_the_documented_health_check_acts_on_degraded_hardware_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, *, degraded: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cut.txt").write_text("\tGPU0\tGPU1\nGPU0\t X \tNV4\n", encoding="utf-8")
    (line,) = re.findall(r"gputopo show --check.*", run("show", "--help").stdout)
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")

    assert f"$ {line} " in readme
    assert ("call the vendor" in shell(line.replace("--check", f"--check --from {machine}")).stdout) == degraded


UNREAD = {
    "show": "gputopo show",
    "labels": "gputopo labels",
    "path": "gputopo path 0 1",
    "diff": "gputopo diff dgx-1",
}


@pytest.mark.skipif(run("show").exit_code == 0, reason="this machine has a GPU")
@pytest.mark.parametrize("command", UNREAD.values(), ids=UNREAD)
def test_without_a_gpu_a_hint_says_that_standard_input_was_not_read(tmp_path: Path, command: str) -> None:
    (tmp_path / "topo.txt").write_text(TOPO, encoding="utf-8")
    hint = f"\nStandard input is not read without {'the argument -' if 'diff' in command else '--from -'}\n"
    piped = shell(f"cat {tmp_path}/topo.txt | {command}")

    assert (piped.returncode, piped.stdout) == (3, "")
    assert hint in piped.stderr
    assert hint in shell(f"{command} < {tmp_path}/topo.txt").stderr
    assert hint not in shell(f"{command} < /dev/null").stderr
    assert hint not in shell(f"{command} <&-").stderr
    words = [sys.executable, "-m", *command.split()]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert hint in process.stderr.read()  # while the pipe is open: the command does not wait for its end


@pytest.mark.parametrize("command", [(), ("show",), ("why",)], ids=["all", "show", "why"])
def test_help_is_a_command_too(command: tuple[str, ...]) -> None:
    result = run("help", *command)

    assert (result.exit_code, result.stdout) == (0, run(*command, "--help").stdout)


@pytest.mark.parametrize("output", show.FORMATS[:3])
def test_formats_are_accepted_in_upper_case(output: str) -> None:
    assert run("show", "dgx-1", "-o", output.upper()).stdout == run("show", "dgx-1", "-o", output).stdout


def test_a_paste_without_a_name_is_titled_by_its_gpus() -> None:
    listed = "".join(f"GPU {each}: NVIDIA A100-SXM4-40GB (UUID: GPU-{each})\n" for each in range(2))
    unnamed, named = run("show", "--from", "-", stdin=f"{listed}{TOPO}").stdout, run("show", "dgx-1").stdout

    assert unnamed.splitlines()[0] == "2 \N{MULTIPLICATION SIGN} NVIDIA A100-SXM4-40GB"
    assert "\N{MULTIPLICATION SIGN}" not in unnamed.splitlines()[1]
    assert "machine" not in unnamed
    assert "\N{MULTIPLICATION SIGN}" in named.splitlines()[1]


def test_a_difference_of_two_hosts_has_no_boot_id() -> None:
    assert "boot_id" not in run("diff", "dgx-1", "dgx-2").stdout
