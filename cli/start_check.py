"""What must hold before `gaoler serve` starts anything."""

from __future__ import annotations

import os
import pwd
import sys

from gaoler.cli import doctor, instances, specs
from gaoler.cli.announcement import STUB_WARNING
from gaoler.cli.children import StartFailed
from gaoler.config.kinds import host_and_port, refusal
from gaoler.config.settings import Settings, check_placement
from gaoler.sandbox import layers


def service_user(settings: Settings) -> pwd.struct_passwd:
    """Who the web process runs as.  Where we are not root, nobody but ourselves."""
    if os.geteuid() != 0:
        return _ourselves()
    name = settings.service_user
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise StartFailed(
            f"there is no user {name}; run: useradd --system --no-create-home {name}"
        ) from None
    if user.pw_uid == 0:
        raise StartFailed(f"SERVICE_USER={name} is root")
    return user


def _ourselves() -> pwd.struct_passwd:
    uid, gid = os.geteuid(), os.getegid()
    try:
        return pwd.getpwuid(uid)
    except KeyError:  # a container may run as any number
        return pwd.struct_passwd((f"UID {uid}", "x", uid, gid, "", "/", ""))


def addresses(settings: Settings) -> tuple[tuple[str, tuple[str, int]], ...]:
    return ("BIND", settings.bind), ("INTERNAL_BIND", settings.internal_bind)


def check_settings(settings: Settings) -> None:
    """What suits a test, or a look at the settings, but no service."""
    for name, address in addresses(settings):
        if address[1] == 0:
            allowed = "a port from 1 to 65535, so that clients can know it"
            raise refusal(name, host_and_port(address), allowed)
    specs.check_memory(settings)


def check_host(settings: Settings, user: pwd.struct_passwd) -> dict[str, str]:
    """The isolation layers by name.

    Raises StartFailed or SettingsError where no task could be held.
    """
    if os.geteuid() != 0:
        raise StartFailed("making sandboxes needs root; run: sudo bin/serve")
    check_placement(settings, doctor.checkout())
    doctor.check_users(settings)
    instances.check_state_dir(settings, user)
    found = layers.survey()
    shown = [layer for layer in found if layer.state != layers.ACTIVE]
    doctor.print_table(shown, sys.stderr)
    missing = layers.stops_start(found)
    if missing:
        names = ", ".join(layer.name for layer in missing)
        raise StartFailed(f"this host cannot hold a task: missing {names}")
    return {layer.name: str(layer) for layer in found}


def check_stub_host(settings: Settings, user: pwd.struct_passwd) -> None:
    """A stub asks nothing of the kernel; whoever starts it must know that it is one."""
    print(f"gaoler serve: {STUB_WARNING}", file=sys.stderr)
    if os.geteuid() != 0:
        instances.make_state_dir(settings)  # for root bin/serve does, as the service's user
    instances.check_state_dir(settings, user)
