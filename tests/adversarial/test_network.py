"""Sockets: there is a loopback of the task's own, and nothing at its other end but itself."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.adversarial.calls import TRIED, let_through, raw, refused
from tests.adversarial.holding import held
from tests.adversarial.probing import attack, see, told
from tests.hosting import LiveWarden

# No probe aims at anything outside of a loopback, and nothing leaves one: a packet that goes
# to many has loopback for its interface and may make no hop.


@dataclass(frozen=True)
class HostSockets:
    """What listens on the host, for whoever might come."""

    tcp: socket.socket
    tcp6: socket.socket
    udp: socket.socket
    udp6: socket.socket

    @property
    def ports(self) -> list[str]:
        return [str(s.getsockname()[1]) for s in (self.tcp, self.tcp6, self.udp, self.udp6)]

    def visits(self) -> list[str]:
        """Who came: connections and packets."""
        found = []
        for name, listener in (("tcp", self.tcp), ("tcp6", self.tcp6)):
            try:
                listener.accept()[0].close()
                found.append(name)
            except BlockingIOError:
                pass
        for name, receiver in (("udp", self.udp), ("udp6", self.udp6)):
            try:
                found.append(f"{name}: {receiver.recv(64)!r}")
            except BlockingIOError:
                pass
        return found


@pytest.fixture
def host_sockets() -> Iterator[HostSockets]:
    made = []
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            sock = socket.socket(family, kind)
            sock.bind((address, 0))
            if kind == socket.SOCK_STREAM:
                sock.listen()
            sock.setblocking(False)
            made.append(sock)
    tcp, udp, tcp6, udp6 = made
    yield HostSockets(tcp, tcp6, udp, udp6)
    for sock in made:
        sock.close()


# --- the host's loopback ---------------------------------------------------------------------


def test_a_listener_on_the_hosts_loopback_is_out_of_reach_under_every_name(
    warden: LiveWarden, host_sockets: HostSockets
) -> None:
    source = (
        TRIED
        + """
port, port6 = map(int, sys.argv[1:3])
names = ['127.0.0.1', '127.0.0.2', '127.255.255.254', '0.0.0.0', 'localhost', '0', '2130706433']
answers = {}
def connect(family, address):
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.settimeout(5)
    sock.connect(address)
for name in names:
    answers[name] = tried(connect, socket.AF_INET, (name, port))
for name in ('::1', '::', '::ffff:127.0.0.1', '::ffff:0:0'):
    for number in (port, port6):
        answers['%s %d' % (name, number)] = tried(connect, socket.AF_INET6, (name, number))
fast = socket.socket()
answers['fast open'] = attempt(fast.sendto, b'x', 0x20000000, ('127.0.0.1', port))
again = socket.socket()
again.setblocking(False)
answers['later'] = errno.errorcode[again.connect_ex(('127.0.0.1', port))]
import select
select.select([], [again], [], 5)
answers['later'] = errno.errorcode.get(again.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), 'done')
tell(answers=answers)
"""
    )
    seen = see(warden, source, *host_sockets.ports)
    there_is_none = {"EADDRNOTAVAIL", "ENETUNREACH"}  # where the kernel has no IPv6
    answers = {name: a for name, a in seen["answers"].items() if a not in there_is_none}
    assert let_through(answers) == {}
    assert "ECONNREFUSED" in answers.values()
    assert host_sockets.visits() == []


def test_a_packet_to_the_hosts_loopback_arrives_nowhere(
    warden: LiveWarden, host_sockets: HostSockets
) -> None:
    source = """
port, port6 = map(int, sys.argv[3:5])
answers = {}
for family, address in ((socket.AF_INET, ('127.0.0.1', port)), (socket.AF_INET6, ('::1', port6))):
    sock = socket.socket(family, socket.SOCK_DGRAM)
    attempt(sock.sendto, b'unconnected', address)
    name = 'IPv4' if family == socket.AF_INET else 'IPv6'
    if attempt(sock.connect, address) == 'done':
        attempt(sock.send, b'connected')
        # Loopback answers at once that nobody is there; the next one hears of it.
        heard = [attempt(sock.send, b'x') for _ in range(4)]
        answers[name] = 'ECONNREFUSED' if 'ECONNREFUSED' in heard else heard
