"""`gaoler serve`: starts the warden and the web process, and keeps them.

runs as      root, tiny, single-threaded; a stub (RUNNER_MODE) as anybody
parent       whoever started it; children: the warden, which a stub has none of, and gunicorn
descriptors  the instance's locks; the listening sockets; the warden's lifeline; both ends of
             the drain line
dies when    told to by SIGTERM or SIGINT, when it was told to drain by SIGUSR2 and nothing is
             in flight any more, or when one of the two cannot be kept alive

It parses nothing that strangers send and touches no task.  If it is killed outright, the
warden sees its lifeline end, removes every jail and ends; gunicorn gets SIGTERM from the
kernel.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import logging
import os
import pickle
import select
import signal
import socket
import sys
import time
from collections.abc import Callable

from gaoler.cli import (
    announcement,
    children,
    drain_line,
    exit_codes,
    instances,
    listeners,
    logs,
    specs,
    start_check,
)
from gaoler.cli.children import Child, StartFailed
from gaoler.config.settings import Settings, load
from gaoler.sandbox import capabilities, seccomp, syscalls

_WARDEN_STOP_S = 15.0
# A process may hang in the kernel, where not even SIGKILL reaches it.
_KILL_S = 5.0
_WEB_MARGIN_S = 3.0
_LOG = logging.getLogger("gaoler.serve")

# What the web process finds in its environment: nothing of ours, and no secret.
_WEB_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser  # everything is a setting


class Broken(Exception):
    """The supervision failed: a bug, or a host that has run out of something."""


def main(args: argparse.Namespace) -> int:
    """Run the service until it is told to stop."""
    del args
    # Until it can be heeded it waits, and ends nobody.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    children.occupy_standard_descriptors()
    settings = load(os.environ)
    logs.configure(settings.log_level)
    try:
        return Service(settings).run()
    except (StartFailed, instances.AlreadyRuns) as error:
        print(f"gaoler serve: {error}", file=sys.stderr)
        return exit_codes.UNAVAILABLE
    except Broken as error:
        print(f"gaoler serve: {error}", file=sys.stderr)
        return exit_codes.FAILED


class Service:
    """The two children and what is shared between them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.instance = specs.instance_of(settings)
        self.runtime_dir = specs.runtime_dir_of(settings, self.instance)
        self.user = start_check.service_user(settings)
        self.is_stub = settings.runner_mode == "stub"
        self.listening: list[socket.socket] = []
        self.lifeline = -1
        self.stop_asked = False
        self.drain = drain_line.DrainLine(drain_line.limit_s(settings))
        self.layers: dict[str, str] = {}
        self.warden = Child("warden", self._start_warden)
        self.web = Child("web process", self._start_web)

    def run(self) -> int:
        """Start, supervise, stop."""
        self._check_host()
        locks = instances.lock(self.settings, self.runtime_dir, self.user)
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        faulthandler.register(signal.SIGUSR1)
        self._listen_to_signals()
        # The web process is stopped first, so that its clients are answered; then the warden.
        stages = (self._serve, self._stop_listening, self._stop_web, self._stop_warden)
        failures = [failure for failure in map(self._attempt, stages) if failure is not None]
        for descriptor in locks:
            os.close(descriptor)
        # The drain line stays open: its signal may come until the very end.
        if failures:
            raise failures[0]
        return exit_codes.DONE

    def _attempt(self, stage: Callable[[], None]) -> StartFailed | Broken | None:
        """What a stage failed of: whatever it is, the stages after it must have their turn.

        A child that they leave behind ends with us: gunicorn gets SIGTERM from the kernel, the
        warden's lifeline ends.
        """
        try:
            stage()
        except StartFailed as error:
            return error
        except Exception as error:  # noqa: BLE001 - logged, and told by the exit code
            _LOG.exception("supervision_failed")
            return Broken(f"failed: {type(error).__name__}; see the log above")
        return None

    def _serve(self) -> None:
        self._listen()
        if not self.is_stub:
            self.warden.launch()
        self.web.launch()
        self._announce()
        self._supervise()

    # --- before anything is started ---

    def _check_host(self) -> None:
        start_check.check_settings(self.settings)
        if self.is_stub:
            start_check.check_stub_host(self.settings, self.user)
        else:
            self.layers = start_check.check_host(self.settings, self.user)

    def _listen(self) -> None:
        """Ours before anything is started: whoever answers there from now on is us."""
        for name, address in start_check.addresses(self.settings):
            self.listening.append(listeners.listen(name, address))

    # --- children ---

    def _start_warden(self) -> int:
        """The warden, ready to take jobs.  It has swept what an earlier one left."""
        spec = specs.make_spec(self.settings, self.instance, self.user.pw_uid, self.user.pw_gid)
        spec_read = children.filled_pipe(spec.dump())
        alive_read, alive_write = os.pipe()
        ready_read, ready_write = os.pipe()
        pid = children.spawn(
            ["-m", "gaoler.sandbox.warden", str(spec_read), str(alive_read), str(ready_write)],
            {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            [spec_read, alive_read, ready_write],
            lambda: None,
        )
        for descriptor in (spec_read, alive_read, ready_write):
            os.close(descriptor)
        if self.lifeline >= 0:
            os.close(self.lifeline)
        self.lifeline = alive_write
        ready = False
        try:
            ready = children.became_ready(ready_read)
        finally:
            if not ready:
                children.end(pid)
        if not ready:
            raise StartFailed("the warden did not start; see the log above")
        return pid

    def _start_web(self) -> int:
        """Gunicorn, in a session of its own, as the service user and without any right."""
        handed = children.filled_pipe(pickle.dumps((self.settings, self.instance, self.layers)))
        parent, refused = os.getpid(), seccomp.compile_web()

        def give_up_rights() -> None:
            os.setsid()
            if os.geteuid() == 0:
                self._become_service_user()
            syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
            syscalls.seccomp_load(refused)
            syscalls.die_with_parent(parent, signal.SIGTERM)

        listening = [sock.fileno() for sock in self.listening]
        given = [handed, self.drain.workers_end(), *listening]
        pid = children.spawn(
            ["-m", "gaoler.cli.web", *map(str, given)], _WEB_ENVIRONMENT, given, give_up_rights
        )
        os.close(handed)
        return pid

    def _become_service_user(self) -> None:
        uid, gid = self.user.pw_uid, self.user.pw_gid
        capabilities.drop_bounding()
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)

    def _announce(self) -> None:
        """Wait until requests are answered, then one line that can be pasted."""
        deadline = time.monotonic() + children.START_LIMIT_S
        while not self._is_ending() and not announcement.is_healthy(self.settings):
            if time.monotonic() > deadline:
                raise StartFailed("the service did not become ready; see the log above")
            if self._reap_any():
                raise StartFailed("the service ended while it was starting; see the log above")
            time.sleep(0.1)
        if not self._is_ending():
            print(announcement.text(self.settings), flush=True)

    # --- supervision ---

    def _listen_to_signals(self) -> None:
        self.wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._ask_to_stop())
        signal.signal(signal.SIGUSR2, lambda *_: self.drain.ask())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})

    def _ask_to_stop(self) -> None:
        self.stop_asked = True

    def _is_ending(self) -> bool:
        """True where nobody is to be invited any more."""
        return self.stop_asked or self.drain.asked

    def _supervise(self) -> None:
        while not self.stop_asked and not self._has_drained():
            # Not before it was asked: a worker must not wake us as it likes.
            done = [self.drain.fileno()] if self.drain.asked else []
            self._wait_for_signal(self.drain.left_s(), *done)
            for child in self._reap_any():
                if not self.stop_asked and not self.drain.is_done():
                    self._replace(child)

    def _has_drained(self) -> bool:
        """True once nothing is in flight, or what is should have ended long ago."""
        if self.drain.is_done():
            return True
        overdue = self.drain.left_s() == 0.0
        if overdue:
            logs.note("drain_overdue")
        return overdue

    def _wait_for_signal(self, timeout_s: float | None, *others: int) -> None:
        select.select([self.wake_read, *others], [], [], timeout_s)
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_read, 4096)

    def _reap_any(self) -> list[Child]:
        """The children that have ended.  Others' orphans are reaped on the way."""
        ended: list[Child] = []
        while True:
            try:
                # Looked at before it is reaped: until then its process group is its own.
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return ended
            if info is None:
                return ended
            child = next((c for c in (self.warden, self.web) if c.pid == info.si_pid), None)
            if child is self.web:
                self._end_web_group()
            os.waitpid(info.si_pid, 0)
            if child is not None:
                child.pid = 0
                ended.append(child)

    def _end_web_group(self) -> None:
        """Gunicorn has ended; a worker of it may still answer, and would beside the next one
        give the same slots away once more."""
        children.signal_group(self.web.pid, signal.SIGTERM)
        deadline = time.monotonic() + self.settings.shutdown_timeout_ms / 1000 + _WEB_MARGIN_S
        while children.group_lives(self.web.pid):
            if time.monotonic() > deadline:
                children.signal_group(self.web.pid, signal.SIGKILL)
            if time.monotonic() > deadline + _KILL_S:
                logs.note("child_left", child=self.web.name)
                return
            time.sleep(0.02)

    def _replace(self, child: Child) -> None:
        logs.note("child_died", child=child.name)
        child.launch()
        logs.note("child_started", child=child.name, pid=child.pid)

    # --- the end ---

    def _stop_listening(self) -> None:
        """Ours are closed first, so that from gunicorn's close on clients are turned away."""
        while self.listening:
            self.listening.pop().close()

    def _stop_web(self) -> None:
        limit_s = self.settings.shutdown_timeout_ms / 1000 + _WEB_MARGIN_S
        if self.web.pid:
            children.signal_group(self.web.pid, signal.SIGTERM)
            self._await_end(self.web, limit_s)

    def _stop_warden(self) -> None:
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1
        if self.warden.pid:
            self._await_end(self.warden, _WARDEN_STOP_S)

    def _await_end(self, child: Child, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while child.pid:
            left = deadline - time.monotonic()
            if left <= 0:
                logs.note("child_killed", child=child.name)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
            if left <= -_KILL_S:
                logs.note("child_left", child=child.name)
                return
            self._wait_for_signal(max(0.05, left))
            self._reap_any()
