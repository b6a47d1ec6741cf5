"""The workspace: what root's side writes there, reads from it and starts in it is never fooled."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gaoler.sandbox.job import InputFile, Task, TaskResult
from tests.adversarial.probing import attack, see, told
from tests.hosting import MIB, LiveWarden, eventually, job, process_tree, shell, task

SECRET = b"the host's"
# A folder of its own, swapped as often as it goes for a link, until it is told to stop.
SWAP_FOLDER = """
os.mkdir('real'); os.mkdir('other')
open('real/passwd', 'w').write('mine')
attempt(os.rename, 'real', 'd')             # an input may have been faster
os.symlink(sys.argv[1], 'link')
open('swapping', 'w').close()
swaps = 0
while not os.path.exists('stop'):
    for _ in range(50):
        syscall(316, -100, b'd', -100, b'link', 2)
        swaps += 1
tell(swaps=swaps, landed=os.listdir('other'))
"""


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """A file of the host that everybody may read and change, in a folder that is as open."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    tmp_path.chmod(0o777)
    file = tmp_path / "canary"
    file.write_bytes(SECRET)
    file.chmod(0o666)
    before = file.lstat()
    yield file
    after = file.lstat()
    assert file.read_bytes() == SECRET
    assert (after.st_uid, after.st_mode, after.st_nlink) == (0, stat.S_IFREG | 0o666, 1)
    assert after.st_ctime_ns == before.st_ctime_ns
    assert os.listdir(tmp_path) == ["canary"]


def _read(result_files: object) -> list[tuple[bytes, str | None]]:
    assert isinstance(result_files, tuple)
    return [(file.data, file.error) for file in result_files]


# --- links that a task left behind --------------------------------------------------------

# What a link can lead to; CANARY is the host's file, FOLDER its folder.
TARGETS = (
    "CANARY",
    "/proc/1/rootCANARY",
    "/proc/self/rootCANARY",
    "/proc/self/cwdCANARY",
    "../../../../..CANARY",
    "/proc/self/fd/0",
    "/proc/self/fd/3",
    "/dev/fd/4",
    "/dev/stdin",
    "/proc/self/exe",
    "/proc/self/mem",
    "/proc/self/environ",
    "/proc/1/environ",
    "/dev/zero",
    "/dev/random",
    "/etc/passwd",
    "/etc/masked",
)


def test_a_link_to_any_place_is_neither_read_nor_written_nor_given_away(
    warden: LiveWarden, canary: Path
) -> None:
    """go-judge 2025 and Judge0 2024: root's side read, wrote and chowned through such links."""
    links = {f"l{n}": t.replace("CANARY", str(canary)) for n, t in enumerate(TARGETS)}
    plant = "import json; [os.symlink(t, n) for n, t in json.loads(sys.argv[1]).items()]"
    (planted,), *blocked = warden.run(
        attack(plant, json.dumps(links), collect=tuple(links)),
        *(task("/bin/true", files={name: b"planted"}) for name in list(links)[:6]),
    )
    assert _read(planted.files) == [(b"", "not_a_regular_file")] * len(links)
    assert {(r.outcome, r.reason) for (r,) in blocked} == {("setup_failed", "bad_path")}


def test_a_folder_that_is_a_link_leads_nothing_out(warden: LiveWarden, canary: Path) -> None:
    """Below such a link nothing is read, made or started."""
    targets = [str(canary.parent), "/proc/self/root", "/proc/self/cwd", "/", "/proc/self/fd"]
    plant = "import json; [os.symlink(t, f'd{n}') for n, t in enumerate(json.loads(sys.argv[1]))]"
    names = tuple(f"d{n}/{name}" for n in range(5) for name in ("canary", "passwd", "0"))
    (planted,), *blocked = warden.run(
        attack(plant, json.dumps(targets), collect=names),
        *(task("/bin/true", files={f"d{n}/planted/deep": b"x"}) for n in range(5)),
        *(task("/bin/pwd", working_dir=f"d{n}") for n in range(5)),
    )
    assert _read(planted.files) == [(b"", "not_a_regular_file")] * len(names)
    assert [(r.outcome, r.reason) for (r,) in blocked] == [("setup_failed", "bad_path")] * 5 + [
        ("setup_failed", "working_dir")
    ] * 5
    assert {r.stdout for (r,) in blocked} == {b""}