tell(answers=answers)
"""
    seen = see(warden, source, *host_sockets.ports)
    assert let_through(seen["answers"]) == {}
    assert "IPv4" in seen["answers"]
    assert host_sockets.visits() == []


def test_the_hosts_abstract_sockets_are_neither_reached_nor_seen(warden: LiveWarden) -> None:
    name = f"gaoler test {os.getpid()}"
    listeners = []
    kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)
    for kind in kinds:
        listener = socket.socket(socket.AF_UNIX, kind)
        listener.bind(f"\0{name} {int(kind)}")
        if kind != socket.SOCK_DGRAM:
            listener.listen()
        listener.setblocking(False)
        listeners.append(listener)
    source = """
answers = {}
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
    name = '\\0%s %d' % (sys.argv[1], kind)
    answers[str(kind)] = attempt(socket.socket(socket.AF_UNIX, kind).connect, name)
    # The name is free here, so it is another one.
    answers['taken %d' % kind] = attempt(socket.socket(socket.AF_UNIX, kind).bind, name)
unbound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
answers['send'] = attempt(unbound.sendto, b'x', '\\0%s 2' % sys.argv[1])
tell(answers=answers, shown=sys.argv[1] in open('/proc/net/unix').read())
"""
    try:
        seen = see(warden, source, name)
        answers = seen["answers"]
        assert [answers.pop(f"taken {int(kind)}") for kind in kinds] == ["done"] * 3
        assert let_through(answers) == {}
        assert not seen["shown"]
        for listener, kind in zip(listeners, kinds, strict=True):
            with pytest.raises(BlockingIOError):
                listener.recv(1) if kind == socket.SOCK_DGRAM else listener.accept()
    finally:
        for listener in listeners:
            listener.close()


# --- another request -------------------------------------------------------------------------

LISTEN = """
sockets = []
def listen(family, kind, address):
    sock = socket.socket(family, kind)
    try:
        sock.bind(address)
        if kind == socket.SOCK_STREAM:
            sock.listen()
    except OSError:
        return None
    sockets.append(sock)
    return sock
PORT = 7654
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    listen(socket.AF_INET, kind, ('0.0.0.0', PORT))
    listen(socket.AF_INET6, kind, ('::1', PORT))
    listen(socket.AF_UNIX, kind, '\\0meeting %d' % kind)
group = listen(socket.AF_INET, socket.SOCK_DGRAM, ('0.0.0.0', PORT + 1))
# To join a group may be refused as well.
attempt(group.setsockopt, socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP,
    socket.inet_aton('224.0.0.77') + socket.inet_aton('127.0.0.1'))
"""


def test_two_requests_at_once_cannot_meet_on_loopback(warden: LiveWarden) -> None:
    source = """
PORT, answers = 7654, {}
for name, family, address in (('IPv4', socket.AF_INET, ('127.0.0.1', PORT)),
                              ('any', socket.AF_INET, ('0.0.0.0', PORT)),
                              ('IPv6', socket.AF_INET6, ('::1', PORT)),
                              ('abstract', socket.AF_UNIX, '\\0meeting 1')):
    answers['stream ' + name] = attempt(socket.socket(family).connect, address)
    if family != socket.AF_UNIX:
        sock = socket.socket(family, socket.SOCK_DGRAM)
        if attempt(sock.connect, address) == 'done':
            heard = [attempt(sock.send, b'x') for _ in range(4)]
            answers['packet ' + name] = 'ECONNREFUSED' if 'ECONNREFUSED' in heard else heard
sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
answers['packet abstract'] = attempt(sock.sendto, b'x', '\\0meeting 2')
# Whoever has the port here is not the other one.
tell(answers=answers, free=attempt(socket.socket().bind, ('0.0.0.0', PORT)))
"""
    with held(warden, LISTEN) as pid:
        seen = see(warden, source)
        # From out here: nobody has come to the one that listens.
        assert _tcp_states(pid) == {"0A"}
        assert _waiting_bytes(pid) == {0}
    answers = {n: a for n, a in seen["answers"].items() if a != "EADDRNOTAVAIL"}
    assert let_through(answers) == {}
    assert "packet IPv4" in answers
    assert seen["free"] == "done"


def test_what_is_sent_to_many_stays_in_the_request(warden: LiveWarden) -> None:
    source = """
def out(address, *options):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for level, option, value in options:
        sock.setsockopt(level, option, value)
    return attempt(sock.sendto, b'to many', address)
loopback = socket.inet_aton('127.0.0.1')
many = [(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, loopback),
        (socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)]
tell(group=out(('224.0.0.77', 7655), *many))
tell(all=out(('127.255.255.255', 7655), (socket.SOL_SOCKET, socket.SO_BROADCAST, 1)))
tell(not_asked=out(('127.255.255.255', 7655)))
six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, 1)
six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 0)
tell(six=attempt(six.sendto, b'to many', ('ff01::77', 7655, 0, 1)))
"""
    with held(warden, LISTEN) as pid, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as host:
        host.bind(("0.0.0.0", 0))
        host.setblocking(False)
        member = socket.inet_aton("224.0.0.77") + socket.inet_aton("127.0.0.1")
        host.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        port = host.getsockname()[1]
        seen = see(warden, source.replace("7655", str(port)))
        with pytest.raises(BlockingIOError):
            host.recv(64)
        seen = see(warden, source)
        assert _waiting_bytes(pid) == {0}
    assert seen["not_asked"] == "EACCES"


def _table(pid: int, name: str) -> list[list[str]]:
    try:
        lines = Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    except FileNotFoundError:
        return []
    return [line.split() for line in lines]


def _tcp_states(pid: int) -> set[str]:
    """Of all sockets in that network namespace; 0A is listening."""
    return {fields[3] for name in ("tcp", "tcp6") for fields in _table(pid, name)}


def _waiting_bytes(pid: int) -> set[int]:
    """What waits to be read from the UDP sockets there."""
    rows = [fields for name in ("udp", "udp6") for fields in _table(pid, name)]
    assert rows
    return {int(fields[4].split(":")[1], 16) for fields in rows}


# --- interfaces, addresses, routes -----------------------------------------------------------


def test_there_is_one_interface_by_every_way_of_asking(warden: LiveWarden) -> None:
    source = (
        TRIED
        + """
import fcntl
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
buffer = ctypes.create_string_buffer(40 * 64)
request = struct.pack('iL', len(buffer), ctypes.addressof(buffer))
size = struct.unpack('iL', fcntl.ioctl(sock, 0x8912, request))[0]  # SIOCGIFCONF
tell(listed=[buffer.raw[n:n + 16].rstrip(b'\\0').decode() for n in range(0, size, 40)])
names = []
for index in range(1, 64):
    try:
        found = fcntl.ioctl(sock, 0x8910, struct.pack('16si20x', b'', index))  # SIOCGIFNAME
        names.append(found[:16].rstrip(b'\\0').decode())
    except OSError:
        pass
tell(by_index=names, by_netlink=tried(socket.if_nameindex))
tell(known=[n for n in sys.argv[1:] if attempt(socket.if_nametoindex, n) == 'done'])
tell(shown=[l.split(':')[0].strip() for l in open('/proc/net/dev').read().splitlines()[2:]])
def lines(name, above=1):
    try:
        return open('/proc/net/' + name).read().splitlines()[above:]
    except OSError:
        return []
