"""Where blocks are played: any :class:`coalmine.game.Engine`.

:class:`LocalEngine`: processes of this machine. :class:`DevicesEngine`: several GPUs of it. :class:`InlineEngine`: this
process. ``coalmine.game.engines.ray.RayEngine``: a Ray cluster.
"""

from coalmine.game.engines.devices import DevicesEngine
from coalmine.game.engines.inline import InlineEngine
from coalmine.game.engines.local import LocalEngine

__all__ = ["DevicesEngine", "InlineEngine", "LocalEngine"]
