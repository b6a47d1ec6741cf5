"""Rust: the compiler, its messages, and programs with threads and a network of their own."""

from __future__ import annotations

from gaoler.sandbox.job import Task
from tests.hosting import MIB, LiveWarden
from tests.runtimes.programs import built, ended, need, program, run


def compile_rust(source: str) -> Task:
    command = ("rustc", "--crate-name", "main", "-o", "program", "main.rs")
    return program(*command, files={"main.rs": source.encode()})


def test_threads_channels_files_processes_and_sockets_of_rust(warden: LiveWarden) -> None:
    need("rustc")
    source = """
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::{env, fs, process, sync::mpsc, thread};
fn main() {
    let (sender, receiver) = mpsc::channel();
    for n in 0..8u64 {
        let sender = sender.clone();
        thread::spawn(move || sender.send(n * n).unwrap());
    }
    drop(sender);
    let path = env::temp_dir().join("kept");
    fs::write(&path, "kept").unwrap();
    let shown = process::Command::new("cat").arg(&path).output().unwrap();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let echo = thread::spawn(move || {
        let (mut peer, _) = server.accept().unwrap();
        let mut text = String::new();
        peer.read_to_string(&mut text).unwrap();
        text.to_uppercase()
    });
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"echo").unwrap();
    client.shutdown(Shutdown::Both).unwrap();
    let kept = String::from_utf8(shown.stdout).unwrap();
    println!("{} {} {}", receiver.iter().sum::<u64>(), kept, echo.join().unwrap());
    process::exit(7);
}
"""
    (result,) = built(warden, compile_rust(source), program("./program"))
    assert ended(result) == ("completed", None, 7, None)
    assert (result.stdout, result.stderr) == (b"140 kept ECHO\n", b"")


def test_an_error_of_rust_has_the_compilers_number_and_place(warden: LiveWarden) -> None:
    need("rustc")
    (result,) = run(warden, compile_rust('fn main() { let x: i32 = "text"; }\n'))
    assert ended(result) == ("completed", None, 1, None)
    assert b"error[E0308]" in result.stderr
    assert b"main.rs:1:26" in result.stderr


def test_a_panic_of_rust_and_an_overflow_of_its_stack_are_told_apart(warden: LiveWarden) -> None:
    need("rustc")
    source = """
fn deeper(n: u64) -> u64 { let a = [n; 100]; if n == 0 { 0 } else { deeper(n + 1) + a[3] } }
fn main() {
    if std::env::args().count() > 1 { println!("{}", deeper(1)); }
    panic!("own");
}
"""
    panicked, overflowed = built(
        warden,
        compile_rust(source),
        program("./program"),
        program("./program", "deep", stack_bytes=MIB),
    )
    assert ended(panicked) == ("completed", None, 101, None)
    assert b"panicked at" in panicked.stderr
    assert ended(overflowed) == ("signaled", None, None, 6)
    assert b"has overflowed its stack" in overflowed.stderr


def test_rust_that_wants_more_memory_than_its_limit_is_the_kernels_kill(
    warden: LiveWarden,
) -> None:
    need("rustc")
    source = 'fn main() { let v = vec![1u8; 512 << 20]; println!("{}", v[v.len() / 2]); }\n'
    (result,) = built(warden, compile_rust(source), program("./program", memory_bytes=64 * MIB))
    assert ended(result) == ("memory_limit", None, None, None)
