"""A driver with everything imported that starts audits as processes of their own and kills some of them.

Usage: audit_kills.py CONFIG STORE KILLS SEED. Prints how many kills met a process that was at work.
"""

import os
import random
import signal
import sys
import time

import coalmine.auditing.run  # loaded once here, so that the audits below start at once
import coalmine.cli


def start(arguments: list[str]) -> int:
    """Fork an audit into a process group of its own."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os._exit(coalmine.cli.main(arguments))
    return child


def main() -> int:
    config, store, kills, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    arguments = ["audit", config, "--store", store, "--workers", "1", "--json"]
    rng, met = random.Random(seed), 0
    for _ in range(kills):
        child = start(arguments)
        time.sleep(rng.uniform(0.02, 0.5))
        if os.waitpid(child, os.WNOHANG) == (0, 0):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            met += 1
    _, status = os.waitpid(start(arguments), 0)
    print(met)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
