"""Times that several programs rely on together, in seconds. How they must relate is asserted below.

A watch that is silent, a process that has stopped answering and a pod that is on its way to its node are judged by
different processes: the agent, the extender and the planner. The commit protocol (docs/architecture.md) is safe only
while these times fit together.
"""

from __future__ import annotations

# A watch gets a bookmark about once a minute. After a longer silence it is closed and opened anew, which shows whether
# the API server is still there.
WATCH_TIMEOUT_S = 90.0
# Nothing was heard of a kind for that long, not even a bookmark: the cache is too old to decide by, and the extender
# and the planner stop. Not a setting, because planners rely on it: see ``EXTENDER_LOST_S``.
WATCH_SILENT_S = 120.0
# A pod that Filter let in counts on its node for that long. A scheduling cycle and its binding take seconds; then the
# watch has shown the pod bound.
ASSUMED_POD_LIFETIME_S = 30.0
# A kind that the API server does not serve (no CRD yet) is asked for again after that long.
MISSING_KIND_RETRY_S = 30.0
# How long after the ledger was made the first plan is proposed in a mixed pool: by then every extender has listed it.
LEDGER_SETTLE_S = 45.0
# An extender that answers no question stops by itself ``WATCH_SILENT_S`` after it last heard anything; what it let in
# until then is bound or lost ``ASSUMED_POD_LIFETIME_S`` later. Then its registration may be removed from the ledger.
EXTENDER_LOST_S = 160.0
# The same for an extender whose pod was found to have ended.
EXTENDER_ENDED_S = ASSUMED_POD_LIFETIME_S
# The agent confirms what it has published at least this often.
HEARTBEAT_S = 300.0
# A NodeGpus whose ``observedAt`` is older counts as stale: three heartbeats were missed.
STALE_AFTER_S = 900.0

assert WATCH_TIMEOUT_S < WATCH_SILENT_S  # a watch is opened anew before the cache counts as silent
assert WATCH_SILENT_S + ASSUMED_POD_LIFETIME_S <= EXTENDER_LOST_S
assert ASSUMED_POD_LIFETIME_S <= EXTENDER_ENDED_S
assert MISSING_KIND_RETRY_S < LEDGER_SETTLE_S
assert 3 * HEARTBEAT_S <= STALE_AFTER_S