tell(tables={name: lines(name) for name in ('route', 'arp', 'packet', 'netlink')})
# That one has a heading of two lines.
tell(wireless=lines('wireless', 2))
"""
    )
    names = [name for _, name in socket.if_nameindex()]
    seen = see(warden, source, *names)
    for how in ("listed", "by_index", "known", "shown"):
        assert seen[how] == ["lo"], how
    assert refused(seen["by_netlink"]) or seen["by_netlink"] == [[1, "lo"]]
    # A netlink line that is shown is the kernel's own end.
    seen["tables"].pop("netlink")
    assert seen["wireless"] == []
    assert {name: lines for name, lines in seen["tables"].items() if lines} == {}


def test_no_interface_address_route_or_neighbour_can_be_set(warden: LiveWarden) -> None:
    source = """
import fcntl
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
address = struct.pack('HH4s8x', socket.AF_INET, 0, socket.inet_aton('127.1.2.3'))
def interface(tail, name=b'lo'):
    return struct.pack('16s24s', name, tail)
route = bytearray(120)
struct.pack_into('16s', route, 8, address)
struct.pack_into('16s', route, 24, struct.pack('HH4s8x', 2, 0, b'\\0' * 4))
requests = {
    'down': (0x8914, interface(struct.pack('h', 0))),
    'promiscuous': (0x8914, interface(struct.pack('h', 0x149))),
    'address': (0x8916, interface(address)), 'mask': (0x891c, interface(address)),
    'mtu': (0x8922, interface(struct.pack('i', 9000))), 'name': (0x8923, interface(b'eth0')),
    'hardware': (0x8924, interface(struct.pack('H6s', 1, b'\\2gaole'))),
    'queue': (0x8943, interface(struct.pack('i', 1))), 'route': (0x890b, bytes(route)),
    'no route': (0x890c, bytes(route)), 'neighbour': (0x8955, bytes(68)),
    'bridge': (0x89a0, b'br0'.ljust(16, b'\\0')), 'in bridge': (0x89a2, interface(bytes(4))),
    'tunnel': (0x89f1, interface(bytes(8), b'tunl0')), 'vlan': (0x8983, bytes(64)),
    'driver': (0x89f0, interface(bytes(8))), 'ethtool': (0x8946, interface(bytes(8))),
    'bond': (0x8990, interface(bytes(8))), 'time stamps': (0x89b0, interface(bytes(8))),
}
answers = {name: attempt(fcntl.ioctl, sock, *request) for name, request in requests.items()}
answers['six'] = attempt(fcntl.ioctl, six, 0x8916, struct.pack('16sIi', b'\\xfd' * 16, 64, 1))
flags = struct.unpack('16sH22x', fcntl.ioctl(sock, 0x8913, struct.pack('16sH22x', b'lo', 0)))[1]
for name in ('ipv4/ip_forward', 'ipv4/ping_group_range', 'core/somaxconn'):
    answers[name] = attempt(os.open, '/proc/sys/net/' + name, os.O_WRONLY)
tell(answers=answers, up=bool(flags & 1), promiscuous=bool(flags & 0x100))
"""
    seen = see(warden, source)
    harmless = {"ENODEV", "EFAULT", "ENOPKG"}  # there is no such thing that could be set
    answers = {name: a for name, a in seen["answers"].items() if a not in harmless}
    assert let_through(answers) == {}
    assert (seen["up"], seen["promiscuous"]) == (True, False)


def test_it_has_no_rights_over_its_own_network(warden: LiveWarden) -> None:
    source = """
answers = {}
for port in (1, 22, 80, 443, 1023):
    answers['port %d' % port] = attempt(socket.socket().bind, ('127.0.0.1', port))
for address in ('192.0.2.1', '10.0.0.1', '169.254.169.254'):
    answers['bind ' + address] = attempt(socket.socket().bind, (address, 9999))
