"""System calls by name, for the probes that make them raw, and what counts as refused."""

from __future__ import annotations

import signal

import pyseccomp  # type: ignore[import-untyped]

from gaoler.sandbox import profiles

# Newer than Debian 12's libseccomp; numbers are the same everywhere.
_NEWER = {
    **profiles.ALLOWED_NUMBERS,
    "statmount": 457,
    "listmount": 458,
    "lsm_get_self_attr": 459,
    "lsm_set_self_attr": 460,
    "lsm_list_modules": 461,
    "setxattrat": 463,
    "getxattrat": 464,
    "listxattrat": 465,
    "removexattrat": 466,
    "open_tree_attr": 467,
    "file_getattr": 468,
    "file_setattr": 469,
    "listns": 470,
}

# What a probe begins with: `tried` makes an attempt in a child, so that the probe lives on.
TRIED = r"""
def tried(body, *arguments):
    "What the body gives, its errno's name, or the name of the signal that ended it."
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        me, answer = os.getpid(), None
        try:
            try:
                answer = body(*arguments)
            except OSError as error:
                answer = errno.errorcode[error.errno]
            # A call that made one process more gives its answer once.
            if os.getpid() == me:
                os.write(write_end, json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end, 'rb') as file:
        said = file.read()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return json.loads(said)

"""

_REFUSALS = frozenset(
    "EPERM EACCES ENOSYS EINVAL ESRCH ENOENT EROFS ECHILD EAFNOSUPPORT EPROTONOSUPPORT "
    "ESOCKTNOSUPPORT EOPNOTSUPP ENOTSUP ENOPROTOOPT ENOTTY ECONNREFUSED".split()
)


def number(name: str) -> int:
    """A call's number on this machine; negative where it has none."""
    return _NEWER.get(name) or int(pyseccomp.resolve_syscall(pyseccomp.system_arch(), name))


def name_of(value: int) -> str:
    """A call's name, or its number as text where nobody here knows its name."""
    for name, newer in _NEWER.items():
        if newer == value:
            return name
    try:
        found: bytes = pyseccomp.resolve_syscall(pyseccomp.system_arch(), value)
    except ValueError:
        return str(value)
    return found.decode()


def raw(*names: str) -> str:
    """The head of a probe that makes these calls: `tried`, and each number as NR_name."""
    return TRIED + "".join(f"NR_{name} = {number(name)}\n" for name in names)


def refused(answer: object) -> bool:
    """An errno that says no, or the end by seccomp; which layer said so does not matter."""
    return isinstance(answer, str) and (answer == signal.SIGSYS.name or answer in _REFUSALS)


def let_through(answers: dict[str, object]) -> dict[str, object]:
    """Of named answers those that are no refusal: what a test expects to be empty."""
    return {name: answer for name, answer in answers.items() if not refused(answer)}
