"""Times that several processes rely on, in seconds. The assertions below state how they must relate.

The agent, the extender and the planner each decide when a watch counts as silent, when a process counts as lost, and
when an assumed pod expires. The commit protocol (docs/architecture.md) is safe only if these times fit together.
"""

from __future__ import annotations

# A watch gets a bookmark about once a minute. After a longer silence it is closed and reopened, which shows whether the
# API server still answers.
WATCH_TIMEOUT_S = 90.0
# After so long without an event or a bookmark of a kind, the cache is too old for decisions, and the extender and the
# planner stop. Not a setting, because planners rely on it: see ``EXTENDER_LOST_S``.
WATCH_SILENT_S = 120.0
# A pod that Filter admitted counts on its node for this time. A scheduling cycle and its binding take seconds; then the
# watch shows the pod as bound.
ASSUMED_POD_LIFETIME_S = 30.0
# An agent publishes a change of the kubelet's allocations within seconds, and nothing if a pod came and went between
# two polls. A pod that ended this long ago, and that the report does not name, holds no GPUs. A pod that was deleted by
# force may hold them for its grace period, 30 s by default; the report names it then.
ENDED_POD_SETTLES_S = 40.0
# A kind that the API server does not serve (no CRD yet) is retried after this time.
MISSING_KIND_RETRY_S = 30.0
# In a mixed pool, the time from the creation of the ledger to the first plan: by then every extender has listed the
# ledger.
LEDGER_SETTLE_S = 45.0
# An extender that does not answer stops by itself ``WATCH_SILENT_S`` after its last event; the pods that it admitted
# until then are bound or expired ``ASSUMED_POD_LIFETIME_S`` later. Then its registration in the ledger may be removed.
EXTENDER_LOST_S = 160.0
# The same for an extender if its pod has ended.
EXTENDER_ENDED_S = ASSUMED_POD_LIFETIME_S
# The longest time, from the registration of the new process, that gangs wait after the container of an extender
# restarted. Two waits begin with that registration and run in parallel: the new process acknowledges nothing for
# ``ASSUMED_POD_LIFETIME_S``, and the registration of the previous process is removed after ``EXTENDER_ENDED_S``.
EXTENDER_RESTART_S = 35.0
# The agent confirms what it has published at least this often, by renewing the Lease of its node.
HEARTBEAT_S = 300.0
# A NodeGpus that neither its ``observedAt`` nor the Lease confirmed within this time counts as stale: three heartbeats
# were missed.
STALE_AFTER_S = 900.0
# An agent applies an unchanged NodeGpus again after this time, so that edits of other clients do not stay.
STATE_REPAIR_S = 3600.0
# After its start an agent also writes its heartbeats into NodeGpus for this time: until the readers of a version
# without Leases are replaced too.
HEARTBEAT_TRANSITION_S = 3600.0

assert WATCH_TIMEOUT_S < WATCH_SILENT_S  # a silent watch is reopened before the cache counts as stale
assert WATCH_SILENT_S + ASSUMED_POD_LIFETIME_S <= EXTENDER_LOST_S
assert ASSUMED_POD_LIFETIME_S <= EXTENDER_ENDED_S
assert max(ASSUMED_POD_LIFETIME_S, EXTENDER_ENDED_S) < EXTENDER_RESTART_S < ASSUMED_POD_LIFETIME_S + EXTENDER_ENDED_S
assert MISSING_KIND_RETRY_S < LEDGER_SETTLE_S
assert 3 * HEARTBEAT_S <= STALE_AFTER_S
assert STATE_REPAIR_S > STALE_AFTER_S  # more often it would cost what the Lease saves
assert HEARTBEAT_TRANSITION_S > STALE_AFTER_S
