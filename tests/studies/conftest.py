"""Where the trainings of a study are played in tests: a store of their own, this process, nobody looking."""

import pytest

from coalmine.auditing.config import Execution
from coalmine.game import Watcher
from coalmine.game.engines import LocalEngine
from coalmine.store import Store
from coalmine.studies import Bench


@pytest.fixture
def bench(tmp_path):
    with Store.open(tmp_path / "trials.db") as store, LocalEngine(1) as engine:
        yield Bench(store=store, how=Execution(workers=1), watcher=Watcher(), engine=engine)
