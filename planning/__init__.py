"""`gaoler plan`: the queue's own rules, driven by a virtual clock.

What decides here is what decides in the service: `SlotPolicy`, `Caps` and the budget
formula of `gaoler.actors.policy`.  The planner adds who comes when, and how long they run.
Instants and durations are nanoseconds since the simulation began (`_ns`), as the policy
has them; what people write and read is milliseconds (`_ms`).
"""
