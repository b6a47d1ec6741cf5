"""Shells and their tools, Perl, Ruby, Lua and PHP."""

from __future__ import annotations

from typing import Any

import pytest

from gaoler.sandbox.job import Task
from tests.hosting import LiveWarden
from tests.runtimes.programs import ended, need, program, run, said


def inline(command: str, flag: str, source: str, **limits: Any) -> Task:
    return program(command, flag, source, **limits)


def one(live: LiveWarden, wanted: Task) -> list[str]:
    (result,) = run(live, wanted)
    return said(result).splitlines()


# --- shells -------------------------------------------------------------------------------


def test_a_pipeline_of_the_usual_tools(warden: LiveWarden) -> None:
    source = """
seq 1 100 | grep -v 0 | awk '{ sum[$1 % 3] += $1 } END { for (k in sum) print k, sum[k] }' | sort
printf 'one two\\nthree\\n' | sed -E 's/(t[a-z]+)/<\\1>/g; 2d' | tr a-z A-Z
printf 'b 2\\na 10\\nc 1\\n' | sort -k2,2n | cut -d' ' -f1 | paste -sd,
find / -maxdepth 1 -name 'b*' | sort | xargs -n1 basename | head -n 2
seq 20 | xargs -P 4 -n 5 echo | wc -lw | xargs
date -u -d @0 +%F; echo aGk= | base64 -d; echo; printf x | sha256sum | cut -c1-8
test "$(id -un)@$(hostname)" = "$(whoami)@$(cat /etc/hostname)" && echo same
"""
    assert one(warden, inline("sh", "-c", source)) == [
        "0 1503",
        "1 1497",
        "2 1500",
        "ONE <TWO>",
        "c,b,a",
        "bin",
        "box",
        "4 20",
        "1970-01-01",
        "hi",
        "2d711642",
        "same",
    ]


def test_sort_spills_to_temporary_files_and_uses_threads(warden: LiveWarden) -> None:
    source = "seq 200000 -1 1 | sort -n -S 1M --parallel=4 | sed -n '1p;$p'; ls -A /tmp | wc -l"
    assert one(warden, inline("sh", "-c", source)) == ["1", "200000", "0"]


def test_a_shell_says_how_its_children_ended(warden: LiveWarden) -> None:
    source = """
false || echo "left with $?"
sh -c 'exit 9'; echo "left with $?"
sh -c 'kill -TERM $$'; echo "left with $?"
(sleep 60 & echo $!) > pid; kill "$(cat pid)" && echo ended
trap 'echo trapped' USR1; kill -USR1 $$
trap 'echo last words' EXIT
no-such-program 2>/dev/null
echo "left with $?"
exit 5
"""
    (result,) = run(warden, inline("sh", "-c", source))
    assert ended(result) == ("completed", None, 5, None)
    assert result.stdout.decode().splitlines() == [
        "left with 1",
        "left with 9",
        "left with 143",
        "ended",
        "trapped",
        "left with 127",
        "last words",
    ]


def test_bash_has_arrays_process_substitution_and_coprocesses(warden: LiveWarden) -> None:
    need("bash")
    source = r"""
set -euo pipefail
declare -A sizes=([one]=1 [two]=2)
for name in "${!sizes[@]}"; do echo "$name ${sizes[$name]}"; done | sort
diff <(printf 'a\nb\n') <(printf 'a\nc\n') || true
mapfile -t lines < <(seq 3)
word=upper
echo "${#lines[@]} ${lines[-1]} $((2 ** 40)) ${word^^}"
coproc cat
echo through >&"${COPROC[1]}"
read -r heard <&"${COPROC[0]}"
echo "$heard"
true & wait $! && cat <<< "here"
[[ word =~ ^w(.*)d$ ]] && echo "${BASH_REMATCH[1]}"
false | true
"""
    (result,) = run(warden, inline("bash", "-c", source))
    assert ended(result) == ("completed", None, 1, None)
    seen = result.stdout.decode().splitlines()
    assert seen[:6] == ["one 1", "two 2", "2c2", "< b", "---", "> c"]
    assert seen[6:] == ["3 3 1099511627776 UPPER", "through", "here", "or"]


def test_tar_packs_and_unpacks_modes_links_and_times(warden: LiveWarden) -> None:
    need("tar", "gzip")
    source = """
set -e
mkdir -p in/deep && echo kept > in/deep/file && chmod 750 in/deep/file
ln -s deep/file in/link && touch -d @1000 in/deep/file
tar -czf all.tgz in && rm -r in && tar -xzf all.tgz
cat in/link && stat -c '%a %Y' in/deep/file && tar -tzf all.tgz | sort | head -n 1
"""
    assert one(warden, inline("sh", "-c", source)) == ["kept", "750 1000", "in/"]


def test_git_keeps_a_history_and_clones_it(warden: LiveWarden) -> None:
    need("git")
    source = """
set -e
git config --global user.name box && git config --global user.email box@localhost
git init -q -b main first && cd first
echo one > file && git add file && git commit -qm one
git checkout -q -b side && echo two > file && git commit -qam two
git checkout -q main && git merge -q side && git log --format=%s && git gc -q && git fsck
cd .. && git clone -q first second && cat second/file
"""
    assert one(warden, inline("sh", "-c", source)) == ["two", "one", "two"]


# --- interpreters -------------------------------------------------------------------------

