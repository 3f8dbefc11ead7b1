"""Every fault that the probe of a step can name: what it means, and where to look. The list is closed."""

from __future__ import annotations

import dataclasses
from enum import StrEnum

from coalmine.probing.findings import Finding


class Stage(StrEnum):
    """Where in a private training a fault lies, in the order of the data's way."""

    SETUP = "set up"
    SAMPLE = "sample"
    GRADIENTS = "gradients"
    CLIP = "clip"
    SUM = "add up"
    NOISE = "noise"
    DIVIDE = "divide"
    OPTIMIZER = "optimizer"
    RELEASE = "release"
    ACCOUNT = "account"


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault: a short name, what it means for the promise, where its cause usually is, and the stage it lies in."""

    name: str
    meaning: str
    look_at: str
    stage: Stage


NO_NOISE = Fault(
    "no noise",
    "Nothing that the step releases carries noise. Whoever sees two releases can subtract them and reads a row's "
    "gradient.",
    "whether the private optimizer is the one that is stepped, and whether its noise multiplier reaches it",
    Stage.NOISE,
)
NOISE_TOO_SMALL = Fault(
    "noise too small",
    "The noise is smaller than σ times what one row may change, so the real noise multiplier is smaller than the one "
    "that is accounted for.",
    "the factor before the noise: σ·C on the sum, or σ·C divided by the same divisor as the gradients on the mean",
    Stage.NOISE,
)
NOISE_BEFORE_CLIPPING = Fault(
    "noise before clipping",
    "Noise is clipped together with gradients. A large row pushes the noise out of the sum.",
    "the order: clip each row, add up, then add noise",
    Stage.CLIP,
)
NOT_NORMAL = Fault(
    "noise is not normal",
    "The noise does not follow the normal distribution that the accounting rests on.",
    "the call that draws the noise, and anything that rounds, truncates or clips it afterwards",
    Stage.NOISE,
)
SHARED_NOISE = Fault(
    "shared noise",
    "Numbers that should have independent noise have the same. Their difference is released without any.",
    "generators that are seeded again, keys that are used twice, noise that is broadcast along an axis or drawn in "
    "fewer dimensions",
    Stage.NOISE,
)
SAME_NOISE = Fault(
    "same noise every step",
    "Two steps add the same noise. The difference of their releases has none.",
    "a seed that is set inside the step, and generators that are made anew in each step",
    Stage.NOISE,
)
KNOWN_SEED = Fault(
    "noise from a known seed",
    "The step seeds its noise itself, with a number that follows from its own state, such as the number of the step. "
    "Whoever knows the program computes the noise and takes it off.",
    "seeds that are set inside the step; make the generator once, before the training, or draw each seed from the "
    "system (secrets, os.urandom)",
    Stage.NOISE,
)
NOISE_DEPENDS = Fault(
    "noise depends on the data",
    "The rows of the batch change the noise itself, so its size is a release without noise.",
    "clip norms, learning rates or scales computed from the batch, noise that is added once for each part of it, and "
    "steps that are left out for some rows",
    Stage.NOISE,
)
UNNOISED = Fault(
    "unnoised tensor",
    "A tensor that the step changes depends on the rows and carries no noise.",
    "parameters outside the private optimizer, buffers that follow the data (running statistics), and optimizer state "
    "that is updated before the noise is added",
    Stage.RELEASE,
)
PARTLY_NOISED = Fault(
    "leak beside the noise",
    "A tensor carries noise, but the rows reach it by a second way that the noise does not cover.",
    "what the step computes from raw gradients or losses: adaptive rates, scales, regularizers",
    Stage.RELEASE,
)
RETURNED = Fault(
    "exact value returned",
    "The step returns a number that follows from the rows without noise, such as the training loss. What is logged or "
    "decides when to stop is released.",
    "what the step returns; name it in `kept` if nobody outside sees it, or add noise and account for it",
    Stage.RELEASE,
)
GENERATOR = Fault(
    "generator state is released",
    "The step releases the state of the generator that its noise comes from. Whoever has it computes the noise, and "
    "that of all later steps, and takes it off.",
    "what checkpoints hold (torch.get_rng_state, np.random.get_state, random.getstate): keep it apart from what "
    "anybody else sees; name it in `kept` if nobody does",
    Stage.RELEASE,
)
NO_CLIPPING = Fault(
    "no clipping",
    "A row's influence grows with the row. No noise is enough.",
    "whether per-row gradients are clipped at all, and whether raw gradients are added beside the clipped ones",
    Stage.CLIP,
)
PER_LAYER = Fault(
    "clipping per layer",
    "Each layer is clipped to C by itself, so all L layers together move by up to C·√L.",
    "the norm that the factor is computed from: over all parameters of a row, or C/√L for each layer",
    Stage.CLIP,
)
TOO_SENSITIVE = Fault(
    "sensitivity too large",
    "One row moves the sum further than the accounting assumes.",
    "the norm of a row's gradient: every parameter in it, in the same units as the clip norm",
    Stage.CLIP,
)
MICROBATCH = Fault(
    "microbatch clipping",
    "Rows are clipped in groups, not one by one. One row can turn the whole group's gradient, which moves by up to 2C.",
    "where gradients are averaged before they are clipped; microbatches of one row",
    Stage.CLIP,
)
INTERACT = Fault(
    "rows interact",
    "What one row adds depends on the other rows, so clipping each row does not bound what one of them does.",
    "batch normalization, statistics of the batch (means, class weights, vocabularies), tensors that rows share",
    Stage.GRADIENTS,
)
DIVISOR = Fault(
    "divisor depends on the data",
    "The sum is divided by a number that follows from the data, such as the size of this batch or of the data set. One "
    "row more rescales everything, noise included.",
    "divide by a constant: the expected batch size, fixed before the data are seen",
    Stage.DIVIDE,
)
CARRIED_OVER = Fault(
    "carried over between steps",
    "A step's release depends on an earlier batch in another way than through what was already released: two batches "
    "share one noise, or raw gradients live on.",
    "gradients that are not set to zero, batches gathered before one noise but counted as steps, raw momentum",
    Stage.SUM,
)
EMPTY_BATCH = Fault(
    "empty batch",
    "Poisson sampling draws empty batches, and the step fails on them, releases no noise or leaves them out. That a "
    "batch was empty is then visible.",
    "divisions by the number of rows, and early returns; an empty batch is noise alone",
    Stage.SAMPLE,
)
NOT_FINITE = Fault(
    "NaN leaks",
    "One row makes the release infinite or NaN. That training broke tells that the row was there.",
    "per-row gradients that are not finite: set them to zero before they are clipped",
    Stage.GRADIENTS,
)
LEFT_OUT = Fault(
    "step left out",
    "One row makes the step leave out its update. That nothing moved tells that the row was there.",
    "GradScaler and other guards against overflow: clip rows one by one, and never skip the noise",
    Stage.OPTIMIZER,
)
FAILS = Fault(
    "step fails on a row",
    "One row makes the step raise an error. That training stopped tells that the row was there.",
    "checks inside the step; a row that is not allowed must be left out silently, before sampling",
    Stage.GRADIENTS,
)
REPLACED = Fault(
    "replaced rows count twice",
    "Replacing a row takes one gradient out and puts another in: the sum moves by up to 2C, but C is accounted for.",
    "the relation of the accounting: add or remove one row, or a sensitivity of 2C",
    Stage.ACCOUNT,
)
SETUP = Fault(
    "setup depends on the data",
    "Before the first step, something is computed from the private rows and never protected: a vocabulary, a "
    "standardization, class weights, a sampling rate.",
    "what the builder reads from the data set; use public constants",
    Stage.SETUP,
)

UNIT = Fault(
    "wrong divisor",
    "Rows and noise are both larger, or both smaller, than promised by one factor: beside each other they are right, "
    "but the step does not divide by what was said, or has another learning rate.",
    "divisor and learning_rate as promised, and the clip norm that the step really has",
    Stage.DIVIDE,
)

FAULTS: tuple[Fault, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Fault))
"""In the order in which they are explained."""


def by_name(name: str) -> Fault | None:
    """The fault of that name; None for one that another meter names.

    >>> by_name("no noise").stage.value
    'noise'
    """
    return next((one for one in FAULTS if one.name == name), None)


def finding(
    fault: Fault,
    sentence: str,
    *,
    number: float | None = None,
    allowed: float | None = None,
    witness: str = "",
    level: float = 0.0,
    first: str = "",
) -> Finding:
    """A finding of this fault; ``first`` is where to look before the fault's usual place.

    >>> finding(NO_NOISE, "Nothing carries noise.").fault
    'no noise'
    """
    return Finding(
        fault=fault.name,
        sentence=sentence,
        look_at=f"{first}; then {fault.look_at}" if first else fault.look_at,
        number=number,
        allowed=allowed,
        witness=witness,
        level=level,
    )
