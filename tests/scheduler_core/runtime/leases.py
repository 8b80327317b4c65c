"""A Lease as the API server keeps it, for those who take part in an election."""

from __future__ import annotations

from typing import Any

from scheduler_core.runtime.leader_election import LeaseName
from tests.api_server import Answer, Asked

HERE = LeaseName("gputopo", "gputopo-extender")


class Leases:
    """One Lease as the API server keeps it: by resource version."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] | None = None
        self.version = 0
        self.down = False
        self.before_write: list[Any] = []  # what others do between a read and the write that follows

    def answer(self, request: Asked) -> Answer:
        if self.down:
            return Answer({"message": "etcd is away"}, 503)
        if request.method == "GET":
            return Answer(self.stored) if self.stored else Answer({"message": "no such lease"}, 404)
        if self.before_write:
            self.before_write.pop()()
        theirs = request.body["metadata"].get("resourceVersion", "")
        ours = self.stored["metadata"]["resourceVersion"] if self.stored else ""
        if theirs != ours:
            return Answer({"message": "changed", "reason": "Conflict"}, 409)
        self.put(request.body["spec"])
        return Answer(self.stored)

    @property
    def holder(self) -> str:
        assert self.stored is not None
        return str(self.stored["spec"]["holderIdentity"])

    def put(self, spec: dict[str, Any]) -> None:
        self.version += 1
        metadata = {"name": HERE.name, "namespace": HERE.namespace, "resourceVersion": str(self.version)}
        self.stored = {"metadata": metadata, "spec": spec}