def test_a_hard_link_in_the_way_of_an_input_keeps_its_bytes_and_rights(warden: LiveWarden) -> None:
    """The input is a new file: what else bears the old one's name is not written or chmoded."""
    seen_before, seen_after = warden.run(
        attack(
            """
os.mkdir('keep'); open('keep/old', 'w').write('old'); os.chmod('keep/old', 0o400)
os.link('keep/old', 'in')
tell(inode=os.stat('in').st_ino)
"""
        ),
        attack(
            """
old, new = os.stat('keep/old'), os.stat('in')
tell(inode=old.st_ino, mode=oct(old.st_mode), links=old.st_nlink, text=open('keep/old').read(),
     new=open('in').read(), apart=old.st_ino != new.st_ino, owner=[new.st_uid, new.st_gid])
""",
            files={"in": b"new"},
        ),
    )
    after = told(seen_after[0])
    assert after.pop("inode") == told(seen_before[0])["inode"]
    assert after == {
        "mode": "0o100400",
        "links": 1,
        "text": "old",
        "new": "new",
        "apart": True,
        "owner": [1000, 1000],
    }


# --- paths that a client sends ------------------------------------------------------------

WAYS_OUT = (
    "..",
    "../etc/passwd",
    "/etc/passwd",
    "/proc/self/environ",
    "a/../../etc/passwd",
    "a/b/../../../etc/passwd",
    "./../etc/passwd",
    "",
    "x" * 256,
    "a/" * 2100 + "b",
)


def test_a_path_out_of_the_workspace_is_refused_by_the_jail_too(
    warden: LiveWarden, canary: Path
) -> None:
    """The worker refuses them before; the jail does not count on it."""
    ways = (*WAYS_OUT, str(canary), f"../../../../..{canary}")
    (collected,), *results = warden.run(
        shell("mkdir -p a/b", collect=ways),
        *(task("/bin/true", files={way: b"planted"}) for way in ways),
        *(task("/bin/pwd", working_dir=way) for way in ways),
    )
    assert _read(collected.files) == [(b"", "missing")] * len(ways)
    assert {(r.outcome, r.reason) for (r,) in results} == {("setup_failed", "bad_path")}


def test_the_workspace_itself_is_no_file(warden: LiveWarden) -> None:
    (collected,), (replaced,) = warden.run(
        shell("echo x > f", collect=(".", "./", "./.", "f/", "f/.", "f/f")),
        task("/bin/true", files={".": b"x"}),
    )
    errors = [error for _, error in _read(collected.files)]
    assert errors == ["not_a_regular_file"] * 3 + [None, None, "not_a_regular_file"]
    assert (replaced.outcome, replaced.reason) == ("setup_failed", "bad_path")


def test_names_that_are_no_text_harm_neither_collection_nor_the_next_step(
    warden: LiveWarden,
) -> None:
    (left,), (after,) = warden.run(
        attack(
            r"""
names = [b'\xff\xfe', b'\xc3(', b'\xed\xa0\x80', b'new\nline', b'\x1b[2J', b'"', b'\\', b'%s%n',
         b' ', b'...', b'-rf', b'x' * 255]
for name in names:
    open(b'/box/' + name, 'w').close()
    os.mkdir(b'/tmp/' + name)
open('good', 'w').write('data')
tell(longer=attempt(open, b'x' * 256, 'w'), zero=attempt(os.mkdir, '/box/x/../' + 'y' * 256))
""",
            collect=("good", "\ufffd\ufffd", "x" * 255, "..."),
        ),
        attack("tell(count=len(os.listdir(b'/box')))", files={"...": b"x", "%s%n": b"y"}),
    )
    assert told(left)["longer"] == "ENAMETOOLONG"
    assert _read(left.files) == [(b"data", None), (b"", "missing"), (b"", None), (b"", None)]
    assert told(after) == {"count": 14}


