"""The game of many canaries in one training, as part of an audit: played in blocks, stored, judged like every other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from coalmine.adversaries import Adversary, ManyCanaries, identity_of
from coalmine.auditing.facts import AttackFacts, fingerprint
from coalmine.auditing.setting import Setting
from coalmine.auditing.stored import Member
from coalmine.errors import UnsupportedError
from coalmine.game import Engine, Watcher, play
from coalmine.game.machine import versions
from coalmine.one_run.adversaries import NO_SCORE
from coalmine.one_run.design import Design, design
from coalmine.one_run.trainings import CanaryTask, Trainings
from coalmine.records import Claim, Relation
from coalmine.store import Store, Trials
from coalmine.training import device_named


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class OneRunGame:
    """Many canaries on one setting, ready to be played: a trial is a canary, a block one training of all of them.

    ``noise`` is the share of the claimed noise that is really trained with; below 1 it is a positive control, whose
    attack takes the claim for true all the same.
    """

    setting: Setting
    attack: ManyCanaries
    facts: AttackFacts
    identity: Mapping[str, Any]
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
        return cls(setting=setting, attack=attack, facts=facts, identity=shape)

    @property
    def trials(self) -> int:
        """Canaries, all runs together."""
        return self.attack.runs * self.attack.number

    @property
    def run(self) -> str:
        """The run's fingerprint."""
        return fingerprint(self.identity)

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

    def member(self, control: OneRunGame | None = None, *, design: Design) -> Member:
        """The run as part of an audit."""
        return Member(
            run=self.run,
            attack=self.facts,
            wanted=self.trials,
            design=design,
            control=control.member(design=design) if control else None,
        )

    def register(self, store: Store) -> None:
        """Make the run known to the store."""
        store.register(
            self.run, {"identity": dict(self.identity), "attack": self.facts.to_dict(), "versions": versions()}
        )

    def play(self, store: Store, *, engine: Engine, device: str, watcher: Watcher) -> Trials:
        """Train what is not stored yet."""
        device_named(device)
        task = self.task(device)
        label = self.facts.label if self.noise == 1.0 else f"control: {self.facts.label}"
        watcher.begin(label, trials=self.trials, copies=0, done=store.parts(self.run, below=self.trials))
        done = store.done(self.run)
        missing = tuple(block for block in range(self.attack.runs) if block not in done)
        if missing:
            _ = task.trainings.expected  # once, here: the trainings of the attacker's own travel with the task
            play(task, blocks=missing, store=store, engine=engine, watcher=watcher)
        watcher.end()
        return store.scores(self.run, below=self.trials)

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
