"""What an earlier life of this instance left, removed before anything new is made.

Only groups below the instance's own are looked at: by their name they are ours.
"""

from __future__ import annotations

import time

from gaoler.sandbox import process
from gaoler.sandbox.cgroup import Group, Layout, remove_jail
from gaoler.sandbox.jails import QUARANTINE_AFTER_NS, log


def sweep(layout: Layout, instance: str) -> frozenset[int]:
    """Kill and remove the jails that an earlier life of this instance left.

    What will not die stays in quarantine: its UIDs are returned, not to be leased again.
    """
    base = layout.open_base(instance)
    try:
        names = sorted(base.children())
        left = _kill_all(layout, base, names)
        for name in names:
            if name not in left:
                remove_jail(base, name)
        uids = frozenset(uid for name in left for uid in _uids_in(base, name))
    finally:
        base.close()
    if names:
        log("swept", jails=len(names) - len(left), left=left)
    return uids


def _kill_all(layout: Layout, base: Group, names: list[str]) -> list[str]:
    """Those of the jails in which something still lives after a while; one while for all."""
    # Made again where an earlier removal stopped half-way.
    jails = {name: base.child(name, make=True) for name in names}
    deadline = time.monotonic() + QUARANTINE_AFTER_NS / 1e9
    try:
        while True:
            living = [name for name, jail in jails.items() if layout.populated(jail)]
            if not living or time.monotonic() > deadline:
                return living
            for name in living:
                layout.kill(jails[name])
                layout.kill_each(jails[name])
            time.sleep(0.005)
    finally:
        for jail in jails.values():
            jail.close()


def _uids_in(base: Group, name: str) -> set[int]:
    """The users that a jail's processes run as."""
    jail = base.child(name)
    leaves = [jail.child(leaf) for leaf in jail.children()]
    try:
        pids = {pid for group in (jail, *leaves) for pid in group.processes()}
        return {uid for pid in pids if (uid := process.uid_of(pid)) is not None}
    finally:
        for group in (jail, *leaves):
            group.close()