@pytest.mark.parametrize(("depth", "error"), [(2040, None), (2100, "missing")])
def test_a_tree_of_any_depth_is_collected_or_not_found_and_torn_down(
    warden: LiveWarden, depth: int, error: str | None
) -> None:
    """The host, too, has to take it down again: the fixture waits for that."""
    path = "d/" * depth + "f"
    result = warden.run_one(
        attack(
            """
for _ in range(int(sys.argv[1])):
    os.mkdir('d'); os.chdir('d')
open('f', 'w').write('deep')
""",
            str(depth),
            collect=(path,),
        )
    )
    assert result.outcome == "completed"
    assert _read(result.files) == [(b"" if error else b"deep", error)]


# --- files of odd kinds and sizes ---------------------------------------------------------


def test_holes_are_bytes_and_count_as_such(warden: LiveWarden) -> None:
    """A file that takes no room must not become an answer without a limit."""
    result = warden.run_one(
        attack(
            """
for name, size in (('small', 3 << 20), ('large', 5 << 20), ('huge', 1 << 40)):
    tell(**{name: attempt(lambda: open(name, 'w').truncate(size))})
""",
            collect=("small", "large", "huge", "small"),
        ),
        workspace_bytes=MIB,
        output_bytes=4 * MIB,
    )
    # Beyond its file limit a process gets SIGXFSZ, which Python ignores.
    assert told(result) == {"small": "done", "large": "done", "huge": "EFBIG"}
    assert [(len(f.data), f.error) for f in result.files] == [
        (3 * MIB, None),
        (0, "too_large"),
        (0, None),
        (0, "too_large"),
    ]
    assert not any(result.files[0].data)


def test_one_file_that_is_asked_for_a_thousand_times_is_one_answer(warden: LiveWarden) -> None:
    result = warden.run_one(
        shell("head -c 600 /dev/zero > a; ln a b", collect=("a", "b") * 1000), output_bytes=1500
    )
    sizes = [(len(f.data), f.error) for f in result.files]
    assert sizes == [(600, None), (600, None)] + [(0, "too_large")] * 1998


def test_room_that_is_taken_behind_a_files_end_is_room(warden: LiveWarden) -> None:
    """A file of size 0 that fills the workspace: what is collected of it is nothing."""
    (full,), (blocked,), (after,) = warden.run(
        attack(
            """
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
file = os.open('fill', os.O_CREAT | os.O_RDWR, 0o600)
size = 1 << 20
while size >= 4096:
    while libc.fallocate(file, 1, os.fstat(file).st_blocks * 512, size) == 0:
        pass
    size //= 2
tell(size=os.fstat(file).st_size, free=os.statvfs('/box').f_bavail,
     data=attempt(lambda: open('more', 'wb').write(b'x' * 9999)))
""",
            collect=("fill",),
        ),
        task("/bin/true", files={"late": b"x" * 5000}),
        shell("rm fill; echo > f && echo goes on"),
        workspace_bytes=MIB,
    )
    seen = told(full)
    assert (seen["size"], seen["free"], seen["data"]) == (0, 0, "ENOSPC")
    assert _read(full.files) == [(b"", None)]
    assert (blocked.outcome, blocked.reason) == ("setup_failed", "workspace_full")
    assert after.stdout == b"goes on\n"


def test_a_workspace_without_a_free_inode_refuses_the_next_input_alone(
    start_warden: Callable[..., LiveWarden],
) -> None:
    warden = start_warden(workspace_inodes=1024)
    (full,), (blocked,), _, (after,) = warden.run(
        attack(
            """
count = 0
while (met := attempt(os.mkdir, str(count))) == 'done':
    count += 1
tell(met=met, few=count <= 1024, link=attempt(os.link, 'probe.py', 'l'),
     nameless=attempt(os.open, '/box', os.O_TMPFILE | os.O_RDWR))
""",
            collect=("probe.py", "none"),
        ),
        task("/bin/true", files={"late": b"x"}),
        shell("rmdir 1 2"),
        shell("cat late", files={"late": b"x"}),
    )
    seen = told(full)
    assert (seen["met"], seen["few"], seen["nameless"]) == ("ENOSPC", True, "ENOSPC")
    assert [f.error for f in full.files] == [None, "missing"]
    assert (blocked.outcome, blocked.reason) == ("setup_failed", "workspace_full")
    assert after.stdout == b"x"


