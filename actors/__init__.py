"""Who decides when a request runs: the actors, their messages, and the pure rules below them.

An actor here is a thin shell: it receives, lets a pure object of `actors.policy` decide, and
tells.  Nobody asks, so no cycle can dead-lock.  `actors.system` starts and stops them all.
"""
