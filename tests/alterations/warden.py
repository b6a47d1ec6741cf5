"""`python -m tests.alterations.warden SPEC LIFELINE READY ALTERATION…`: a warden that is altered.

The service's own entry knows nothing of this: what the tests take out or break is done here,
in a process that root starts by hand, before the warden's `main` is called.  Everything that
the warden forks inherits it.  An alteration is `module:name` or `module:name:argument`, a
function of a module of this folder that replaces code of the sandbox.
"""

from __future__ import annotations

import importlib
import sys

from gaoler.sandbox import warden


def alter(alteration: str) -> None:
    module, name, *argument = alteration.split(":", 2)
    getattr(importlib.import_module(f"tests.alterations.{module}"), name)(*argument)


if __name__ == "__main__":
    for each in sys.argv[4:]:
        alter(each)
    del sys.argv[4:]
    sys.exit(warden.main())
