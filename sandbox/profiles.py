"""The seccomp profiles, as data: which system call is met how.

A profile's name carries its version; a change that a program could notice is a new
version, because the name is part of what a client asked for.

`standard_v1` is an allow list for language runtimes and compilers.  What it does not name
gets ENOSYS, so that a libc falls back; what decent programs probe is refused softly; what
only an attacker calls ends the process.  `native_v1` is stacked on top of it for compiled
programs and forbids new processes, sockets and System V IPC.
"""

from __future__ import annotations

import errno

PROFILES = ("standard_v1", "native_v1")

# set*id among them: make and posix_spawn call them with their own IDs, and in a user namespace
# that maps one the kernel knows no other.
ALLOWED = """
    accept accept4 access adjtimex alarm arch_prctl bind brk capget capset chdir chmod chown
    clock_getres clock_gettime clock_nanosleep close close_range connect copy_file_range creat
    dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2
    epoll_wait epoll_wait_old eventfd eventfd2 execve execveat exit exit_group faccessat
    faccessat2 fadvise64 fallocate fchdir fchmod fchmodat fchown fchownat fcntl fdatasync
    fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync ftruncate futex
    futex_waitv futimesat get_robust_list get_thread_area getcpu getcwd getdents getdents64
    getegid geteuid getgid getgroups getitimer getpeername getpgid getpgrp getpid getppid
    getpriority getrandom getresgid getresuid getrlimit getrusage getsid getsockname getsockopt
    gettid gettimeofday getuid getxattr inotify_add_watch inotify_init inotify_init1
    inotify_rm_watch ioctl kill landlock_add_rule landlock_create_ruleset landlock_restrict_self
    lchown lgetxattr link linkat listen listxattr llistxattr lremovexattr lseek lsetxattr lstat
    madvise membarrier memfd_create mincore mkdir mkdirat mlock mlock2 mlockall mmap mprotect
    mremap msgctl msgget msgrcv msgsnd msync munlock munlockall munmap nanosleep newfstatat open
    openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free
    pkey_mprotect poll ppoll prctl pread64 preadv preadv2 prlimit64 pselect6 pwrite64 pwritev
    pwritev2 read readahead readlink readlinkat readv recvfrom recvmmsg recvmsg removexattr
    rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending
    rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo
    sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
    sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam
    sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop sendfile
    sendmmsg sendmsg sendto set_robust_list set_thread_area set_tid_address setfsgid setfsuid
    setgid setitimer setpgid setpriority setregid setresgid setresuid setreuid setrlimit setsid
    setuid setxattr shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 splice
    stat statfs statx symlink symlinkat sync_file_range sysinfo tee tgkill time timer_create
    timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime
    timerfd_settime times tkill truncate umask uname unlink unlinkat utime utimensat utimes
    vfork vmsplice wait4 waitid write writev
""".split()

# Newer than Debian 12's libseccomp knows by name; numbers are the same everywhere.
ALLOWED_NUMBERS = {
    "fchmodat2": 452,
    "map_shadow_stack": 453,
    "futex_wake": 454,
    "futex_wait": 455,
    "futex_requeue": 456,
    "mseal": 462,
}

# Decent programs probe these and go on without.
REFUSED = """
    acct chroot clock_adjtime clock_settime fanotify_init fanotify_mark get_mempolicy ioprio_get
    ioprio_set mbind migrate_pages move_pages name_to_handle_at process_madvise process_mrelease
    ptrace set_mempolicy set_mempolicy_home_node setdomainname setgroups sethostname
    settimeofday syslog userfaultfd vhangup
""".split()

# Only an attacker makes these: the process ends by SIGSYS, a policy_violation.
KILLED = """
    add_key bpf delete_module finit_module fsconfig fsmount fsopen fspick init_module ioperm
    iopl kcmp kexec_file_load kexec_load keyctl mount mount_setattr move_mount open_by_handle_at
    open_tree perf_event_open pidfd_getfd pivot_root process_vm_readv process_vm_writev quotactl
    quotactl_fd reboot request_key setns swapoff swapon umount umount2 unshare
""".split()

# Success without effect: they would make the host write back its disks.
PRETENDED = ["sync", "syncfs"]

SOCKET_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
LAST_SOCKET_FAMILY = 63  # refused with EAFNOSUPPORT up to here, with ENOSYS beyond

