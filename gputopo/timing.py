"""Times that several programs rely on together, in seconds. How they must relate is asserted below.

A watch that is silent, a process that has stopped answering and a pod that is not bound yet are judged by
different processes: the agent, the extender and the planner. The commit protocol (docs/architecture.md) is safe only
while these times fit together.
"""

from __future__ import annotations

# A watch receives a bookmark about once a minute. After a longer silence it is closed and opened again, which shows
# whether the API server still answers.
WATCH_TIMEOUT_S = 90.0
# If a watch receives nothing for this time, not even a bookmark, the cache counts as out of date, and the extender
# and the planner stop deciding. Not a setting, because planners rely on it: see ``EXTENDER_LOST_S``.
WATCH_SILENT_S = 120.0
# A pod that Filter accepted counts on its node for this time. A scheduling cycle and the binding take seconds; by then
# the watch has shown the pod bound.
ASSUMED_POD_LIFETIME_S = 30.0
# How long to wait before a kind that the API server does not serve (no CRD yet) is listed again.
MISSING_KIND_RETRY_S = 30.0
# The planner of a mixed pool proposes its first plan this long after the creation of the ledger: by then every extender
# has listed the ledger.
LEDGER_SETTLE_S = 45.0
# An unreachable extender stops answering ``WATCH_SILENT_S`` after its watches last received anything. The pods that it
# accepted until then are bound or given up ``ASSUMED_POD_LIFETIME_S`` later. Then its registration may be removed.
EXTENDER_LOST_S = 160.0
# The same for an extender whose pod has ended.
EXTENDER_ENDED_S = ASSUMED_POD_LIFETIME_S
# The agent confirms what it has published at least this often.
HEARTBEAT_S = 300.0
# A NodeGpus whose ``observedAt`` is older counts as stale: three heartbeats were missed.
STALE_AFTER_S = 900.0

assert WATCH_TIMEOUT_S < WATCH_SILENT_S  # a watch is opened again before the cache counts as silent
assert WATCH_SILENT_S + ASSUMED_POD_LIFETIME_S <= EXTENDER_LOST_S
assert ASSUMED_POD_LIFETIME_S <= EXTENDER_ENDED_S
assert MISSING_KIND_RETRY_S < LEDGER_SETTLE_S
assert 3 * HEARTBEAT_S <= STALE_AFTER_S
