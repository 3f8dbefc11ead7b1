"""``python -m coalmine`` is the ``coalmine`` command."""

import sys

from coalmine.cli import main

sys.exit(main())
