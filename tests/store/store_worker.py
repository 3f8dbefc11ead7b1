"""A process that fills a store as the game does: claim a block, compute its scores from a seed, put it.

Run as ``python store_worker.py STORE FINGERPRINT BLOCKS``; prints "ready" after its first block, at the end how many.
"""

import sys
import time

import numpy as np

from coalmine.store import BlockResult, Store

TRIALS = 8


def block_result(index: int) -> BlockResult:
    rng = np.random.default_rng([7, index])
    trial = np.arange(TRIALS * index, TRIALS * (index + 1))
    return BlockResult(
        trial=trial,
        world=trial % 2,
        score=rng.normal(size=TRIALS),
        elapsed=0.001,
        device="cpu",
        columns={"loss": rng.exponential(size=TRIALS)},
    )


def main(path: str, fingerprint: str, blocks: int) -> None:
    with Store.open(path) as store:
        store.register(fingerprint, {"blocks": blocks})
        stored = 0
        while True:
            pending = sorted(set(range(blocks)) - store.done(fingerprint))
            if not pending:
                break
            while claimed := store.claim(fingerprint, pending, limit=4):
                for index in claimed:
                    stored += store.put(fingerprint, index, block_result(index))
                    if stored == 1:
                        print("ready", flush=True)
                pending = [index for index in pending if index > claimed[-1]]
            time.sleep(0.01)
        print(stored, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
