"""Threads that decode types nobody has met before: in a process of its own, which msgspec alone does not survive."""

from __future__ import annotations

import subprocess
import sys

ROUNDS = 40  # without ``ready`` the first ones are the end
PROGRAM = f"""
import sys, threading
import msgspec
from gputopo.process.decoding import learn_type

TEXT = b'{{"items":[{{"spec":{{"parts":[{{"name":"a"}}]}}}}],"spec":{{"parts":[{{"name":"b"}}]}}}}'

def kinds():
    class Part(msgspec.Struct, frozen=True, rename="camel"):
        name: str = ""
        host_ip: str | None = None
    class Spec(msgspec.Struct, frozen=True, rename="camel"):
        parts: tuple[Part, ...] = ()
        by: dict[str, Part] = {{}}
    class Item(msgspec.Struct, frozen=True, rename="camel"):
        spec: Spec = Spec()
        part: Part | None = None
    class Listed(msgspec.Struct, frozen=True):
        items: list[Item] = []
        spec: Spec | None = None
    class Other(msgspec.Struct, frozen=True):
        items: tuple[Item, ...] = ()
        spec: Spec | None = None
    return Item, Listed, Other, Listed

def decode(kind, together):
    together.wait()
    msgspec.json.decode(TEXT, type=learn_type(kind))

sys.setswitchinterval(1e-6)
for _ in range({ROUNDS}):
    together = threading.Barrier(4)
    threads = [threading.Thread(target=decode, args=(kind, together)) for kind in kinds()]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
print("well")
"""


def ran(program: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def test_threads_that_meet_types_for_the_first_time_decode_them() -> None:
    assert ran(PROGRAM) == (0, "well\n", "")