tell(answers=answers)
"""
    # To be bound is to be named: nothing is sent there.
    answers = see(warden, source)["answers"]
    assert {n: a for n, a in answers.items() if not refused(a) and a != "EADDRNOTAVAIL"} == {}


# --- kinds of sockets ------------------------------------------------------------------------


def test_a_socket_that_sees_or_makes_packets_is_refused_by_every_name(warden: LiveWarden) -> None:
    source = """
answers = {}
def make(name, *arguments):
    answers[name] = attempt(lambda: socket.socket(*arguments).close())
for protocol in (0, 1, 2, 4, 6, 17, 41, 47, 58, 89, 103, 132, 255):
    make('raw %d' % protocol, socket.AF_INET, socket.SOCK_RAW, protocol)
    make('raw six %d' % protocol, socket.AF_INET6, socket.SOCK_RAW, protocol)
# An old kind that the kernel turns into a packet socket, of a family that is let through.
for protocol in (0, 3, 0x0300, 0x0800, 8):
    make('old %d' % protocol, socket.AF_INET, 10, protocol)
    make('packet %d' % protocol, socket.AF_PACKET, socket.SOCK_RAW, protocol)
    make('cooked %d' % protocol, socket.AF_PACKET, socket.SOCK_DGRAM, protocol)
for protocol in range(0, 23):
    make('netlink %d' % protocol, socket.AF_NETLINK, socket.SOCK_RAW, protocol)
for family in (29, 31, 38, 40, 44, 43, 21, 30, 41, 15, 17, 45):
    for kind in (1, 2, 3, 5, 6):
        make('family %d %d' % (family, kind), family, kind, 0)
tell(answers=answers)
"""
    assert let_through(see(warden, source)["answers"]) == {}


def test_no_protocol_is_to_be_had_but_those_of_every_program(warden: LiveWarden) -> None:
    """The kernel would fetch a module for one that it has not; UDP, TCP and no other."""
    source = """
usual = {(1, 0), (1, 6), (2, 0), (2, 17)}
answers = {}
for family in (socket.AF_INET, socket.AF_INET6):
    for kind in (1, 2, 4, 5, 6, 10):
        for protocol in (0, 1, 2, 6, 17, 33, 46, 58, 108, 115, 132, 136, 142, 143, 256, 262):
            if (kind, protocol) not in usual:
                name = '%d %d %d' % (family, kind, protocol)
                answers[name] = attempt(lambda: socket.socket(family, kind, protocol).close())
tell(answers=answers)
"""
    before = _modules()
    assert let_through(see(warden, source)["answers"]) == {}
    assert _modules() == before


def _modules() -> set[str]:
    """The kernel's modules; none where it is built without."""
    try:
        lines = Path("/proc/modules").read_text().splitlines()
    except FileNotFoundError:
        return set()
    return {line.split()[0] for line in lines}


OPTIONS: dict[str, tuple[str, int, int, str]] = {
    # name: (kind of socket, level, option, value as Python)
    "mark": ("tcp", 1, 36, "7"),
    "priority": ("tcp", 1, 12, "7"),
    "debug": ("tcp", 1, 1, "1"),
    "send buffer by force": ("tcp", 1, 32, "1 << 30"),
    "receive buffer by force": ("tcp", 1, 33, "1 << 30"),
    "prefer busy poll": ("tcp", 1, 69, "1"),
    "device": ("tcp", 1, 25, "b'eth0'"),
    "zero copy of a family": ("unix", 1, 60, "1"),
    "transparent": ("tcp", 0, 19, "1"),
    "options of a packet": ("tcp", 0, 4, "bytes([131, 7, 4, 127, 0, 0, 2, 0])"),
    "ipsec policy": ("tcp", 0, 16, "bytes(64)"),
    "tables": ("tcp", 0, 64, "bytes(96)"),
    "counters": ("tcp", 0, 65, "bytes(96)"),
    "arp tables": ("tcp", 0, 96, "bytes(96)"),
    "bridge tables": ("tcp", 0, 128, "bytes(96)"),
    "multicast routes": ("udp", 0, 200, "0"),
    "virtual servers": ("tcp", 0, 1153, "bytes(96)"),
    "tables six": ("tcp6", 41, 64, "bytes(96)"),
    "transparent six": ("tcp6", 41, 75, "1"),
    "hop options": ("tcp6", 41, 54, "bytes(8)"),
    "checksum": ("tcp6", 41, 7, "2"),
    "repair": ("tcp", 6, 19, "1"),
    "upper protocol": ("tcp", 6, 31, "b'tls'"),
    "upper protocol mptcp": ("tcp", 6, 31, "b'mptcp'"),
    "congestion of the host": ("tcp", 6, 13, "b'dctcp'"),
    "keys of a peer": ("tcp", 6, 14, "bytes(216)"),
    "encapsulation": ("udp", 17, 100, "9"),
}


