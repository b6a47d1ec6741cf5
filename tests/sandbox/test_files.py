"""Files in and out: laid out and collected without ever following what a task planted."""

from __future__ import annotations

import pytest

from tests.hosting import MIB, LiveWarden, python, shell, task


def test_an_input_replaces_a_file_and_never_writes_through_it(warden: LiveWarden) -> None:
    _, (after,) = warden.run(
        shell("echo old > a; ln a b; chmod 400 a"),
        shell("cat a b; stat -c %a a", files={"a": b"new\n"}),
    )
    assert after.stdout == b"new\nold\n755\n"


@pytest.mark.parametrize(
    ("plant", "path"),
    [
        ("ln -s /etc/hostname x", "x"),
        ("ln -s nowhere x", "x"),
        ("mkdir real; ln -s real x", "x/file"),
        ("ln -s / x", "x/box/file"),
        ("ln -s /proc/self/cwd x", "x/file"),
        ("mkdir x", "x"),
        ("mkfifo x", "x"),
        ("echo > x", "x/file"),
        ("mkdir x; chmod 0 x", "x/file"),
    ],
)
def test_an_input_whose_way_was_blocked_fails_its_task_alone(
    warden: LiveWarden, plant: str, path: str
) -> None:
    _, (blocked,), (after,) = warden.run(
        shell(plant), shell("echo never", files={path: b"data"}), shell("echo goes on")
    )
    assert (blocked.outcome, blocked.reason) == ("setup_failed", "bad_path")
    assert (blocked.exit_code, blocked.signal, blocked.stdout) == (None, None, b"")
    assert after.stdout == b"goes on\n"


def test_a_full_workspace_fails_the_input_and_not_the_request(warden: LiveWarden) -> None:
    (_,), (full,), _, (fits,) = warden.run(
        shell("cat /dev/zero > fill"),
        shell("cat late", files={"late": b"x" * 5000}),
        shell("rm fill"),
        shell("wc -c < late", files={"late": b"x" * 5000}),
        workspace_bytes=MIB,
    )
    assert (full.outcome, full.reason) == ("setup_failed", "workspace_full")
    assert fits.stdout == b"5000\n"


def test_a_working_folder_that_is_none_fails_the_task(warden: LiveWarden) -> None:
    results = warden.run(
        shell("mkdir real; ln -s real link; echo > file"),
        *(shell("pwd", working_dir=where) for where in ("missing", "file", "link", "real")),
    )
    assert [(r.outcome, r.reason) for (r,) in results[1:4]] == [("setup_failed", "working_dir")] * 3
    assert results[4][0].stdout == b"/box/real\n"


def test_what_is_collected_is_what_was_written_and_nothing_is_followed(warden: LiveWarden) -> None:
    plant = """
import os, socket
open('plain', 'wb').write(bytes(range(256)))
os.mkdir('folder'); open('folder/inner', 'w').write('deep')
os.symlink('/etc/hostname', 'link'); os.symlink('plain', 'near'); os.symlink('folder', 'way')
os.mkfifo('fifo'); socket.socket(socket.AF_UNIX).bind('socket')
open('closed', 'w').write('x'); os.chmod('closed', 0)
open('sparse', 'w').truncate(100 << 20)
"""
    names = "plain folder/inner link near way/inner fifo socket closed sparse folder missing"
    result = warden.run_one(python(plant, collect=tuple(names.split())), workspace_bytes=64 * MIB)
    assert result.outcome == "completed", result
    assert {file.path: file.error for file in result.files} == {
        "plain": None,
        "folder/inner": None,
        "link": "not_a_regular_file",
        "near": "not_a_regular_file",
        "way/inner": "not_a_regular_file",
        "fifo": "not_a_regular_file",
        "socket": "not_a_regular_file",
        "closed": "unreadable",
        "sparse": "too_large",
        "folder": "not_a_regular_file",
        "missing": "missing",
    }
    data = {file.path: file.data for file in result.files}
    assert data["plain"] == bytes(range(256))
    assert data["folder/inner"] == b"deep"


def test_collected_files_count_against_the_requests_output(warden: LiveWarden) -> None:
    results = warden.run(
        shell("head -c 600 /dev/zero > a; head -c 600 /dev/zero > b", collect=("a", "b")),
        shell("true", collect=("b",)),
        output_bytes=1000,
    )
    assert [(f.path, f.error, len(f.data)) for f in results[0][0].files] == [
        ("a", None, 600),
        ("b", "too_large", 0),
    ]
    assert results[1][0].files[0].error == "too_large"


def test_a_file_of_any_name_can_be_written_and_collected(warden: LiveWarden) -> None:
    names = ("-rf", "sp ace/ü$(id).txt", "new\nline", "é" * 100)
    result = warden.run_one(
        task("/bin/true", files={name: name.encode() for name in names}, collect=names)
    )
    assert [(f.path, f.data) for f in result.files] == [(n, n.encode()) for n in names]


def test_a_sibling_that_swaps_a_file_for_a_link_gains_nothing(warden: LiveWarden) -> None:
    swap = """
import os, time
end = time.monotonic() + 1.0
while time.monotonic() < end:
    for make in (lambda: os.symlink('/etc/passwd', 'new'), lambda: open('new', 'w').write('mine')):
        make()
        os.rename('new', 'out')
"""
    ((_, collected),) = warden.run([python(swap), shell("sleep 0.5", collect=("out",) * 1)])
    (file,) = collected.files
    assert file.data in (b"mine", b"")
    assert b"box:" not in file.data