# family, type, protocols.  For another protocol of these families the kernel would look for a
# module of the host.
INTERNET_SOCKETS = (
    (2, 1, (0, 6)),  # SOCK_STREAM: TCP
    (2, 2, (0, 1, 17)),  # SOCK_DGRAM: ICMP, UDP
    (10, 1, (0, 6)),
    (10, 2, (0, 17, 58)),
)
SOCKET_TYPE_MASK = 0xF

# level: options.  Keys, filters and group memberships are kernel memory that no limit counts,
# and a million memberships take an hour to give back.
SOCKET_OPTIONS = {
    # SOL_SOCKET: DEBUG REUSEADDR DONTROUTE BROADCAST SNDBUF RCVBUF KEEPALIVE OOBINLINE PRIORITY
    # LINGER REUSEPORT PASSCRED RCVLOWAT RCVTIMEO SNDTIMEO TIMESTAMP PASSSEC TIMESTAMPNS
    # TIMESTAMPING RXQ_OVFL PEEK_OFF, the newer timeouts and time stamps, PASSPIDFD
    1: "1 2 5 6 7 8 9 10 12 13 15 16 18 20 21 29 34 35 37 40 42 63 64 65 66 67 76",
    # IPPROTO_IP: TOS TTL RECVOPTS PKTINFO MTU_DISCOVER RECVERR RECVTTL RECVTOS FREEBIND
    # BIND_ADDRESS_NO_PORT MULTICAST_IF MULTICAST_TTL MULTICAST_LOOP MULTICAST_ALL
    0: "1 2 6 8 10 11 12 13 15 24 32 33 34 49",
    # IPPROTO_TCP: NODELAY MAXSEG CORK KEEPIDLE KEEPINTVL KEEPCNT SYNCNT LINGER2 DEFER_ACCEPT
    # WINDOW_CLAMP QUICKACK USER_TIMEOUT FASTOPEN NOTSENT_LOWAT FASTOPEN_CONNECT
    6: "1 2 3 4 5 6 7 8 9 10 12 18 23 25 30",
    17: "1",  # IPPROTO_UDP: CORK
    # IPPROTO_IPV6: UNICAST_HOPS MULTICAST_IF MULTICAST_HOPS MULTICAST_LOOP MTU_DISCOVER RECVERR
    # V6ONLY MULTICAST_ALL RECVPKTINFO PKTINFO RECVHOPLIMIT HOPLIMIT RECVTCLASS TCLASS
    41: "16 17 18 19 23 25 26 29 49 50 51 52 66 67",
}

# clone: a namespace flag is EPERM; clone3 hides its flags in memory and so is ENOSYS.
NAMESPACE_FLAGS = (
    0x00000080,
    0x00020000,
    0x02000000,
    0x04000000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)

FILE_KIND_MASK = 0o170000
MAKEABLE_KINDS = (0, 0o010000, 0o100000, 0o140000)  # unset, FIFO, regular, socket

# personality: the question, the default, and no address randomisation (debuggers).
PERSONALITIES = (0xFFFFFFFF, 0x0, 0x0040000)

# --- the final filter: loaded by the task's process last of all, just before exec ----------
#
# (system call, {argument: 32-bit value}, errno); 0 means success without effect.

