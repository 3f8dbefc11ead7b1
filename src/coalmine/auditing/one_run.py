"""The game of many canaries in one training, as part of an audit: played in blocks, stored, judged like every other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from coalmine.adversaries import Adversary, ManyCanaries, identity_of
from coalmine.auditing.facts import AttackFacts
from coalmine.auditing.games import BaseGame
from coalmine.auditing.setting import Setting
from coalmine.errors import UnsupportedError
from coalmine.one_run.adversaries import NO_SCORE
from coalmine.one_run.design import Design, design
from coalmine.one_run.trainings import CanaryTask, Trainings
from coalmine.records import Claim, Relation


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class OneRunGame(BaseGame):
    """Many canaries on one setting, ready to be played: a trial is a canary, a block one training of all of them.

    ``noise`` is the share of the claimed noise that is really trained with; below 1 it is a positive control, whose
    attack takes the claim for true all the same.
    """

    setting: Setting
    attack: ManyCanaries
    noise: float = 1.0

    @classmethod
    def of(
        cls,
        setting: Setting,
        player: Adversary,
        attack: ManyCanaries,
        *,
        identity: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> OneRunGame:
        """The game of this attack; ``identity`` says what shapes a score."""
        known = identity_of(player)
        shaping = {name: value for name, value in known["options"].items() if name not in NO_SCORE}
        shape = {**identity, "adversary": {**known, "options": shaping}}
        facts = AttackFacts(
            name=known["name"],
            options=dict(options),
            relation=Relation.ADD_REMOVE,
            copies=1,
            view=player.threat.view,
            notes=attack.notes,
            powers={key: str(value) for key, value in dataclasses.asdict(player.threat).items()},
            runs=attack.runs,
        )
        return cls(setting=setting, attack=attack, facts=facts, identity=shape, trials=attack.runs * attack.number)

    def control(self, noise: float) -> OneRunGame:
        """The same attack on the training with this share of its noise."""
        return dataclasses.replace(
            self,
            identity={**self.identity, "noise": noise},
            facts=dataclasses.replace(self.facts, control=noise),
            noise=noise,
        )

    def design(self, claim: Claim | None, *, confidence: float) -> Design:
        """Everything that is fixed before a score is seen."""
        if claim is None:
            raise UnsupportedError(
                f"{self.facts.label} needs a claim, for which its guesses are chosen: expected noise, or "
                "audit.claim_epsilon"
            )
        attack = self.attack
        return design(
            claim,
            canaries=self.trials,
            confidence=confidence,
            guess_in=attack.guess_in,
            guess_out=attack.guess_out,
            aim=attack.aim,
            attack=attack.expected,
        )

    def missing(self, done: set[int]) -> Sequence[int]:
        """The trainings that are not stored yet: each is a block."""
        return [block for block in range(self.attack.runs) if block not in done]

    def ready(self, device: str) -> CanaryTask:
        """What plays its trainings, with those of the attacker's own, which are trained once, here."""
        task = self.task(device)
        _ = task.trainings.expected
        return task

    def task(self, device: str) -> CanaryTask:
        """What plays its trainings."""
        setting, attack = self.setting, self.attack
        training = attack.training or setting.training
        return CanaryTask(
            trainings=Trainings(
                network=setting.network,
                base=setting.base,
                training=dataclasses.replace(training, noise_multiplier=self.noise * training.noise_multiplier),
                attack=attack,
                fingerprint=self.run,
                device=device,
            )
        )
