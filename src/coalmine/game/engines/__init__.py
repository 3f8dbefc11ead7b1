"""Where blocks are played: any :class:`coalmine.game.Engine`; on this machine it is :class:`LocalEngine`."""

from coalmine.game.engines.local import LocalEngine

__all__ = ["LocalEngine"]