def test_a_folder_that_was_closed_hides_its_files_from_no_one_but_its_owner(
    warden: LiveWarden,
) -> None:
    """The collector has no more rights than the task: it reads nothing by force."""
    result = warden.run_one(
        attack(
            """
for mode in (0o000, 0o400, 0o100, 0o700):
    name = '%03o' % mode
    os.mkdir(name); open(name + '/f', 'w').write('x'); os.chmod(name, mode)
open('written', 'w').write('x'); os.chmod('written', 0o222)
os.chmod('/box', 0o000)
""",
            collect=("000/f", "400/f", "100/f", "700/f", "written"),
        )
    )
    assert [f.error for f in result.files] == ["unreadable", "unreadable", None, None, "unreadable"]


def test_an_input_with_the_set_uid_bit_gives_nobody_s_rights(warden: LiveWarden) -> None:
    program = Path("/usr/bin/id").read_bytes()
    given = replace(
        shell("./id -u; ./id -g; ./id -G; stat -c '%u %g' id"),
        files=(InputFile("id", 0o6777, program),),
    )
    assert warden.run_one(given).stdout.split() == [b"1000"] * 5


# --- a sibling that changes things meanwhile ----------------------------------------------


def _race(warden: LiveWarden, sibling: Task, victim: Task) -> list[TaskResult]:
    """Run both side by side; the sibling goes on until the victim's result is whole."""
    watched = warden.submit(job([sibling, victim]))
    eventually(lambda: (0, 1) in watched.results, "the victim's result")
    for pid in process_tree(os.getpid()).get("task", ()):
        # Its root leads into the jail; a file of root's there is the word to stop.
        Path(f"/proc/{pid}/root/box/stop").touch()
        break
    assert watched.wait().failure is None
    return [watched.results[0, 0], watched.results[0, 1]]


WAIT = "until [ -e swapping ]; do :; done"


def test_a_folder_that_is_swapped_for_a_link_is_never_followed(warden: LiveWarden) -> None:
    """One path below a folder that changes all the time, read back hundreds of times."""
    victim = shell(WAIT, collect=("d/passwd",) * 500)
    swapper, collected = _race(warden, attack(SWAP_FOLDER, "/etc"), victim)
    assert told(swapper).pop("swaps") > 0
    assert len(collected.files) == 500
    assert set(_read(collected.files)) <= {
        (b"mine", None),
        (b"", "not_a_regular_file"),
        (b"", "missing"),
    }


@pytest.mark.parametrize("target", ["other", "/box/other"])
def test_an_input_is_never_laid_through_a_folder_that_is_swapped(
    warden: LiveWarden, target: str
) -> None:
    """Where it would land if it were: a folder that the sibling can look into afterwards."""
    victim = task("/bin/true", files={f"d/{number}": b"x" for number in range(1500)})
    for _ in range(10):
        swapper, laid = _race(warden, attack(SWAP_FOLDER, target), victim)
        seen = told(swapper)
        if seen.pop("swaps"):
            break  # else all was laid before the sibling had begun: once more
    else:
        pytest.fail("the sibling never began in time")
    assert seen == {"landed": []}
    assert (laid.outcome, laid.reason) in (("completed", None), ("setup_failed", "bad_path"))


