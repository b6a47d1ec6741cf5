"""Compiled programs under native_v1: threads and files, but no processes and no sockets."""

from __future__ import annotations

import pytest

from tests.hosting import LiveWarden
from tests.runtimes.programs import (
    built,
    compile_c,
    compile_cpp,
    need,
    program,
    run,
    said,
)

C = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static void *twice(void *given) { return (void *)(2 * (long)given); }
int main(void) {
    pthread_t thread;
    void *got;
    char text[16] = "", name[] = "/tmp/probeXXXXXX";
    struct timespec now;
    if (pthread_create(&thread, NULL, twice, (void *)21L)) return 1;
    pthread_join(thread, &got);
    int file = mkstemp(name);
    if (write(file, "kept", 4) != 4 || pread(file, text, 4, 0) != 4) return 2;
    if (clock_gettime(CLOCK_MONOTONIC, &now) || usleep(1000)) return 3;
    printf("%ld %s %s", (long)got, text, fgets(text, sizeof text, stdin));
}
"""

CPP = r"""
#include <fstream>
#include <future>
#include <iostream>
#include <map>
#include <string>
#include <thread>
#include <vector>
int main() {
    std::vector<std::future<long>> parts;
    for (long i = 0; i < 16; i++)
        parts.push_back(std::async(std::launch::async, [i] { return i * i; }));
    long sum = 0;
    for (auto &part : parts) sum += part.get();
    { std::ofstream("kept.txt") << "a=1 b=2"; }
    std::ifstream file("kept.txt");
    std::map<std::string, int> found;
    std::string word;
    while (file >> word) found[word.substr(0, 1)] += 1;
    try {
        throw sum;
    } catch (long caught) {
        std::cout << caught << ' ' << found.size() << std::endl;
    }
}
"""

RUST = r"""
use std::collections::HashMap;
use std::io::Read;
use std::sync::{mpsc, Arc, Mutex};
use std::{fs, thread};
fn main() {
    let shared = Arc::new(Mutex::new(HashMap::new()));
    let (sender, receiver) = mpsc::channel();
    let threads: Vec<_> = (0..8u64)
        .map(|n| {
            let (shared, sender) = (shared.clone(), sender.clone());
            thread::spawn(move || {
                shared.lock().unwrap().insert(n, n * n);
                sender.send(n).unwrap();
            })
        })
        .collect();
    for each in threads { each.join().unwrap(); }
    drop(sender);
    fs::write("kept.txt", "kept").unwrap();
    let mut given = String::new();
    std::io::stdin().read_to_string(&mut given).unwrap();
    let sum: u64 = shared.lock().unwrap().values().sum();
    let heard: u64 = receiver.iter().sum();
    println!("{} {} {} {}", sum, heard, fs::read_to_string("kept.txt").unwrap(), given);
}
"""


@pytest.mark.parametrize("linked", ["static", "dynamic"])
def test_a_c_program_with_threads_and_files_runs_under_native_v1(
    warden: LiveWarden, linked: str
) -> None:
    need("gcc")
    flags = ("-static",) if linked == "static" else ()
    (result,) = built(
        warden,
        compile_c(C, *flags),
        program("./program", profile="native_v1", stdin=b"line\nmore\n"),
    )
    # One buffer for both words: fgets has filled it before printf looks.
    assert said(result) == "42 line\n line\n"


@pytest.mark.parametrize("linked", ["static", "dynamic"])
def test_a_cpp_program_with_threads_and_streams_runs_under_native_v1(
    warden: LiveWarden, linked: str
) -> None:
    need("g++")
    flags = ("-static",) if linked == "static" else ()
    (result,) = built(warden, compile_cpp(CPP, *flags), program("./program", profile="native_v1"))
    assert said(result) == "1240 2\n"


@pytest.mark.parametrize("linked", ["static", "dynamic"])
def test_a_rust_program_with_threads_and_files_runs_under_native_v1(
    warden: LiveWarden, linked: str
) -> None:
    need("rustc")
    flags = ("-C", "target-feature=+crt-static") if linked == "static" else ()
    build = program(
        *("rustc", "--crate-name", "main", "-o", "program", *flags, "main.rs"),
        files={"main.rs": RUST.encode()},
    )
    (result,) = built(warden, build, program("./program", profile="native_v1", stdin=b"given"))
    assert said(result) == "140 28 kept given\n"


def test_a_go_program_with_goroutines_runs_under_native_v1(warden: LiveWarden) -> None:
    need("go")
    source = """
package main
import ("fmt"; "sync")
func main() {
	var group sync.WaitGroup
	var lock sync.Mutex
	sum := 0
	for n := 0; n < 100; n++ {
		group.Add(1)
		go func(n int) { defer group.Done(); lock.Lock(); sum += n; lock.Unlock() }(n)
	}
	group.Wait()
	fmt.Println(sum)
}
"""
    build = program("go", "build", "-o", "program", "main.go", files={"main.go": source.encode()})
    (result,) = built(warden, build, program("./program", profile="native_v1"))
    assert said(result) == "4950\n"


def test_what_native_v1_forbids_is_named_and_the_rest_of_the_request_goes_on(
    warden: LiveWarden,
) -> None:
    need("gcc")
    source = r"""
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int count, char **words) {
    (void)count;
    switch (words[1][0]) {
    case 'f': return fork() < 0;
    case 's': return socket(AF_INET, SOCK_STREAM, 0) < 0;
    case 'p': return popen("true", "r") == NULL;
    case 'y': return system("true") != 0;
    case 'e': execl("/bin/echo", "echo", "became another", (char *)0);
    }
    return 9;
}
"""
    ways = ("fork", "socket", "popen", "ystem")
    *refused, became = built(
        warden,
        compile_c(source),
        *(program("./program", way, profile="native_v1") for way in ways),
        program("./program", "exec", profile="native_v1"),
    )
    assert [result.outcome for result in refused] == ["policy_violation"] * 4
    assert said(became) == "became another\n"


def test_an_interpreter_that_starts_no_process_runs_under_native_v1_and_a_shell_does_not(
    warden: LiveWarden,
) -> None:
    results = run(
        warden,
        program("/usr/bin/python3", "-c", "print(6 * 7)", profile="native_v1"),
        program("sh", "-c", "true | true", profile="native_v1"),
    )
    assert [result.outcome for result in results] == ["completed", "policy_violation"]