@pytest.fixture(scope="module")
def options(session_warden: LiveWarden) -> dict[str, Any]:
    """What each option is answered with; all are set in one task."""
    source = f"""
wanted = {OPTIONS!r}
answers = {{}}
for name, (kind, level, option, value) in wanted.items():
    sock = socket.socket({{'unix': socket.AF_UNIX, 'tcp6': socket.AF_INET6}}.get(
        kind, socket.AF_INET), socket.SOCK_DGRAM if kind == 'udp' else socket.SOCK_STREAM)
    answers[name] = attempt(sock.setsockopt, level, option, eval(value))
tell(**answers)
"""
    return see(session_warden, source)


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_is_the_administrators_is_refused(
    options: dict[str, Any], name: str
) -> None:
    # ENODEV, ENOENT: it names what is not here.
    assert refused(options[name]) or options[name] in ("ENODEV", "ENOENT", "EAFNOSUPPORT")


def test_what_a_socket_tells_of_the_host_is_nothing(warden: LiveWarden) -> None:
    source = """
ours, theirs = socket.socketpair()
answers = {}
def get(name, sock, level, option, size=64):
    answers[name] = attempt(sock.getsockopt, level, option, size)
tcp = socket.socket()
get('label', ours, 1, 31)
get('label of tcp', tcp, 1, 31)
get('original address', tcp, 0, 80, 16)
get('tables', tcp, 0, 64, 84)
get('entries', tcp, 0, 65, 512)
get('tables six', socket.socket(socket.AF_INET6), 41, 64, 84)
get('servers', tcp, 0, 1154, 64)
get('meters', tcp, 0, 202, 8)
bound = socket.socket()
attempt(bound.setsockopt, socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'lo')
bound.bind(('127.0.0.1', 0))
tell(answers=answers, device=bound.getsockopt(1, 25, 16).rstrip(b'\\0').decode())
pid, uid, gid = struct.unpack('iii', ours.getsockopt(1, socket.SO_PEERCRED, 12))
tell(peer=[pid == os.getpid(), uid, gid])
"""
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert seen["device"] in ("lo", "")
    assert seen["peer"] == [True, 1000, 1000]


# --- what a program may do -------------------------------------------------------------------


def test_a_program_can_talk_to_itself_over_each_kind_of_loopback(warden: LiveWarden) -> None:
    source = """
def echo(family, address):
    listener = socket.socket(family)
    listener.bind(address)
    listener.listen()
    if os.fork() == 0:
        peer = socket.socket(family)
        peer.connect(listener.getsockname())
        peer.send(b'hello')
        os._exit(0)
    heard = listener.accept()[0].recv(16)
    os.wait()
    return heard.decode()
def packet(family, address):
    receiver = socket.socket(family, socket.SOCK_DGRAM)
    receiver.bind(address)
    socket.socket(family, socket.SOCK_DGRAM).sendto(b'hello', receiver.getsockname())
    return receiver.recv(16).decode()
tell(tcp=echo(socket.AF_INET, ('127.0.0.1', 0)), udp=packet(socket.AF_INET, ('127.0.0.1', 0)))
tell(path=echo(socket.AF_UNIX, '/tmp/socket'), abstract=echo(socket.AF_UNIX, '\\0name'))
six = True
try:
    six = [echo(socket.AF_INET6, ('::1', 0)), packet(socket.AF_INET6, ('::1', 0))] == ['hello'] * 2
except OSError as error:
    six = errno.errorcode[error.errno] in ('EADDRNOTAVAIL', 'EAFNOSUPPORT')
tell(six=six)
"""
    hello = dict.fromkeys(("tcp", "udp", "path", "abstract"), "hello")
    assert see(warden, source) == {**hello, "six": True}


