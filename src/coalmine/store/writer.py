"""A thread that stores blocks while training goes on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from coalmine.store.records import BlockResult
from coalmine.store.sqlite import Store


class Writer:
    """Stores blocks in a thread of its own: training does not wait for the disk.

    Blocks that arrive while the disk is busy are stored together in the next transaction, so that a slow disk gets
    fewer and larger ones. ``on_stored`` is called (in that thread) with the indices of blocks once they are on the
    disk: only then they are done. Leaving the context waits until everything is stored. An error, of the store or of
    ``on_stored``, is raised by the next :meth:`put` or on leaving.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Store.open(f"{folder}/coalmine.db") as store:
    ...     store.register("c0ffee00", {})
    ...     with Writer(store, "c0ffee00") as writer:
    ...         writer.put(0, BlockResult(trial=[0], world=[1], score=[2.5], elapsed=0.1, device="cpu"))
    ...     store.scores("c0ffee00").score.tolist()
    [2.5]
    """

    def __init__(
        self, store: Store, fingerprint: str, *, on_stored: Callable[[tuple[int, ...]], object] | None = None
    ) -> None:
        self._store = store
        self._fingerprint = fingerprint
        self._on_stored = on_stored
        self._queue: queue.SimpleQueue[tuple[int, BlockResult] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="coalmine-store-writer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.put(None)
        self._thread.join()
        if error is None and self._error is not None:
            raise self._error

    def put(self, block: int, result: BlockResult) -> None:
        """Hand over a finished block; returns at once."""
        if self._error is not None:
            raise self._error
        self._queue.put((block, result))

    def _work(self) -> None:
        """Store what has arrived, until told to stop. After an error nothing more is stored, so that none is hidden."""
        stopping = False
        while not stopping:
            waiting = [self._queue.get()]
            while not self._queue.empty():
                waiting.append(self._queue.get())
            stopping = None in waiting
            blocks = dict(item for item in waiting if item is not None)
            if blocks and self._error is None:
                try:
                    self._store.put_many(self._fingerprint, blocks)
                    if self._on_stored is not None:
                        self._on_stored(tuple(blocks))
                except BaseException as error:  # noqa: BLE001  handed to the thread that trains
                    self._error = error
