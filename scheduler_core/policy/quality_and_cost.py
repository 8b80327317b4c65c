"""The policy file for two more names of gputopo's scheduler: one for fast and one for cheap placement.

The manifests ship it, and `gputopo scheduler-config --policy` prints it.
"""

from __future__ import annotations

from gputopo.labels.keys import COST_SCHEDULER_NAME, QUALITY_SCHEDULER_NAME
from scheduler_core.policy.models import API_VERSION, KIND

QUALITY_AND_COST_POLICY = f"""\
# Printed by `gputopo scheduler-config --policy`; docs/policies.md explains the keys. Pods with another scheduler name
# use the default weights.
apiVersion: {API_VERSION}
kind: {KIND}
profiles:
  - name: quality # the fastest GPUs, on capacity that stays
    match: {{schedulerName: {QUALITY_SCHEDULER_NAME}}}
    weights: {{bandwidth: 12, leftover: 1, generation: 4, onDemand: 2}}
  - name: cost # cheap and spot capacity, of any generation from Ampere on
    match: {{schedulerName: {COST_SCHEDULER_NAME}}}
    weights: {{cost: 8, spot: 4, bandwidth: 1}}
    halfCost: 2 # a GPU of this cost per hour has half the raw score of a free one
    generation: {{enough: ampere}}
"""
