"""The gallery: small audits with fixed seeds, played when the book is built. A verdict that differs is an error."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import shlex
import shutil
import tempfile
from pathlib import Path

from coalmine.cli import main

TRAININGS = Path(__file__).with_name("trainings.py")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One report: how it is made, and how the command must end."""

    name: str
    title: str
    words: str
    command: str
    exit_code: int


ENTRIES = (
    Entry(
        name="consistent",
        title="Consistent",
        words="A training that does what it says, and a control with half of its noise that was refuted.",
        command="audit --train trainings:right --score trainings:score --claim-dpsgd 1,2,1 --trials 600 "
        "--control-train trainings:wrong",
        exit_code=0,
    ),
    Entry(
        name="refuted",
        title="Refuted",
        words="The same claim, and a training that adds half of the noise.",
        command="audit --train trainings:wrong --score trainings:score --claim-dpsgd 1,2,1 --trials 600",
        exit_code=1,
    ),
    Entry(
        name="inconclusive",
        title="Inconclusive",
        words="The right training with 40 trials: they could have refuted hardly anything, so nothing can be said.",
        command="audit --train trainings:right --score trainings:score --claim-dpsgd 1,2,1 --trials 40",
        exit_code=3,
    ),
    Entry(
        name="identifiability",
        title="Identifiability",
        words="The attacker that differential privacy assumes: how sure it became in every training, beside the limit.",
        command="audit --adversary identifiability --set data.rows=100 --set training.steps=30 "
        "--set training.sampling=full --set training.target_belief=0.9 --trials 200",
        exit_code=0,
    ),
    Entry(
        name="one-run",
        title="One run",
        words="Two thousand canaries in one training, each with its own coin.",
        command="audit --adversary one-run-white-box:canaries=2000 --set data.rows=500 --set training.steps=10 "
        "--set training.sampling=full --set training.target_epsilon=4",
        exit_code=0,
    ),
    Entry(
        name="probe",
        title="Probe",
        words="One step that clips the mean of its batch instead of each row.",
        command="probe trainings:wrong_step",
        exit_code=1,
    ),
)


def markdown() -> str:
    """A section for each report."""
    return "\n\n".join(
        "\n".join(
            [
                f"## {entry.title}",
                "",
                entry.words,
                "",
                "```sh",
                f"coalmine {entry.command} --report {entry.name}.html",
                "```",
                "",
                f'<p><a href="gallery/{entry.name}.html">Open the report</a></p>',
                f'<iframe class="report" src="gallery/{entry.name}.html" title="{entry.title}"></iframe>',
            ]
        )
        for entry in ENTRIES
    )


def make(folder: Path, *, kept: Path) -> None:
    """Write all reports into a folder; those that nothing has changed for are taken from where they were kept."""
    folder.mkdir(parents=True, exist_ok=True)
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        shutil.copy(TRAININGS, place)
        for entry in ENTRIES:
            key = hashlib.sha256(entry.command.encode()).hexdigest()[:8]
            page = kept / f"{entry.name}-{key}.html"
            if not page.exists():
                _play(entry, page)
            shutil.copy(page, folder / f"{entry.name}.html")


def _play(entry: Entry, page: Path) -> None:
    """Run the command in this folder, and keep its page."""
    store = ["--store", "gallery.db"] if entry.command.startswith("audit") else []
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main([*shlex.split(entry.command), "--report", "page.html", *store])
    if code != entry.exit_code:
        said = out.getvalue()
        raise RuntimeError(f"the gallery's {entry.name} ended with {code}, expected {entry.exit_code}:\n{said}")
    shutil.copy("page.html", page)