def test_no_name_but_its_own_is_known(warden: LiveWarden) -> None:
    source = """
def known(name):
    try:
        return sorted({found[4][0] for found in socket.getaddrinfo(name, 80)})
    except socket.gaierror:
        return None
tell(names={name: known(name) for name in sys.argv[1:]})
tell(resolver=open('/etc/resolv.conf').read(), hosts=open('/etc/hosts').read())
"""
    own = socket.gethostname()
    others = ["host.invalid", "metadata.invalid", own if own != "gaoler" else "other.invalid"]
    seen = see(warden, source, "localhost", "gaoler", *others)
    names = seen["names"]
    assert set(names.pop("localhost")) <= {"127.0.0.1", "::1"}
    assert set(names.pop("gaoler")) <= {"127.0.0.1", "::1"}
    assert {name: found for name, found in names.items() if found is not None} == {}
    assert seen["resolver"] == ""
    assert own not in seen["hosts"] or own in ("gaoler", "localhost")


def test_nothing_of_its_network_is_left_for_the_next_step(warden: LiveWarden) -> None:
    stays = (
        LISTEN
        + """
if os.fork() == 0:
    os.setsid()
    while True:
        signal.pause()
connection = socket.socket()
connection.connect(('127.0.0.1', PORT))
connection.send(b'unread')
tell(sockets=len(sockets))
"""
    )
    looks = """
def lines(name):
    try:
        return open('/proc/net/' + name).read().splitlines()[1:]
    except OSError:
        return []
tell(left={name: lines(name) for name in ('tcp', 'tcp6', 'udp', 'udp6', 'unix')})
tell(answer=attempt(socket.socket().connect, ('127.0.0.1', 7654)))
"""
    first, second = warden.run(attack(stays), attack(looks))
    assert told(first[0])["sockets"] >= 5
    seen = told(second[0])
    assert {name: lines for name, lines in seen["left"].items() if lines} == {}
    assert seen["answer"] == "ECONNREFUSED"


def test_a_socket_of_a_kind_that_the_filter_knows_not_is_made_by_no_other_call(
    warden: LiveWarden,
) -> None:
    """io_uring makes sockets past the filter of socket(2), where a program may have it."""
    source = (
        raw("io_uring_setup", "io_uring_enter", "io_uring_register", "io_setup")
        + """
parameters = ctypes.create_string_buffer(120)
answers = {'ring': syscall(NR_io_uring_setup, 8, parameters),
           'enter': syscall(NR_io_uring_enter, 0, 1, 0, 0, None, 0),
           'register': syscall(NR_io_uring_register, 0, 0, None, 0),
           'queue': syscall(NR_io_setup, 8, ctypes.create_string_buffer(8))}
sock = socket.socket()
pair = socket.socketpair()
for name, request in (('vsock id', 0x7b9), ('kcm clone', 0x89e2), ('tun', 0x400454ca)):
    import fcntl
    for held in (sock, pair[0]):
        answers['%s %d' % (name, held.fileno())] = attempt(fcntl.ioctl, held, request, bytes(64))
tell(answers=answers, tun=attempt(os.open, '/dev/net/tun', os.O_RDWR))
"""
    )
    seen = see(warden, source)
    assert let_through(seen["answers"]) == {}
    assert seen["tun"] == "ENOENT"
