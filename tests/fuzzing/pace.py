"""How Hypothesis runs these properties: what is slow is the machine."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
