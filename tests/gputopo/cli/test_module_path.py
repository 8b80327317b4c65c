"""``python -m gputopo`` takes its modules from where gputopo is installed, whatever the working directory holds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COMMAND = ["-m", "gputopo", "policy", "show"]  # click, agent, scheduler_core, yaml, pydantic


@pytest.mark.parametrize(
    "name", ["agent/__init__.py", "scheduler_core/__init__.py", "click.py", "yaml.py", "msgspec.py"]
)
def test_modules_of_the_working_directory_are_not_imported(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("raise RuntimeError('imported from the working directory')\n")

    for arguments in (COMMAND, ["-m", "gputopo", "show", "--from", "dgx-a100", "-o", "yaml"]):
        ended = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")


def test_a_checkout_that_is_not_installed_is_run_from_its_own_folder() -> None:
    """With its dependencies on the module path, and gputopo nowhere but in the working directory."""
    path = os.pathsep.join(each for each in sys.path if Path(each).name == "site-packages")
    environ = {**os.environ, "PYTHONPATH": path}

    ended = subprocess.run(
        [sys.executable, "-S", *COMMAND], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )

    assert (ended.returncode, ended.stderr) == (0, "")
