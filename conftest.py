"""What pytest needs to know about the whole project."""

import importlib.util

# The GPU kernels import Triton, which comes with torch's GPU builds alone.
collect_ignore = [] if importlib.util.find_spec("triton") else ["src/coalmine/training/kernels.py"]
