"""The game: which trials there are, how a block of them is played, and who runs the blocks; without torch."""

from coalmine.game.blocks import ACCURACY, BLOCK_SIZE, WITH_CANARIES, blocks_for, coins_of, trials_of, worlds_of
from coalmine.game.play import play
from coalmine.game.task import Engine, Task, Watcher

__all__ = [
    "ACCURACY",
    "BLOCK_SIZE",
    "WITH_CANARIES",
    "Engine",
    "Task",
    "Watcher",
    "blocks_for",
    "coins_of",
    "play",
    "trials_of",
    "worlds_of",
]
