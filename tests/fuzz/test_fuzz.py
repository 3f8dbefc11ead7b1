"""A few hundred generated bad inputs: refused with one line or accepted; no traceback, no exit 1, no hang."""

import collections
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).with_name("fuzz_run.py")


def test_a_sample_of_bad_inputs_is_refused_with_words(tmp_path):
    # A process of its own: every case is a fork of it, and there must be no threads and little memory to copy.
    done = subprocess.run(
        [sys.executable, str(RUN), "--inputs", "400", "--seed", "1", "--quick", "--workers", "1"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    counted = done.stdout.splitlines()[-2]
    counts = collections.Counter({name: int(count) for name, count in (part.split() for part in counted.split(", "))})
    assert counts["refused"] > 200  # the inputs are bad ...
    assert counts["accepted"] > 20  # ... but not so bad that nothing gets past the first check
