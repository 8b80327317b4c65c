"""Write the root file system of the image: this Python, a virtual environment, and the libraries that both need.

python rootfs.py VENV ROOT. Runs in the build stage, so it uses the standard library alone. A static list of removed
programs would miss the next one; here nothing is in the image that is not copied.
"""

from __future__ import annotations

import compileall
import py_compile
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# Of the standard library: what installs packages, runs tests, draws windows, or serves another system.
UNUSED = {
    *("__pycache__", "ensurepip", "idlelib", "lib2to3", "macholib"),
    *("site-packages", "test", "tkinter", "turtledemo", "venv"),
}
# 120 of the 126 MB of the kubernetes package: a second client, and the models and calls of the API, which it imports
# when they are first used. gputopo.kube uses its credentials and connections alone.
UNUSED_PACKAGES = {"kubernetes/aio"}
UNUSED_CONTENT = {"kubernetes/client/api", "kubernetes/client/models"}  # all but __init__.py
UNUSED_MODULES = re.compile(r"(_test|_ctypes_test|_xxtest|xx|_tkinter|turtle|_curses|readline|_dbm|_gdbm|_sqlite3).*")
# Loaded by name, so no program lists it as needed: glibc unwinds the stacks of threads with it.
BY_NAME = ("libgcc_s.so.1",)
# Directories that are symbolic links in Debian; the loader's path in each program begins with one of them.
MERGED = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin"}
# The version for scanners, names for the C library, certificates, and where the NVIDIA container runtime writes the
# path of the driver's libraries.
ETC = (
    *("debian_version", "os-release", "group", "passwd", "nsswitch.conf", "protocols", "services"),
    *("ssl/certs/ca-certificates.crt", "ld.so.cache", "ld.so.conf", "ld.so.conf.d"),
)

TIME_ZONES = Path("/usr/share/zoneinfo")  # of the windows in a policy file


def write_rootfs(venv: Path, root: Path) -> None:
    """Write the root file system."""
    for link, target in MERGED.items():
        (root / target).mkdir(parents=True)
        (root / link).symlink_to(target)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    copy_python(root)
    copy_venv(venv, root)
    libraries = sorted(set(needed_libraries(root)))
    for library in libraries:
        copy_file(library, root)
    for name in ETC:
        if (source := Path("/etc", name)).exists():
            copy_tree(source, root) if source.is_dir() else copy_file(source, root)
    if TIME_ZONES.exists():
        copy_tree(TIME_ZONES, root)
    describe_packages(libraries, root)


def copy_python(root: Path) -> None:
    """Copy the interpreter and the standard library, compiled: the images of Python have no byte code.

    The root file system is read-only at run time, and compiling at each start would cost half a second of CPU. Byte
    code with unchecked hashes is valid with any time stamps.
    """
    program = Path(sys.executable).resolve()
    copy_file(program, root)
    prefix, version = Path(sys.base_prefix), f"python3.{sys.version_info.minor}"
    for library in (prefix / "lib").glob("libpython3.*.so.1.0"):
        copy_file(library, root)

    def unused(_: str, names: list[str]) -> set[str]:
        return {
            name for name in names if name in UNUSED or UNUSED_MODULES.fullmatch(name) or name.startswith("config-")
        }

    target = inside(root, prefix / "lib" / version)
    shutil.copytree(prefix / "lib" / version, target, symlinks=True, ignore=unused)
    compile_all(target)


def copy_venv(venv: Path, root: Path) -> None:
    """Copy a virtual environment, compiled, with one program: gputopo."""
    packages = next(venv.glob("lib/python3.*/site-packages"))

    def unused(folder: str, names: list[str]) -> set[str]:
        relative = Path(folder).relative_to(packages)
        if str(relative) in UNUSED_CONTENT:
            return set(names) - {"__init__.py"}
        return {name for name in names if name == "__pycache__" or str(relative / name) in UNUSED_PACKAGES}

    target = inside(root, packages)
    shutil.copytree(packages, target, symlinks=True, ignore=unused)
    compile_all(target)
    for name in ("pyvenv.cfg", "bin/gputopo"):
        copy_file(venv / name, root)
    link = inside(root, venv) / "bin" / "python"
    link.symlink_to(Path(sys.executable).resolve())
    # A path of the recorded machines without the version of Python.
    machines = inside(root, Path("/usr/share/gputopo/machines"))
    machines.parent.mkdir(parents=True)
    machines.symlink_to(packages / "gputopo" / "machines")


def compile_all(folder: Path) -> None:
    """Compile all modules of a folder."""
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    if not compileall.compile_dir(folder, quiet=1, invalidation_mode=mode, workers=0):
        raise SystemExit(f"{folder} cannot be compiled")


def needed_libraries(root: Path) -> Iterator[Path]:
    """Yield the shared libraries of this machine that the programs in ``root`` load."""
    for path in sorted(root.rglob("*")):
        if not path.is_symlink() and path.is_file() and is_elf(path):
            listed = output("ldd", path)
            if "not found" in listed:
                raise SystemExit(f"{path} needs a library that is not here:\n{listed}")
            for name in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", listed, re.MULTILINE):
                if not Path(name).is_relative_to(root):
                    yield Path(name)
    known = output("/sbin/ldconfig", "-p")
    for name in BY_NAME:
        yield Path(re.findall(rf"\t{re.escape(name)} \(libc6,.*\) => (\S+)", known)[0])


def is_elf(path: Path) -> bool:
    """Return True for programs and shared libraries."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def describe_packages(libraries: list[Path], root: Path) -> None:
    """Write the Debian packages of the libraries where scanners look for them: as distroless images do."""
    status = root / "var/lib/dpkg/status.d"
    status.mkdir(parents=True)
    for library in libraries:
        for path in (library, library.resolve()):  # dpkg knows one of the two, with or without /usr
            owners = output("dpkg", "-S", path)
            if owners:
                package = owners.partition(": ")[0]
                (status / package.partition(":")[0]).write_text(output("dpkg", "-s", package), encoding="utf-8")
                break


def output(*command: str | Path) -> str:
    """Return what a command prints."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603  constants


def inside(root: Path, path: Path) -> Path:
    """Return the place of an absolute path in ``root``."""
    return root / path.relative_to("/")


def copy_file(source: Path, root: Path) -> None:
    """Copy what a path names, not the link."""
    target = inside(root, source)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def copy_tree(source: Path, root: Path) -> None:
    """Copy a folder."""
    shutil.copytree(source, inside(root, source), symlinks=True)


if __name__ == "__main__":
    write_rootfs(Path(sys.argv[1]), Path(sys.argv[2]))
