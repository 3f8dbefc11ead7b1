"""What a step returns and nobody can read without using it up or running its code: then nothing is known of it."""

from __future__ import annotations

from coalmine.probing.findings import Measurement
from coalmine.probing.release import Release

NAME = "returned values"


def measure(release: Release) -> Measurement | None:
    """What could not be read, by name and type; None where everything was."""
    if not release.unread:
        return None
    (name, kind), *more = release.unread.items()
    what = f"a value of type {kind}" if name == "returned" else f"{name}, of type {kind}"
    others = f" (and {len(more)} more)" if more else ""
    return Measurement(
        name=NAME,
        sentence=f"The step returns {what}{others}, which cannot be read.",
        blind=(
            f"the step returns {what}{others}, which cannot be read without using it up or running its "
            "code, so it is not known whether it shows a row; return the numbers in it instead (a list, a dict, a "
            f'tensor), or say kept=("{name}",) if nobody outside sees it'
        ),
        details={"unread": dict(release.unread)},
    )
