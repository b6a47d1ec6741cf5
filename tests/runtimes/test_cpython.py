"""CPython with what programs of the real world use of its standard library."""

from __future__ import annotations

import pytest

from tests.hosting import MIB, LiveWarden
from tests.runtimes.programs import ended, program, run, said, script


def lines(live: LiveWarden, source: str, *args: str) -> list[str]:
    """What a program prints that must end well."""
    (result,) = run(live, script(source, *args))
    return said(result).splitlines()


def test_threads_with_locks_queues_and_barriers(warden: LiveWarden) -> None:
    source = """
import queue, threading
lock, barrier, done = threading.Lock(), threading.Barrier(16), queue.Queue()
total = 0
def add(number):
    global total
    barrier.wait()
    for _ in range(100):
        with lock:
            total += number
    done.put(number)
threads = [threading.Thread(target=add, args=(n,)) for n in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(total, sorted(done.get_nowait() for _ in threads) == list(range(16)))
"""
    assert lines(warden, source) == ["12000 True"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_with_pools_queues_and_locks(warden: LiveWarden, method: str) -> None:
    source = """
import multiprocessing, sys
def square(number):
    return number * number
def add(lock, total, results):
    for _ in range(50):
        with lock:
            total.value += 1
    results.put(multiprocessing.current_process().name)
if __name__ == '__main__':
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(3) as pool:
        print(pool.map(square, range(6)), pool.apply_async(square, (9,)).get())
    lock, total, results = context.Lock(), context.Value('i', 0, lock=False), context.Queue()
    workers = [context.Process(target=add, args=(lock, total, results), name=n) for n in 'ab']
    for worker in workers: worker.start()
    print(sorted(results.get() for _ in workers))
    for worker in workers: worker.join()
    print(total.value, [worker.exitcode for worker in workers])
"""
    assert lines(warden, source, method) == [
        "[0, 1, 4, 9, 16, 25] 81",
        "['a', 'b']",
        "100 [0, 0]",
    ]


def test_multiprocessing_with_shared_memory_and_a_server_of_shared_objects(
    warden: LiveWarden,
) -> None:
    source = """
import multiprocessing
from multiprocessing import shared_memory
def fill(name, lock, table, number):
    block = shared_memory.SharedMemory(name)
    with lock:
        block.buf[0] += number
        table[number] = number * number
    block.close()
if __name__ == '__main__':
    block = shared_memory.SharedMemory(create=True, size=1 << 20)
    with multiprocessing.Manager() as server:
        table, lock = server.dict(), multiprocessing.Lock()
        workers = [
            multiprocessing.Process(target=fill, args=(block.name, lock, table, n))
            for n in (1, 2, 3)
        ]
        for worker in workers: worker.start()
        for worker in workers: worker.join()
        print(block.buf[0], sorted(table.items()))
    block.close()
    block.unlink()
"""
    assert lines(warden, source) == ["6 [(1, 1), (2, 4), (3, 9)]"]


def test_subprocesses_with_pipes_time_limits_and_signals(warden: LiveWarden) -> None:
    source = """
import os, signal, subprocess, sys
first = subprocess.Popen(['printf', 'b\\\\na\\\\n'], stdout=subprocess.PIPE)
second = subprocess.run(['sort'], stdin=first.stdout, capture_output=True, text=True)
print(first.wait(), second.stdout.split())
try:
    subprocess.run(['sleep', '60'], timeout=0.05)
except subprocess.TimeoutExpired:
    print('expired')
ended = subprocess.Popen(['sleep', '60'], start_new_session=True)
os.killpg(ended.pid, signal.SIGTERM)
print(ended.wait())
shown = subprocess.check_output('pwd; echo $NAME', shell=True, cwd='/tmp', env={'NAME': 'own'})
print(shown.split(), subprocess.getstatusoutput('exit 3'))
try:
    subprocess.check_call(['no-such-program'])
except FileNotFoundError as error:
    print(error.filename)
print(subprocess.run([sys.executable, '-c', 'print(input())'], input=b'in', capture_output=True))
"""
    assert lines(warden, source) == [
        "0 ['a', 'b']",
        "expired",
        "-15",
        "[b'/tmp', b'own'] (3, '')",
        "no-such-program",
        "CompletedProcess(args=['/usr/bin/python3', '-c', 'print(input())'], returncode=0, "
        "stdout=b'in\\n', stderr=b'')",
    ]


def test_asyncio_runs_subprocesses_and_talks_over_tcp_and_unix_sockets(warden: LiveWarden) -> None:
    source = r"""
import asyncio
async def echo(reader, writer):
    while line := await reader.readline():
        writer.write(line.upper())
        await writer.drain()
    writer.close()
async def ask(reader, writer, text):
    writer.write(text + b'\n')
    answer = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return answer
async def main():
    tcp = await asyncio.start_server(echo, '127.0.0.1', 0)
    port = tcp.sockets[0].getsockname()[1]
    async def over_tcp(text):
        return await ask(*await asyncio.open_connection('localhost', port), text)
    print(await asyncio.gather(*(over_tcp(b'n%d' % n) for n in range(5))))
    for path in ('/tmp/socket', '\0abstract'):
        unix = await asyncio.start_unix_server(echo, path)
        print(await ask(*await asyncio.open_unix_connection(path), b'unix'))
        unix.close()
    tcp.close()
    child = await asyncio.create_subprocess_exec('cat', stdin=-1, stdout=-1)
    print(await child.communicate(b'x' * 200_000) == (b'x' * 200_000, None), child.returncode)
    slow = await asyncio.create_subprocess_shell('sleep 60')
    try:
        async with asyncio.timeout(0.05):
            await slow.wait()
    except TimeoutError:
        slow.kill()
        print(await slow.wait())
    loop = asyncio.get_running_loop()
    print(await loop.run_in_executor(None, sum, range(10)), await asyncio.to_thread(max, 3, 4))
asyncio.run(main())
"""
    assert lines(warden, source) == [
        "[b'N0\\n', b'N1\\n', b'N2\\n', b'N3\\n', b'N4\\n']",
        "b'UNIX\\n'",
        "b'UNIX\\n'",
        "True 0",
        "-9",
        "45 4",
    ]


def test_an_http_server_in_a_thread_is_asked_over_the_loopback(warden: LiveWarden) -> None:
    source = """
import http.server, json, threading, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({'sum': sum(body)}).encode())
    def log_message(self, *words): pass
with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler) as server:
    threading.Thread(target=server.serve_forever).start()
    url = f'http://localhost:{server.server_port}/'
    with urllib.request.urlopen(url, json.dumps(list(range(10_000))).encode()) as answer:
        print(answer.status, json.load(answer))
    server.shutdown()
"""
    assert lines(warden, source) == ["200 {'sum': 49995000}"]


def test_executors_of_threads_and_processes(warden: LiveWarden) -> None:
    source = """
import concurrent.futures
def fail(number):
    raise ValueError(number)
if __name__ == '__main__':
    for kind in (
        concurrent.futures.ThreadPoolExecutor, concurrent.futures.ProcessPoolExecutor
    ):
        with kind(3) as pool:
            asked = [pool.submit(pow, n, 2) for n in range(5)]
            print(sorted(f.result() for f in concurrent.futures.as_completed(asked)))
            print(repr(pool.submit(fail, 7).exception()))
"""
    assert lines(warden, source) == ["[0, 1, 4, 9, 16]", "ValueError(7)"] * 2


def test_sqlite_in_a_file_with_threads_and_a_write_ahead_log(warden: LiveWarden) -> None:
    source = """
import sqlite3, threading
def connect():
    return sqlite3.connect('data.db', timeout=60)
base = connect()
print(base.execute('pragma journal_mode=wal').fetchone())
base.execute('create table numbers (thread, number, primary key (thread, number))')
def add(thread):
    own = connect()
    for number in range(20):
        with own:
            own.execute('insert into numbers values (?, ?)', (thread, number))
    own.close()
threads = [threading.Thread(target=add, args=(n,)) for n in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
try:
    with base:
        base.execute('insert into numbers values (9, 9)')
        base.execute('insert into numbers values (0, 0)')
except sqlite3.IntegrityError:
    print('rolled back')
print(base.execute('select count(*), sum(number) from numbers').fetchone())
print(base.execute('pragma integrity_check').fetchone())
"""
    assert lines(warden, source) == ["('wal',)", "rolled back", "(80, 760)", "('ok',)"]


def test_temporary_files_and_folders_lie_in_tmp(warden: LiveWarden) -> None:
    source = """
import os, shutil, tempfile
with tempfile.NamedTemporaryFile() as named, tempfile.TemporaryFile() as bare:
    bare.write(b'x' * 1_000_000)
    bare.seek(0)
    print(os.path.dirname(named.name), os.path.exists(named.name), len(bare.read()))
with tempfile.TemporaryDirectory() as folder:
    os.makedirs(f'{folder}/a/b')
    open(f'{folder}/a/b/c', 'w').write('kept')
    shutil.copytree(f'{folder}/a', '/box/copy')
print(os.path.exists(folder), open('/box/copy/b/c').read(), os.listdir('/tmp'))
"""
    assert lines(warden, source) == ["/tmp True 1000000", "False kept []"]


def test_signals_timers_and_their_waiting(warden: LiveWarden) -> None:
    source = """
import os, signal, threading
heard = []
for number in (signal.SIGALRM, signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda number, frame: heard.append(signal.Signals(number).name))
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
os.kill(os.getpid(), signal.SIGUSR1)
signal.raise_signal(signal.SIGTERM)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
sender = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGUSR2))
sender.start()
print(heard, signal.sigwait([signal.SIGUSR2]).name)
sender.join()
try:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print('interrupted')
"""
    assert lines(warden, source) == ["['SIGALRM', 'SIGUSR1', 'SIGTERM'] SIGUSR2", "interrupted"]


def test_the_fault_handler_says_where_a_program_crashed(warden: LiveWarden) -> None:
    source = """
import ctypes, faulthandler
faulthandler.enable()
def crash():
    ctypes.string_at(0)
crash()
"""
    (result,) = run(warden, script(source))
    assert ended(result) == ("signaled", None, None, 11)
    assert b"Fatal Python error: Segmentation fault" in result.stderr
    assert b'File "/box/probe.py", line 5 in crash' in result.stderr


def test_c_libraries_are_called_by_ctypes_and_call_back(warden: LiveWarden) -> None:
    source = """
import ctypes
libc, libm = ctypes.CDLL('libc.so.6', use_errno=True), ctypes.CDLL('libm.so.6')
libm.sqrt.restype, libm.sqrt.argtypes = ctypes.c_double, [ctypes.c_double]
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
numbers = (ctypes.c_int * 5)(5, 1, 4, 2, 3)
libc.qsort(numbers, 5, 4, kind(lambda a, b: a[0] - b[0]))
print(libm.sqrt(2.25), list(numbers), libc.open(b'absent', 0), ctypes.get_errno())
"""
    assert lines(warden, source) == ["1.5 [1, 2, 3, 4, 5] -1 2"]


def test_a_virtual_environment_and_an_archive_of_modules_are_made_and_run(
    warden: LiveWarden,
) -> None:
    made, inside, zipped, archive = run(
        warden,
        program("/usr/bin/python3", "-m", "venv", "--without-pip", "own"),
        program("own/bin/python", "-c", "import sys; print(sys.prefix, sys.prefix != '/usr')"),
        program(
            *("/usr/bin/python3", "-m", "zipapp", "source", "-o", "app.pyz"),
            files={
                "source/__main__.py": b"import part; print(part.NAME)\n",
                "source/part.py": b"NAME = __file__\n",
            },
        ),
        program("/usr/bin/python3", "app.pyz"),
    )
    assert [said(made), said(zipped)] == ["", ""]
    assert said(inside) == "/box/own True\n"
    assert said(archive) == "/box/app.pyz/part.py\n"


def test_every_way_to_leave_shows_in_the_result(warden: LiveWarden) -> None:
    ways = {
        "import sys; sys.exit(7)": ("completed", None, 7, None),
        "import sys; sys.exit('said')": ("completed", None, 1, None),
        "1 / 0": ("completed", None, 1, None),
        "def f(": ("completed", None, 1, None),
        "import os; os._exit(300 & 255)": ("completed", None, 44, None),
        "import os; os.abort()": ("signaled", None, None, 6),
        "import os; os.kill(os.getpid(), 15)": ("signaled", None, None, 15),
        "import threading; threading.Thread(target=int, args=('x',)).start()": (
            *("completed", None, 0, None),
        ),
    }
    results = run(warden, *(script(source) for source in ways))
    assert [ended(result) for result in results] == list(ways.values())
    assert [b"ZeroDivisionError" in results[2].stderr, b"SyntaxError" in results[3].stderr] == [
        True,
        True,
    ]


def test_text_is_utf8_in_stdin_arguments_names_of_files_and_output(warden: LiveWarden) -> None:
    source = """
import locale, sys
word = input()
open(sys.argv[1], 'w').write(word)
print(word, sys.argv[1], open('schön').read(), len(word), locale.getpreferredencoding())
"""
    (result,) = run(warden, script(source, "schön", stdin="grün €\n".encode()))
    assert said(result) == "grün € schön grün € 6 UTF-8\n"


def test_the_standard_library_can_be_imported_and_knows_time_users_and_hosts(
    warden: LiveWarden,
) -> None:
    source = """
import bz2, csv, curses, decimal, fractions, gzip, hashlib, inspect, lzma, mmap, pickle, platform
import pty, readline, resource, secrets, select, selectors, socketserver, ssl, statistics, uuid
import xml.etree.ElementTree, zipfile, zlib, zoneinfo
import datetime, getpass, os, pathlib, pwd, socket
print(getpass.getuser(), pathlib.Path.home(), pwd.getpwuid(os.getuid()).pw_name)
print(socket.gethostbyname(socket.gethostname()), os.cpu_count() >= 1)
print(lzma.decompress(lzma.compress(b'x' * 9)), hashlib.sha256(b'').hexdigest()[:8])
print(datetime.datetime.now().year > 2000, decimal.Decimal(1) / 3, len(secrets.token_hex()))
print(ssl.create_default_context().verify_mode.name)
"""
    assert lines(warden, source) == [
        "box /box box",
        "127.0.0.1 True",
        "b'xxxxxxxxx' e3b0c442",
        "True 0.3333333333333333333333333333 64",
        "CERT_REQUIRED",
    ]


def test_newer_calls_of_the_kernel_work_or_say_that_they_do_not(warden: LiveWarden) -> None:
    source = """
import mmap, os, select, signal
memory = os.memfd_create('own')
os.write(memory, b'kept')
print(mmap.mmap(memory, 4)[:])
child = os.posix_spawn('/bin/sh', ['sh', '-c', 'exit 3'], os.environ)
watched = os.pidfd_open(child)
print(select.select([watched], [], [])[0] == [watched], os.waitstatus_to_exitcode(
    os.waitpid(child, 0)[1]))
poll = select.epoll()
event = os.eventfd(2)
poll.register(event)
print(bool(poll.poll()[0][1] & select.EPOLLIN), os.eventfd_read(event))
here, there = os.pipe()
open('kept', 'w').write('kept')
print(os.copy_file_range(os.open('kept', 0), os.open('copy', os.O_CREAT | os.O_WRONLY), 4),
      os.splice(os.open('copy', os.O_RDONLY), there, 4), os.read(here, 9))
os.sched_setaffinity(0, os.sched_getaffinity(0))
"""
    assert lines(warden, source) == ["b'kept'", "True 3", "True 2", "4 4 b'kept'"]


def test_a_child_that_resets_its_ids_to_those_that_it_has_is_started(warden: LiveWarden) -> None:
    """GNU make starts every recipe in this way."""
    source = """
import os
child = os.posix_spawn('/bin/echo', ['echo', 'started'], {}, resetids=True)
os.waitpid(child, 0)
os.seteuid(os.getuid())
"""
    assert lines(warden, source) == ["started"]


def test_ten_thousand_files_fit_and_are_walked(warden: LiveWarden) -> None:
    source = """
import os
for folder in range(50):
    os.mkdir(str(folder))
    for name in range(200):
        os.close(os.open(f'{folder}/{name}', os.O_CREAT))
print(sum(len(names) for _, _, names in os.walk('.')))
"""
    assert lines(warden, source) == ["10001"]


def test_a_program_with_a_large_input_and_output(warden: LiveWarden) -> None:
    source = "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data[::-1])"
    data = bytes(range(256)) * 8192
    (result,) = run(warden, script(source, stdin=data, output_bytes=4 * MIB))
    assert (result.outcome, result.stdout == data[::-1]) == ("completed", True)