def test_a_file_that_is_swapped_for_a_fifo_holds_nobody_up(warden: LiveWarden) -> None:
    """A FIFO that somebody else keeps open and fills would be read for ever, or waited for."""
    source = """
os.mkfifo('fifo'); open('out', 'w').write('mine')
held = os.open('fifo', os.O_RDWR | os.O_NONBLOCK)
open('swapping', 'w').close()
while not os.path.exists('stop'):
    for _ in range(50):
        syscall(316, -100, b'out', -100, b'fifo', 2)
        try:
            os.write(held, b'endless')
        except BlockingIOError:
            pass
tell(ended='stop')
"""
    swapper, collected = _race(warden, attack(source), shell(WAIT, collect=("out",) * 500))
    assert told(swapper) == {"ended": "stop"}
    found = set(_read(collected.files))
    assert found <= {(b"mine", None), (b"", "not_a_regular_file"), (b"", "missing")}


def test_a_file_that_grows_while_it_is_read_ends_at_the_limit(warden: LiveWarden) -> None:
    source = """
out = os.open('out', os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
open('swapping', 'w').close()
while not os.path.exists('stop'):
    try:
        os.write(out, b'x' * 65536)
    except OSError:
        os.ftruncate(out, 1 << 20)          # full: begin again, which is a shrinking file
tell(ended='stop')
"""
    watched = _race(
        warden, attack(source), shell(WAIT, collect=("out",) * 40, output_bytes=4 * MIB)
    )
    files = watched[1].files
    assert told(watched[0]) == {"ended": "stop"}
    assert {f.error for f in files} <= {None, "too_large"}
    assert sum(len(f.data) for f in files) <= 16 * MIB
    assert all(f.data == b"x" * len(f.data) for f in files)


def test_a_file_that_is_emptied_again_and_again_is_read_as_it_was_at_some_time(
    warden: LiveWarden,
) -> None:
    source = """
out = os.open('out', os.O_CREAT | os.O_WRONLY, 0o600)
open('swapping', 'w').close()
while not os.path.exists('stop'):
    for _ in range(50):
        os.pwrite(out, b'y' * 20000, 0)
        os.ftruncate(out, 0)
tell(ended='stop')
"""
    swapper, collected = _race(warden, attack(source), shell(WAIT, collect=("out",) * 300))
    assert told(swapper) == {"ended": "stop"}
    assert all(f.error is None and not f.data.strip(b"y\0") for f in collected.files)
    assert max(len(f.data) for f in collected.files) <= 20000


def test_a_workspace_that_is_renamed_about_keeps_its_files_apart(warden: LiveWarden) -> None:
    """Folders that change places while they are walked: never another path's file."""
    source = """
for name in ('a', 'b'):
    os.makedirs(name + '/x/y'); open(name + '/x/y/f', 'w').write(name)
open('swapping', 'w').close()
while not os.path.exists('stop'):
    for _ in range(50):
        syscall(316, -100, b'a/x', -100, b'b/x', 2)
        os.rename('a/x/y', 'y'); os.rename('y', 'a/x/y')
tell(ended='stop')
"""
    swapper, collected = _race(warden, attack(source), shell(WAIT, collect=("a/x/y/f",) * 300))
    assert told(swapper) == {"ended": "stop"}
    found = set(_read(collected.files))
    allowed = {(b"a", None), (b"b", None), (b"", "missing"), (b"", "not_a_regular_file")}
    assert found <= allowed | {(b"", "unreadable")}


def test_a_file_under_a_lease_or_a_lock_is_collected_all_the_same(warden: LiveWarden) -> None:
    """A write lease would make the collector wait, or fail, at its holder's will."""
    source = """
import fcntl
out = os.open('out', os.O_CREAT | os.O_RDWR, 0o600)
os.write(out, b'mine')
tell(lease=attempt(fcntl.fcntl, out, 1024, fcntl.F_WRLCK),
     read=attempt(fcntl.fcntl, os.open('out', os.O_RDONLY), 1024, fcntl.F_RDLCK))
fcntl.flock(out, fcntl.LOCK_EX); fcntl.lockf(out, fcntl.LOCK_EX)
open('swapping', 'w').close()
while not os.path.exists('stop'):
    time.sleep(0.01)
"""
    holder, collected = _race(warden, attack(source), shell(WAIT, collect=("out",) * 3))
    assert set(told(holder).values()) <= {"EPERM", "EACCES", "EINVAL"}
    assert _read(collected.files) == [(b"mine", None)] * 3


