"""Seccomp: the profiles compiled to BPF, once, before anything is forked.

Only the machine's native system call interface is let in: a rule on 64-bit numbers says
nothing about the 32-bit ones that `int 0x80` reaches, so those, and x32, end the process.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

import pyseccomp  # type: ignore[import-untyped]

from gaoler.sandbox import profiles

KILL_PROCESS = pyseccomp.KILL_PROCESS
_LOW_32_BITS = 0xFFFFFFFF
# libseccomp's attribute numbers: what a foreign architecture gets, and a binary tree of
# comparisons instead of a list, so that a call costs the logarithm of the rules.
_ATTRIBUTE_BAD_ARCH = 2
_ATTRIBUTE_OPTIMIZE = 8


@dataclass(frozen=True, slots=True)
class Programs:
    """BPF, compiled: `parked` is what every parked process has, `final` what is added to it
    just before exec, for each profile and in this order."""

    parked: bytes
    final: dict[str, tuple[bytes, ...]]


def compile_all() -> Programs:
    """Every profile of `profiles.PROFILES`."""
    # The last one forbids to load any more.
    final = _export(_final())
    return Programs(
        parked=_export(_standard()),
        final={"standard_v1": (final,), "native_v1": (_export(_native()), final)},
    )


def compile_web() -> bytes:
    """What the web process is refused, EPERM; all else it may do."""
    made = _filter(pyseccomp.ALLOW)
    for name in profiles.WEB_REFUSED:
        _add(made, pyseccomp.ERRNO(errno.EPERM), name)
    for number in profiles.WEB_REFUSED_NUMBERS:
        made.add_rule(pyseccomp.ERRNO(errno.EPERM), number)
    _add(made, pyseccomp.ERRNO(errno.ENOSYS), "clone3")  # its flags are where no filter looks
    _refuse_namespaces(made)
    for name, values in profiles.WEB_REFUSED_VALUES:
        rule = (_equals(argument, value) for argument, value in values.items())
        made.add_rule(pyseccomp.ERRNO(errno.EPERM), name, *rule)
    return _export(made)


def _filter(default: int) -> pyseccomp.SyscallFilter:
    made = pyseccomp.SyscallFilter(default)
    made.set_attr(_ATTRIBUTE_BAD_ARCH, KILL_PROCESS)
    made.set_attr(_ATTRIBUTE_OPTIMIZE, 2)
    return made


def _standard() -> pyseccomp.SyscallFilter:
    made = _filter(pyseccomp.ERRNO(errno.ENOSYS))
    for name in profiles.ALLOWED:
        _add(made, pyseccomp.ALLOW, name)
    for number in profiles.ALLOWED_NUMBERS.values():
        made.add_rule(pyseccomp.ALLOW, number)
    for name in profiles.REFUSED:
        _add(made, pyseccomp.ERRNO(errno.EPERM), name)
    for name in profiles.KILLED:
        _add(made, KILL_PROCESS, name)
    for name in profiles.PRETENDED:
        _add(made, pyseccomp.ERRNO(0), name)
    _socket_rules(made)
    _clone_rules(made)
    _node_rules(made)
    _personality_rules(made)
    return made


def _socket_rules(made: pyseccomp.SyscallFilter) -> None:
    internet = {family for family, _, _ in profiles.INTERNET_SOCKETS}
    for family in range(profiles.LAST_SOCKET_FAMILY + 1):
        allowed = family in profiles.SOCKET_FAMILIES
        action = pyseccomp.ALLOW if allowed else pyseccomp.ERRNO(errno.EAFNOSUPPORT)
        made.add_rule(action, "socketpair", _equals(0, family))
        if family not in internet:
            made.add_rule(action, "socket", _equals(0, family))
    for family, kind, protocols in profiles.INTERNET_SOCKETS:
        kinds = pyseccomp.Arg(1, pyseccomp.MASKED_EQ, profiles.SOCKET_TYPE_MASK, kind)
        for protocol in protocols:
            made.add_rule(
                pyseccomp.ALLOW, "socket", _equals(0, family), kinds, _equals(2, protocol)
            )
    for level, options in profiles.SOCKET_OPTIONS.items():
        for option in map(int, options.split()):
            made.add_rule(pyseccomp.ALLOW, "setsockopt", _equals(1, level), _equals(2, option))


def _clone_rules(made: pyseccomp.SyscallFilter) -> None:
    every = sum(profiles.NAMESPACE_FLAGS)
    made.add_rule(pyseccomp.ALLOW, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, every, 0))
    _refuse_namespaces(made)


def _refuse_namespaces(made: pyseccomp.SyscallFilter) -> None:
    for flag in profiles.NAMESPACE_FLAGS:
        made.add_rule(
            pyseccomp.ERRNO(errno.EPERM),
            "clone",
            pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag),
        )


def _node_rules(made: pyseccomp.SyscallFilter) -> None:
    mask = profiles.FILE_KIND_MASK
    for kind in range(0, mask + 1, 0o010000):
        allowed = kind in profiles.MAKEABLE_KINDS
        action = pyseccomp.ALLOW if allowed else pyseccomp.ERRNO(errno.EPERM)
        for name, argument in (("mknod", 1), ("mknodat", 2)):
            made.add_rule(action, name, pyseccomp.Arg(argument, pyseccomp.MASKED_EQ, mask, kind))


def _personality_rules(made: pyseccomp.SyscallFilter) -> None:
    for value in profiles.PERSONALITIES:
        made.add_rule(pyseccomp.ALLOW, "personality", _equals(0, value))


def _final() -> pyseccomp.SyscallFilter:
    """Refusals by value: a filter of its own, as a rule cannot say "every value but these"."""
    made = _filter(pyseccomp.ALLOW)
    for name, values, number in profiles.FINAL_REFUSED:
        made.add_rule(pyseccomp.ERRNO(number), name, *(_equals(a, v) for a, v in values.items()))
    for name, argument, bits, value, number in profiles.FINAL_REFUSED_BITS:
        rule = pyseccomp.Arg(argument, pyseccomp.MASKED_EQ, bits, value)
        made.add_rule(pyseccomp.ERRNO(number), name, rule)
    return made


def _native() -> pyseccomp.SyscallFilter:
    made = _filter(pyseccomp.ALLOW)
    for name in profiles.NATIVE_KILLED:
        _add(made, KILL_PROCESS, name)
    made.add_rule(
        KILL_PROCESS,
        "clone",
        pyseccomp.Arg(0, pyseccomp.MASKED_EQ, profiles.CLONE_THREAD, 0),
    )
    return made


def _equals(argument: int, value: int) -> pyseccomp.Arg:
    """A comparison of the lower 32 bits, which are all that the kernel looks at."""
    return pyseccomp.Arg(argument, pyseccomp.MASKED_EQ, _LOW_32_BITS, value)


def _add(made: pyseccomp.SyscallFilter, action: int, name: str) -> None:
    """Add a rule for a call; one that this architecture or libseccomp lacks is left out.

    Left out means the default: ENOSYS in the allow list, so nothing is opened by it.
    """
    number = pyseccomp.resolve_syscall(pyseccomp.system_arch(), name)
    if number >= 0:
        made.add_rule(action, number)


def _export(made: pyseccomp.SyscallFilter) -> bytes:
    descriptor = os.memfd_create("bpf", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "r+b") as file:
        made.export_bpf(file)
        file.seek(0)
        return file.read()
