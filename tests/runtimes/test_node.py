"""Node: workers, children, files, cryptography and the network that a task has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gaoler.sandbox.job import Task
from tests.hosting import MIB, LiveWarden
from tests.runtimes.programs import ended, need, program, run, said


@pytest.fixture(autouse=True)
def _node() -> None:
    need("node")


def node(source: str, *flags: str, name: str = "main.js", **limits: Any) -> Task:
    # Debian's own says that fetch is an experiment.
    command = ("node", "--no-warnings", *flags, name)
    return program(*command, files={name: source.encode()}, **limits)


def lines(live: LiveWarden, source: str, *flags: str, name: str = "main.js") -> list[str]:
    (result,) = run(live, node(source, *flags, name=name))
    return said(result).splitlines()


def test_workers_share_memory_and_send_messages(warden: LiveWarden) -> None:
    source = """
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
if (isMainThread) {
  const shared = new Int32Array(new SharedArrayBuffer(8));
  let left = 4;
  for (let number = 1; number <= 4; number++) {
    const worker = new Worker(__filename, { workerData: { shared, number } });
    worker.on('message', (square) => Atomics.add(shared, 1, square));
    worker.on('exit', () => { if (--left === 0) console.log(shared[0], shared[1]); });
  }
} else {
  for (let i = 0; i < 100; i++) Atomics.add(workerData.shared, 0, workerData.number);
  parentPort.postMessage(workerData.number ** 2);
}
"""
    assert lines(warden, source) == ["1000 30"]


def test_children_are_spawned_forked_and_killed(warden: LiveWarden) -> None:
    source = """
const { execSync, execFile, fork, spawn, spawnSync } = require('child_process');
if (process.argv[2] === 'child') {
  process.on('message', (text) => { process.send(text.toUpperCase()); process.disconnect(); });
} else {
  console.log(execSync('printf a | tr a b').toString(), spawnSync('sh', ['-c', 'exit 3']).status);
  const child = fork(__filename, ['child']);
  child.send('word');
  child.on('message', (text) => {
    console.log(text);
    const sleeper = spawn('sleep', ['60']);
    sleeper.on('exit', (code, signal) => {
      console.log(code, signal);
      execFile('no-such-program', (error) => console.log(error.code));
    });
    sleeper.kill();
  });
}
"""
    assert lines(warden, source) == ["b 3", "WORD", "null SIGTERM", "ENOENT"]


def test_an_http_server_is_asked_by_fetch_over_the_loopback(warden: LiveWarden) -> None:
    source = """
const server = require('http').createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const sum = JSON.parse(Buffer.concat(chunks)).reduce((a, b) => a + b, 0);
  response.writeHead(201, { 'Content-Type': 'application/json' });
  response.end(JSON.stringify({ sum }));
});
server.listen(0, '127.0.0.1', async () => {
  const url = `http://127.0.0.1:${server.address().port}/`;
  const ask = (n) => fetch(url, { method: 'POST', body: JSON.stringify([n, 1, 2]) });
  const asked = [1, 2, 3].map(ask);
  for (const answer of await Promise.all(asked)) {
    console.log(answer.status, (await answer.json()).sum);
  }
  server.close();
  server.closeAllConnections();
});
"""
    assert lines(warden, source) == ["201 4", "201 5", "201 6"]


def test_a_unix_socket_and_names_of_hosts(warden: LiveWarden) -> None:
    source = """
const net = require('net');
const server = net.createServer((socket) => socket.pipe(socket));
server.listen('/tmp/socket', () => {
  const client = net.connect('/tmp/socket', () => client.end('echoed'));
  client.on('data', (data) => console.log(data.toString()));
  client.on('close', () => {
    server.close();
    require('dns').lookup('localhost', { family: 4 }, (error, address) => console.log(address));
  });
});
"""
    assert lines(warden, source) == ["echoed", "127.0.0.1"]


def test_files_are_written_read_watched_and_removed(warden: LiveWarden) -> None:
    source = """
