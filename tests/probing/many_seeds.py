"""All bugs and all right twins over many seeds: ``python tests/probing/many_seeds.py 20``."""

import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
warnings.simplefilter("ignore")

from trainers.cases import CASES, RIGHT, made  # noqa: E402

from coalmine.probing.probe import probe  # noqa: E402


def main(seeds):
    began, probes, wrong = time.process_time(), 0, 0
    for seed in range(seeds):
        for case in CASES:
            found = {one.fault for one in probe(made(case.broken, seed)).findings}
            probes, missing = probes + 1, {fault.name for fault in case.faults} - found
            if missing:
                wrong += 1
                print(f"missed: seed {seed}, {case.name}: {missing}; found {found}", flush=True)
        for build in RIGHT:
            found = probe(made(build, seed)).findings
            probes += 1
            if found:
                wrong += 1
                print(f"false alarm: seed {seed}, {build.__name__}: {[one.sentence for one in found]}", flush=True)
    print(f"{probes} probes, {wrong} wrong, {(time.process_time() - began) / probes:.2f} s of processor time each")
    return wrong


if __name__ == "__main__":
    sys.exit(1 if main(int(sys.argv[1]) if len(sys.argv) > 1 else 2) else 0)
