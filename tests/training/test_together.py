"""Work of several threads in one launch: who goes with whom, and who hears of what."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from coalmine.training.together import Together


class Launches:
    """Work that keeps what went together, and waits until it may end."""

    def __init__(self, *, fails=()):
        self.seen, self.fails = [], fails
        self.may_end = threading.Event()

    def __call__(self, items):
        self.seen.append(sorted(items))
        assert self.may_end.wait(timeout=30)
        if any(item in self.fails for item in items):
            raise RuntimeError("broken")
        return [item + 100 for item in items]


def ask(together, threads, items, *, launches, work, before=0):
    """Have threads ask for these (item, kind, size), and wait until all of them wait or work."""
    asked = [threads.submit(together, item, kind=kind, size=size) for item, kind, size in items]
    until = time.monotonic() + 30
    while len(work.seen) < launches or sum(map(len, work.seen)) + len(together._waiting) < before + len(items):
        assert time.monotonic() < until
        time.sleep(0.001)
    return asked


def test_what_waits_goes_together_if_it_is_of_one_kind_and_fits():
    work = Launches()
    together = Together(work, room=12)
    with ThreadPoolExecutor(8) as threads:
        first = ask(together, threads, [(0, "a", 4)], launches=1, work=work)
        others = []
        for number, item in enumerate([(1, "a", 1), (2, "b", 1), (3, "a", 2), (4, "a", 2), (5, "b", 4)]):
            others += ask(together, threads, [item], launches=1, work=work, before=1 + number)
        time.sleep(0.05)
        assert work.seen == [[0]]  # five of each kind are less than half of the room
        others += ask(together, threads, [(6, "a", 4)], launches=2, work=work, before=6)
        work.may_end.set()
        assert [one.result() for one in first + others] == [100, 101, 102, 103, 104, 105, 106]
    assert work.seen == [[0], [1, 3, 4, 6], [2, 5]]


def test_what_does_not_fit_goes_next():
    work = Launches()
    together = Together(work, room=10)
    sizes = {1: 4, 2: 4, 3: 2, 4: 4}
    with ThreadPoolExecutor(8) as threads:
        first = ask(together, threads, [(0, "a", 9), (9, "a", 9)], launches=2, work=work)
        others = ask(together, threads, [(i, "a", size) for i, size in sizes.items()], launches=2, work=work, before=2)
        work.may_end.set()
        assert [one.result() for one in first + others] == [100, 109, 101, 102, 103, 104]
    assert sorted(item for one in work.seen[2:] for item in one) == [1, 2, 3, 4]
    assert len(work.seen) == 4
    assert all(sum(sizes[item] for item in one) <= 10 for one in work.seen[2:])


def test_nobody_waits_for_company_where_nobody_works():
    work = Launches()
    work.may_end.set()
    together = Together(work, room=10)
    assert [together(item, kind="a", size=1) for item in range(3)] == [100, 101, 102]
    assert work.seen == [[0], [1], [2]]


def test_two_may_work_at_once_and_not_three():
    work = Launches()
    together = Together(work, room=1)
    with ThreadPoolExecutor(3) as threads:
        asked = ask(together, threads, [(i, "a", 1) for i in range(3)], launches=2, work=work)
        time.sleep(0.05)
        assert len(work.seen) == 2
        work.may_end.set()
        assert [one.result() for one in asked] == [100, 101, 102]


def test_work_larger_than_the_room_goes_alone():
    work = Launches()
    work.may_end.set()
    assert Together(work, room=4)(1, kind="a", size=9) == 101


def test_an_error_is_that_of_all_in_the_launch_and_of_nobody_else():
    work = Launches(fails=(2,))
    together = Together(work, room=10)
    with ThreadPoolExecutor(4) as threads:
        first = ask(together, threads, [(0, "a", 1)], launches=1, work=work)
        others = ask(together, threads, [(1, "a", 1), (2, "a", 1), (3, "b", 1)], launches=1, work=work, before=1)
        work.may_end.set()
        assert first[0].result() == 100
        for one in others[:2]:
            with pytest.raises(RuntimeError, match="broken"):
                one.result()
        assert others[2].result() == 103
    assert together(7, kind="a", size=1) == 107  # and it goes on


def test_under_many_threads_everyone_gets_the_answer_to_what_they_asked():
    together = Together(lambda items: [item * item for item in items], room=7)
    with ThreadPoolExecutor(16) as threads:
        asked = [threads.submit(together, i, kind=i % 3, size=1 + i % 4) for i in range(2000)]
        assert [one.result(timeout=60) for one in asked] == [i * i for i in range(2000)]