const fs = require('fs'), os = require('os'), path = require('path');
(async () => {
  const folder = await fs.promises.mkdtemp(path.join(os.tmpdir(), 'own-'));
  const file = path.join(folder, 'a', 'file');
  await fs.promises.mkdir(path.dirname(file), { recursive: true });
  const seen = new Promise((resolve) => {
    const watcher = fs.watch(path.dirname(file), (event, name) => {
      watcher.close();
      resolve(name);
    });
  });
  fs.writeFileSync(file, 'x'.repeat(1000));
  console.log(await seen, fs.statSync(file).size);
  fs.createReadStream(file).pipe(fs.createWriteStream(`${file}2`)).on('finish', async () => {
    console.log((await fs.promises.readFile(`${file}2`, 'utf8')).length);
    await fs.promises.rm(folder, { recursive: true });
    console.log(fs.existsSync(folder));
  });
})();
"""
    assert lines(warden, source) == ["file 1000", "1000", "false"]


def test_cryptography_and_compression_use_the_thread_pool(warden: LiveWarden) -> None:
    source = """
const crypto = require('crypto'), zlib = require('zlib'), { promisify } = require('util');
(async () => {
  const keys = await Promise.all([1, 2, 3, 4, 5, 6].map(
    (n) => promisify(crypto.pbkdf2)('word', `salt${n}`, 100, 16, 'sha256')));
  console.log(new Set(keys.map(String)).size, crypto.randomUUID().length);
  console.log(crypto.createHash('sha256').update('').digest('hex').slice(0, 8));
  const { publicKey, privateKey } = crypto.generateKeyPairSync('ed25519');
  const signature = crypto.sign(null, Buffer.from('text'), privateKey);
  console.log(crypto.verify(null, Buffer.from('text'), publicKey, signature));
  const packed = await promisify(zlib.gzip)('x'.repeat(10_000));
  console.log(packed.length < 1000, (await promisify(zlib.gunzip)(packed)).length);
})();
"""
    assert lines(warden, source) == ["6 36", "e3b0c442", "true", "true 10000"]


def test_what_is_asynchronous_comes_in_its_order(warden: LiveWarden) -> None:
    source = """
import { setTimeout as later } from 'timers/promises';
setImmediate(() => console.log('immediate'));
process.nextTick(() => console.log('tick'));
Promise.resolve().then(() => console.log('promise'));
console.log('now');
await later(10);
console.log((await Promise.allSettled([later(1, 'a'), Promise.reject('b')])).map((s) => s.status));
const bytes = Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0);
console.log((await WebAssembly.instantiate(bytes)).module instanceof WebAssembly.Module);
"""
    seen = lines(warden, source, name="main.mjs")
    assert sorted(seen[:4]) == ["immediate", "now", "promise", "tick"]
    assert seen[4:] == ["[ 'fulfilled', 'rejected' ]", "true"]


def test_a_large_json_comes_in_and_goes_out(warden: LiveWarden) -> None:
    source = """
const chunks = [];
process.stdin.on('data', (chunk) => chunks.push(chunk));
process.stdin.on('end', () => {
  const given = JSON.parse(Buffer.concat(chunks));
  console.log(JSON.stringify(given.map(({ number, text }) => ({ number: number + 1, text }))));
});
"""
    given = [{"number": n, "text": "wört" * 20} for n in range(20_000)]
    data = json.dumps(given, ensure_ascii=False).encode()
    (result,) = run(warden, node(source, stdin=data, output_bytes=8 * MIB))
    answer = json.loads(said(result))
    assert (len(answer), answer[-1]["number"]) == (20_000, 20_000)


def test_the_flag_for_the_heap_counts_and_without_it_node_knows_nothing_of_the_limit(
    warden: LiveWarden,
) -> None:
    source = "console.log(require('v8').getHeapStatistics().heap_size_limit / 2 ** 20)"
    flagged, _ = run(warden, node(source, "--max-old-space-size=100"), node(source))
    assert 100 <= float(said(flagged)) < 250


def test_every_way_to_leave_shows_in_the_result(warden: LiveWarden) -> None:
    ways = {
        "process.exit(7)": ("completed", None, 7, None),
        "process.exitCode = 3": ("completed", None, 3, None),
        "throw new Error('own')": ("completed", None, 1, None),
        "Promise.reject(new Error('own'))": ("completed", None, 1, None),
        "let x = ;": ("completed", None, 1, None),
        "process.abort()": ("signaled", None, None, 6),
        "process.kill(process.pid, 'SIGTERM'); setInterval(() => {}, 1000)": (
            *("signaled", None, None, 15),
        ),
    }
    results = run(warden, *(node(source) for source in ways))
    assert [ended(result) for result in results] == list(ways.values())
    assert [b"own" in results[3].stderr, b"SyntaxError" in results[4].stderr] == [True, True]
