"""Go: the build with its cache in the workspace, and what its run time does with threads."""

from __future__ import annotations

from gaoler.sandbox.job import Task
from tests.hosting import MIB, LiveWarden
from tests.runtimes.programs import built, ended, need, program, run


def build_go(source: str) -> Task:
    command = ("go", "build", "-o", "program", "main.go")
    return program(*command, files={"main.go": source.encode()})


def test_goroutines_files_processes_and_sockets_of_go(warden: LiveWarden) -> None:
    need("go")
    source = """
package main

import ("bufio"; "fmt"; "net"; "os"; "os/exec"; "sync")

func main() {
	var group sync.WaitGroup
	squares := make(chan int, 1000)
	for n := 0; n < 1000; n++ {
		group.Add(1)
		go func(n int) { defer group.Done(); squares <- n * n }(n)
	}
	group.Wait()
	close(squares)
	sum := 0
	for square := range squares { sum += square }
	os.WriteFile("/tmp/kept", []byte("kept"), 0o600)
	shown, _ := exec.Command("cat", "/tmp/kept").Output()
	server, _ := net.Listen("tcp", "127.0.0.1:0")
	go func() { peer, _ := server.Accept(); fmt.Fprintln(peer, "hello"); peer.Close() }()
	client, _ := net.Dial("tcp", server.Addr().String())
	line, _ := bufio.NewReader(client).ReadString('\\n')
	fmt.Print(sum, " ", string(shown), " ", line)
	os.Exit(7)
}
"""
    (result,) = built(warden, build_go(source), program("./program"))
    assert ended(result) == ("completed", None, 7, None)
    assert (result.stdout, result.stderr) == (b"332833500 kept hello\n", b"")


def test_an_error_of_go_has_its_place_and_a_panic_its_goroutine(warden: LiveWarden) -> None:
    need("go")
    (wrong,) = run(warden, build_go("package main\nfunc main() { undefined() }\n"))
    assert wrong.outcome == "completed"
    assert wrong.exit_code not in (0, None)
    assert b"./main.go:2:15: undefined: undefined" in wrong.stderr
    (result,) = built(
        warden, build_go('package main\nfunc main() { panic("own") }\n'), program("./program")
    )
    assert ended(result) == ("completed", None, 2, None)
    assert b"panic: own\n\ngoroutine 1 [running]" in result.stderr


def test_go_that_meets_a_limit_says_so_or_is_the_kernels_kill(warden: LiveWarden) -> None:
    need("go")
    source = """
package main

import ("os"; "runtime"; "syscall")

func main() {
	if len(os.Args) > 1 {
		for { go func() { runtime.LockOSThread(); syscall.Pause() }(); runtime.Gosched() }
	}
	kept := [][]byte{}
	for {
		block := make([]byte, 1<<20)
		for i := range block { block[i] = 1 }
		kept = append(kept, block)
	}
}
"""
    full, crowded = built(
        warden,
        build_go(source),
        program("./program", memory_bytes=64 * MIB),
        program("./program", "threads", pids=32),
    )
    assert ended(full) == ("memory_limit", None, None, None)
    assert ended(crowded) == ("completed", None, 2, None)
    assert b"failed to create new OS thread" in crowded.stderr
    assert crowded.stats.pids_limit_hits > 0
