"""The sandbox: the chain of processes between a request and a program that nobody trusts.

    process     runs as                    parent       lives          killed by
    warden      root                       gaoler serve with service   nobody
    jailer      root                       warden       a request      warden
    supervisor  root                       jailer       a task         warden, by cgroup
    init        root, no capability        supervisor   a task         supervisor
    task        leased UID, 1000 inside,   init         a task         supervisor, through init
                no capability

Each module of a process opens with its passport.  `client` is the worker's side; the rest
runs as root and imports the standard library, pyseccomp and cgutils only.
"""