def test_a_sibling_cannot_keep_the_collector_from_its_work(warden: LiveWarden) -> None:
    """They have one user: it must neither be seen nor hit by signals or limits."""
    source = """
open('swapping', 'w').close()
seen, hit = set(), set()
while not os.path.exists('stop'):
    seen |= {n for n in os.listdir('/proc') if n.isdigit()}
    for pid in range(2, 400):
        if pid != os.getpid():
            hit.add(attempt(os.kill, pid, signal.SIGKILL))
tell(seen=sorted(seen - {str(os.getpid())}), hit=sorted(hit))
"""
    killer, collected = _race(
        warden, attack(source), shell(WAIT + "; echo x > out", collect=("out",) * 200)
    )
    assert told(killer) == {"seen": [], "hit": ["ESRCH"]}
    assert _read(collected.files) == [(b"x\n", None)] * 200


def test_an_input_that_replaces_a_running_siblings_file_does_not_change_what_runs(
    warden: LiveWarden,
) -> None:
    """The old file goes on under whoever has it open or mapped; nothing is written into it."""
    (first,), (second,) = warden.run(
        attack("open('f', 'w').write('first'); tell(inode=os.stat('f').st_ino)"),
        attack(
            """
import subprocess
held = os.open('f', os.O_RDONLY)
tell(inode=os.fstat(held).st_ino, text=os.read(held, 99).decode(), links=os.fstat(held).st_nlink)
""",
            files={"f": b"second"},
        ),
    )
    assert told(first)["inode"] != told(second)["inode"]
    assert told(second)["text"] == "second"
    assert told(second)["links"] == 1


# --- what the host sees of it -------------------------------------------------------------


def test_a_workspace_is_its_requests_alone(warden: LiveWarden) -> None:
    """Two requests at a time: other inodes, other owners, and neither sees the other's files."""
    source = """
open(sys.argv[1], 'w').close()
os.mkfifo('go'); open('ready', 'w').close()
open('go').read()
tell(names=sorted(os.listdir('/box')), tmp=os.listdir('/tmp'), shm=os.listdir('/dev/shm'))
"""
    watched = [warden.submit(job(attack(source, name))) for name in ("one", "two")]
    eventually(lambda: len(_boxes()) == 2, "both have begun")
    boxes = _boxes()
    owners = {box.stat().st_uid for box in boxes}
    devices = {box.stat().st_dev for box in boxes}
    for box in boxes:
        (box / "go").write_text("go")
    names = [told(each.wait().results[0, 0]) for each in watched]
    assert len(owners) == len(devices) == 2
    low, high = warden.settings.uid_range
    assert all(low <= owner <= high for owner in owners)
    for name, seen in zip(("one", "two"), names, strict=True):
        expected = sorted(["go", name, "probe.py", "ready"])
        assert seen == {"names": expected, "tmp": [], "shm": []}


def _boxes() -> list[Path]:
    """/box of each task that has said that it is ready."""
    pids = process_tree(os.getpid()).get("task", [])
    boxes = [Path(f"/proc/{pid}/root/box") for pid in pids]
    return [box for box in boxes if (box / "ready").exists()]


def test_the_workspace_of_the_next_request_is_empty(warden: LiveWarden) -> None:
    """Also where the last one had closed it, filled it and left processes in it."""
    see(
        warden,
        """
for name in ('/box/left', '/tmp/left', '/dev/shm/left'):
    open(name, 'w').write('secret')
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
os.chmod('/box', 0)
""",
    )
    seen = see(
        warden,
        """
for path in ('/box', '/tmp', '/dev/shm', '/run', '/var'):
    tell(**{path[1:]: sorted(os.listdir(path))})
""",
    )
    assert seen == {
        "box": ["probe.py"],
        "tmp": [],
        "dev/shm": [],
        "run": [],
        "var": ["run", "tmp"],
    }
