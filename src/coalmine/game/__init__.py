"""The game: which trials there are, how a block of them is played, and who runs the blocks."""

from coalmine.game.plan import BLOCK_SIZE, blocks_for, trials_of, worlds_of
from coalmine.game.play import ACCURACY, BuiltInTask, GameStoppedError, Task

__all__ = [
    "ACCURACY",
    "BLOCK_SIZE",
    "BuiltInTask",
    "GameStoppedError",
    "Task",
    "blocks_for",
    "trials_of",
    "worlds_of",
]