FINAL_REFUSED: tuple[tuple[str, dict[int, int], int], ...] = (
    # A filter is memory of the host that no limit counts, and the kernel frees many at once
    # so badly that it may never come back: no program gets to load one.
    ("seccomp", {}, errno.EPERM),
    ("prctl", {0: 22}, errno.EPERM),  # PR_SET_SECCOMP
    ("setsockopt", {1: 1, 2: 26}, errno.EPERM),  # SOL_SOCKET: SO_ATTACH_FILTER
    ("setsockopt", {1: 1, 2: 50}, errno.EPERM),  # SO_ATTACH_BPF
    ("setsockopt", {1: 1, 2: 51}, errno.EPERM),  # SO_ATTACH_REUSEPORT_CBPF
    ("setsockopt", {1: 1, 2: 52}, errno.EPERM),  # SO_ATTACH_REUSEPORT_EBPF
    # Nor does a limit count record locks, and one process can have millions.  They are
    # granted and not taken, which is right as long as one process uses a file, as SQLite's
    # users do here; flock, one for each open file, is real.
    ("fcntl", {1: 6}, 0),  # F_SETLK
    ("fcntl", {1: 7}, 0),  # F_SETLKW
    ("fcntl", {1: 37}, 0),  # F_OFD_SETLK
    ("fcntl", {1: 38}, 0),  # F_OFD_SETLKW
    ("fcntl", {1: 1024}, errno.EPERM),  # F_SETLEASE
    ("fcntl", {1: 1026}, errno.EPERM),  # F_NOTIFY
    ("ioctl", {1: 0x5412}, errno.EPERM),  # TIOCSTI: typing for somebody else
    ("ioctl", {1: 0x541C}, errno.EPERM),  # TIOCLINUX
    # Pages shared with others, and so a clock to read them by: by prctl for all of the process
    # (PR_SET_MEMORY_MERGE), by madvise for a range (MADV_MERGEABLE), as if without KSM.
    ("prctl", {0: 67}, errno.EPERM),
    ("prctl", {0: 62}, errno.EINVAL),  # PR_SCHED_CORE: the core's other half would stand idle
    ("madvise", {2: 12}, errno.EINVAL),
    # RENAME_WHITEOUT leaves a device node behind, alone or with RENAME_NOREPLACE.
    ("renameat2", {4: 4}, errno.EPERM),
    ("renameat2", {4: 5}, errno.EPERM),
    # POSIX_FADV_DONTNEED: through an overlay it reaches the host's inode, and drops from memory
    # what others use.
    ("fadvise64", {3: 4}, 0),
    # Granted and not done: what is not accepted yet has a buffer of this size, and no owner.
    ("setsockopt", {1: 1, 2: 8}, 0),  # SO_RCVBUF
    # Joining groups, in all its forms: the allow list of options has none of them, this says
    # it in the words of a kernel that lacks it.
    *(
        ("setsockopt", {1: level, 2: option}, errno.ENOPROTOOPT)
        for level, options in ((0, (20, 35, 39, 42, 46)), (41, (20, 27, 42, 46)))
        for option in options
    ),
    # Bridges, VLANs and frame relay: asking for them makes the kernel look for a module.
    *(
        ("ioctl", {1: request}, errno.EPERM)
        for request in (0x8940, 0x8941, 0x8980, 0x8981, 0x8982, 0x8983)
    ),
    # Protocols with a large surface and no use here: DCCP L2TP SCTP UDPLITE SMC MPTCP.
    *(
        ("socket", {2: protocol}, errno.EPROTONOSUPPORT)
        for protocol in (33, 115, 132, 136, 256, 262)
    ),
)

# (system call, argument, bits of it, their value, errno)
FINAL_REFUSED_BITS: tuple[tuple[str, int, int, int, int], ...] = (
    # Huge pages are no limit's; ENOMEM is what a host without any says.
    ("mmap", 3, 0x40000, 0x40000, errno.ENOMEM),  # MAP_HUGETLB
    ("shmget", 2, 0o4000, 0o4000, errno.ENOMEM),  # SHM_HUGETLB
    ("memfd_create", 1, 0x4, 0x4, errno.ENOMEM),  # MFD_HUGETLB
    ("socket", 1, SOCKET_TYPE_MASK, 3, errno.EPERM),  # SOCK_RAW
)

# --- native_v1, besides: these end the process ---------------------------------------------

NATIVE_KILLED = """
    fork vfork socket socketpair accept accept4 bind connect listen
    shmget shmat shmctl semget semop semctl semtimedop msgget msgsnd msgrcv msgctl
    inotify_init inotify_init1 memfd_create
""".split()
CLONE_THREAD = 0x00010000  # clone without it makes a process: killed too

# --- the web process: nothing of this has a use there, and namespaces of its own would open
# most of the kernel to a hole in it; the warden could be made to wait for a file system of it.

WEB_REFUSED = [*KILLED, "ptrace", "userfaultfd", "io_uring_setup", "fanotify_init"]
WEB_REFUSED_NUMBERS = [467]  # open_tree_attr, newer than libseccomp knows by name
# A socket that lingers, sent to the warden, would make its close wait.
WEB_REFUSED_VALUES: tuple[tuple[str, dict[int, int]], ...] = (
    ("setsockopt", {1: 1, 2: 13}),  # SOL_SOCKET: SO_LINGER
)
