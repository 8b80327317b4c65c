"""Fixtures of the planner, beside the extender and the real kube-scheduler."""

from __future__ import annotations

from tests.e2e.gangs.conftest import agents_of, extender, planner, served

__all__ = ["agents_of", "extender", "planner", "served"]
