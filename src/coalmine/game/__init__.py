"""The game: which trials there are, how a block of them is played, and who runs the blocks; without torch."""

from coalmine.game.blocks import ACCURACY, BLOCK_SIZE, WITH_CANARIES, blocks_for, trials_of, worlds_of
from coalmine.game.play import BlocksFailedError, play
from coalmine.game.task import Engine, GameStoppedError, Task, Watcher, WorkersDiedError

__all__ = [
    "ACCURACY",
    "BLOCK_SIZE",
    "WITH_CANARIES",
    "BlocksFailedError",
    "Engine",
    "GameStoppedError",
    "Task",
    "Watcher",
    "WorkersDiedError",
    "blocks_for",
    "play",
    "trials_of",
    "worlds_of",
]
