"""What a step keeps beside its state: on modules, optimizers, functions, classes, in defaults and in other modules."""

import functools
import types

import pytest
import torch
from torch.func import functional_call, grad, vmap

from coalmine.probing.probe import probe
from coalmine.records import Outcome

OPTIONS = {"replays": 40, "tries": 20, "level": 1e-8, "clip_norm": 1.0, "noise_multiplier": 1.0, "divisor": 8.0}
ROWS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


class Weight(torch.nn.Module):
    """A linear model, whose rows are their own gradients."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 1, bias=False)
        self.last = None


class Log:
    history = []  # noqa: RUF012  # that is the bug
    best = 0.0


class Given:
    """A right step with a place for something that it should not keep."""

    def __init__(self, keep):
        self.net, self.keep = Weight(), keep
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1.0)

    def __call__(self, rows):
        clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        self.net.inner.weight.grad = (clipped.sum(dim=0, keepdim=True) + torch.randn(1, 3)) / 8
        self.optimizer.step()
        self.keep(self, float(rows.nan_to_num(0, 0, 0).sum()))


def probed(keep, **more):
    given = Given(keep)
    return probe(given, state=[given.net, given.optimizer], batch=ROWS, **OPTIONS, **more)


def on_the_net(given, loss):
    given.net.last = loss


def on_a_layer(given, loss):
    given.net.inner.last = torch.tensor(loss)


def in_a_list_of_the_net(given, loss):
    given.net.history = [loss]


def on_the_optimizer(given, loss):
    given.optimizer.last = loss


def in_the_state_of_the_optimizer(given, loss):
    given.optimizer.state["losses"] = [loss]


def on_a_class(given, loss):
    Log.best = loss


def in_a_list_of_a_class(given, loss):
    Log.history.append(loss)


def on_a_function(given, loss):
    on_a_function.best = loss


def in_a_default(given, loss, log=[]):  # noqa: B006  # that is the bug
    log.append(loss)


def in_a_named_default(given, loss, *, log={}):  # noqa: B006
    log["loss"] = loss


MODULE = types.ModuleType("settings_of_the_user")
MODULE.__file__ = __file__
MODULE.best = 0.0


def on_a_module(given, loss):
    MODULE.best = loss


def helper(loss, log=[]):  # noqa: B006
    log.append(loss)


def by_a_helper(given, loss):
    helper(loss)


@torch.no_grad()
def under_a_decorator(given, loss, log=[]):  # noqa: B006
    log.append(loss)


PLACES = [
    (on_the_net, "net.last"),
    (on_a_layer, "net.inner.last"),
    (in_a_list_of_the_net, "net.history[0]"),
    (on_the_optimizer, "optimizer.last"),
    (in_the_state_of_the_optimizer, "optimizer.state['losses'][0]"),
    (on_a_class, "Log.best"),
    (in_a_list_of_a_class, "Log.history[0]"),
    (on_a_function, "on_a_function.best"),
    (in_a_default, "log[0]"),
    (in_a_named_default, "log['loss']"),
    (on_a_module, "MODULE.best"),
    (by_a_helper, "log[0]"),
    (under_a_decorator, "log[0]"),
    (functools.partial(lambda log, given, loss: log.append(loss), []), "argument 0[0]"),
]


@pytest.mark.parametrize(("keep", "name"), PLACES, ids=[name for _, name in PLACES])
def test_what_is_kept_in_any_place_is_named(keep, name):
    report = probed(keep)
    assert report.verdict.outcome is Outcome.INCONCLUSIVE, report.in_words()
    assert f"the step also changes {name}, which is not in state" in report.in_words()
    kept = probed(keep, kept=(name,))
    assert kept.verdict.outcome is Outcome.CONSISTENT, kept.in_words()


def test_everything_is_put_back_there_too():
    for keep in (on_a_class, in_a_list_of_a_class, on_a_function, on_a_module, in_a_default, in_a_named_default):
        probed(keep)
    assert (Log.best, Log.history, vars(on_a_function), MODULE.best) == (0.0, [], {}, 0.0)
    assert (in_a_default.__defaults__, in_a_named_default.__kwdefaults__) == (([],), {"log": {}})


def counts(given, loss):
    given.net.steps = getattr(given.net, "steps", 0) + 1
    given.optimizer.norm = float(given.net.inner.weight.grad.norm())  # of what is released
    Log.best = 1.0


def test_what_says_nothing_of_a_row_passes():
    report = probed(counts)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()
    assert Log.best == 0.0


class Caching(torch.nn.Module):
    """A model that keeps its last input, which is dead once ``vmap`` has ended."""

    def __init__(self):
        super().__init__()
        self.inner, self.cache = torch.nn.Linear(3, 2), None

    def forward(self, rows):
        self.cache = rows.detach().mean(0)
        return self.inner(rows)


@pytest.mark.parametrize("reads", [False, True])
def test_a_cache_that_is_dead_is_passed_over_and_one_that_is_not_is_named(reads):
    net = Caching()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)

    def loss(parameters, row):
        return functional_call(net, parameters, (row[None],)).square().sum()

    def step(rows):
        each = vmap(grad(loss), in_dims=(None, 0))({k: v.detach() for k, v in net.named_parameters()}, rows)
        size = torch.sqrt(sum(one.flatten(1).square().sum(1) for one in each.values())).clamp(min=1.0)
        for name, one in net.named_parameters():
            total = (each[name] / size.view(-1, *[1] * one.ndim)).sum(0)
            one.grad = (total + torch.randn_like(total)) / 8
        optimizer.step()
        if reads and len(rows):
            net(rows)

    report = probe(step, state=[net, optimizer], batch=ROWS, **OPTIONS)
    assert report.verdict.outcome is (Outcome.INCONCLUSIVE if reads else Outcome.CONSISTENT), report.in_words()
    assert ("net.cache" in report.in_words()) == reads