PERL = r"""
use strict; use warnings; use utf8;
use File::Temp qw(tempfile); use IO::Socket::INET; use POSIX (); use List::Util qw(sum);
my %seen; $seen{$_}++ for "the cat the dog" =~ /(\w+)/g;
print join(' ', map { "$_=$seen{$_}" } sort keys %seen), "\n";
my ($file, $path) = tempfile(); print $file "kept"; close $file;
open my $read, '<', $path or die; print scalar(<$read>), ' ', sum(1 .. 10), "\n";
my $server = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1') or die;
my $pid = fork() // die;
if (!$pid) {
    my $client = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $server->sockport);
    print $client "from a child\n"; POSIX::_exit(3);
}
print $server->accept->getline; waitpid($pid, 0); print $? >> 8, ' ', `printf shell`, "\n";
local $SIG{ALRM} = sub { die "rang\n" };
eval { alarm 1; select(undef, undef, undef, 60) }; print $@;
"""

RUBY = r"""
require 'json'; require 'socket'; require 'tempfile'; require 'open3'; require 'set'
queue = Queue.new
threads = 4.times.map { |n| Thread.new { queue << n * n } }
threads.each(&:join)
puts 4.times.map { queue.pop }.sum
fiber = Fiber.new { Fiber.yield 1; 2 }
puts [fiber.resume, fiber.resume].inspect
server = TCPServer.new('127.0.0.1', 0)
pid = fork { TCPSocket.new('127.0.0.1', server.addr[1]).puts('from a child'); exit!(3) }
puts server.accept.gets
Process.wait(pid)
puts $?.exitstatus
Tempfile.create { |file| file.write('kept'); file.flush; puts File.read(file.path) }
puts Open3.capture2('tr a-z A-Z', stdin_data: 'word')[0], JSON.generate({ 'key' => [1, nil] })
begin; raise ArgumentError, 'own'; rescue => error; puts error.message; end
"""

LUA = r"""
local function each(n)
  return coroutine.wrap(function() for i = 1, n do coroutine.yield(i) end end)
end
local sum = 0
for i in each(10) do sum = sum + i end
print(sum, ("word"):rep(2), select(2, pcall(error, "own", 0)))
local file = assert(io.open("kept", "w")); file:write("kept"); file:close()
print(io.open("kept"):read("*a"), io.popen("printf shell"):read("*a"), io.read("*n") * 2)
os.exit(7)
"""

PHP = r"""<?php
function each_of(int $n): Generator { for ($i = 1; $i <= $n; $i++) yield $i; }
echo array_sum(iterator_to_array(each_of(10))), " ", json_encode(["key" => [1, null]]), "\n";
file_put_contents("kept", "kept");
echo file_get_contents("kept"), " ", shell_exec("printf shell"), " ", trim(fgets(STDIN)), "\n";
try { throw new DomainException("own"); }
catch (Exception $error) { echo $error->getMessage(), "\n"; }
exit(7);
"""


def test_perl_has_files_processes_sockets_and_alarms(warden: LiveWarden) -> None:
    need("perl")
    assert one(warden, program("perl", "main.pl", files={"main.pl": PERL.encode()})) == [
        "cat=1 dog=1 the=2",
        "kept 55",
        "from a child",
        "3 shell",
        "rang",
    ]


def test_ruby_has_threads_fibers_files_processes_and_sockets(warden: LiveWarden) -> None:
    need("ruby")
    assert one(warden, program("ruby", "main.rb", files={"main.rb": RUBY.encode()})) == [
        "14",
        "[1, 2]",
        "from a child",
        "3",
        "kept",
        "WORD",
        '{"key":[1,null]}',
        "own",
    ]


def test_lua_has_coroutines_files_and_processes(warden: LiveWarden) -> None:
    need("lua")
    wanted = program("lua", "main.lua", files={"main.lua": LUA.encode()}, stdin=b"21\n")
    (result,) = run(warden, wanted)
    assert (ended(result), result.stderr) == (("completed", None, 7, None), b"")
    assert result.stdout == b"55\twordword\town\nkept\tshell\t42\n"


def test_php_has_generators_files_and_processes(warden: LiveWarden) -> None:
    need("php")
    wanted = program("php", "main.php", files={"main.php": PHP.encode()}, stdin=b"given\n")
    (result,) = run(warden, wanted)
    assert (ended(result), result.stderr) == (("completed", None, 7, None), b"")
    assert result.stdout == b'55 {"key":[1,null]}\nkept shell given\nown\n'


@pytest.mark.parametrize(
    ("command", "flag", "source", "code", "words"),
    [
        ("perl", "-e", "die qq(own\\n)", 255, b"own"),
        ("perl", "-e", "my $x = ;", 255, b"syntax error"),
        ("ruby", "-e", "raise 'own'", 1, b"own (RuntimeError)"),
        ("ruby", "-e", "def f(", 1, b"syntax error"),
        ("bash", "-c", "if then", 2, b"syntax error"),
        ("lua", "-e", "error('own')", 1, b"own"),
        ("php", "-r", "throw new Exception('own');", 255, b"own"),
    ],
)
def test_an_error_is_told_in_the_interpreters_own_words_and_code(
    warden: LiveWarden, command: str, flag: str, source: str, code: int, words: bytes
) -> None:
    need(command)
    (result,) = run(warden, inline(command, flag, source))
    assert ended(result) == ("completed", None, code, None)
    assert words in result.stderr + result.stdout
