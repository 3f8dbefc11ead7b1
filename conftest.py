"""What pytest needs to know about the whole project."""

import importlib.util

# The GPU kernels import Triton, which comes with torch's GPU builds alone.
collect_ignore = ["tests/integrations/fine_tunings.py"]  # no test itself, and needs transformers
if not importlib.util.find_spec("triton"):
    collect_ignore += ["src/coalmine/training/kernels.py", "src/coalmine/training/stage_kernels.py"]
