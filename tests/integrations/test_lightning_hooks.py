"""What Lightning calls around a step: hooks, callbacks, schedulers and logs count where they show rows.

Seeds are fixed. A right step is refuted with chance 1e-8 at the level of these probes.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from coalmine.errors import InvalidInputError
from coalmine.integrations.lightning import probe

opacus = pytest.importorskip("opacus", reason="needs the extra opacus")
lightning = pytest.importorskip("lightning", reason="needs the extra lightning")
from lightning.pytorch import callbacks as built_in  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning"),  # by Opacus, and meant here
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec"),  # by Lightning, of itself
]
QUICK = {"replays": 20, "tries": 20, "level": 1e-8}


class Private(lightning.LightningModule):
    """A private training; ``logs`` logs its loss."""

    def __init__(self, *, logs=False, scheduler=None, interval="step", columns=None):
        super().__init__()
        network = nn.Linear(6, 3)
        data = TensorDataset(torch.randn(64, 6), torch.arange(64) % 3) if columns is None else TensorDataset(*columns)
        self.network, self.private, self.loader = opacus.PrivacyEngine().make_private(
            module=network,
            optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=16),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        self.logs, self.scheduler, self.interval = logs, scheduler, interval

    def configure_optimizers(self):
        if self.scheduler is None:
            return self.private
        plan = {"scheduler": self.scheduler(self.private), "interval": self.interval, "monitor": "train_loss"}
        return {"optimizer": self.private, "lr_scheduler": plan}

    def train_dataloader(self):
        return self.loader

    def training_step(self, batch):
        loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
        if self.logs:
            self.log("train_loss", loss)
        return loss

    def write(self, rows):
        with torch.no_grad():
            self.network._module.bias.add_(rows.mean() if len(rows) else 0.0)


class WritesAtEnd(Private):
    def on_train_batch_end(self, outputs, batch, number):
        self.write(batch[0])


class WritesAtStart(Private):
    def on_train_batch_start(self, batch, number):
        self.write(batch[0])


class Writer(lightning.Callback):
    """A callback of the user's own that writes rows into a parameter."""

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        module.write(batch[0])


class StartWriter(lightning.Callback):
    def on_train_batch_start(self, trainer, module, batch, number):
        module.write(batch[0])


class Best(lightning.Callback):
    """The best loss, kept by the callback; ``saved`` puts it into checkpoints."""

    def __init__(self, *, saved=False):
        self.best, self.saved = 9.0, saved

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        self.best = min(self.best, float(outputs["loss"]))

    def state_dict(self):
        return {"best": self.best} if self.saved else {}


class Average(lightning.Callback):
    """A moving average of the released weights, as a model and as a dict; ``leaks`` takes rows into the model."""

    def __init__(self, *, leaks=False):
        self.leaks = leaks

    def on_train_start(self, trainer, module):
        self.model = copy.deepcopy(module.network._module)
        self.shadow = {name: one.detach().clone() for name, one in self.model.named_parameters()}

    @torch.no_grad()
    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        for (name, mine), its in zip(self.model.named_parameters(), module.network._module.parameters(), strict=True):
            mine.lerp_(its, 0.1)
            self.shadow[name].lerp_(its, 0.1)
        if self.leaks and len(batch[0]):
            self.model.bias.add_(batch[0].mean())


class SavesToo(built_in.ModelCheckpoint):
    """A checkpoint with a batch hook of the user's own: it would save in every run."""

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        trainer.save_checkpoint("never")


def trainer(*callbacks, **options):
    quiet = {
        "logger": False,
        "enable_checkpointing": any(isinstance(one, built_in.Checkpoint) for one in callbacks),
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return lightning.Trainer(accelerator="cpu", max_epochs=1, callbacks=list(callbacks), **{**quiet, **options})


def probed(module, *callbacks, kept=(), **options):
    return probe(trainer(*callbacks, **options), module, kept=kept, **QUICK)


def plateau(optimizer):
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("made", [WritesAtEnd, WritesAtStart])
def test_a_hook_of_the_module_that_writes_rows_into_a_parameter(made):
    report = probed(made())
    assert "leak beside the noise" in {one.fault for one in report.findings}, report.in_words()


@pytest.mark.parametrize("callback", [Writer, StartWriter])
def test_a_callback_that_writes_rows_into_a_parameter(callback):
    report = probed(Private(), callback())
    assert "leak beside the noise" in {one.fault for one in report.findings}, report.in_words()


def test_a_function_as_a_callback():
    report = probed(Private(), built_in.LambdaCallback(on_train_batch_end=Writer().on_train_batch_end))
    assert str(report.verdict) == "refuted", report.in_words()


def test_a_loss_that_a_callback_keeps():
    report = probed(Private(), Best())
    assert str(report.verdict) == "inconclusive", report.in_words()
    assert "the step also changes callback['Best'].best" in report.in_words()
    assert str(probed(Private(), Best(), kept=("callback['Best'].best",)).verdict) == "consistent"


def test_a_loss_that_a_callback_puts_into_checkpoints():
    report = probed(Private(), Best(saved=True))
    assert any("Best.best" in one.sentence for one in report.findings), report.in_words()


def test_averages_of_released_weights_are_right_and_averages_of_rows_are_not():
    report = probed(Private(), Average())
    assert str(report.verdict) == "consistent", report.in_words()
    report = probed(Private(), Average(leaks=True))
    assert any("Average.model.bias" in one.sentence for one in report.findings), report.in_words()


def test_what_is_logged_is_released():
    report = probed(Private(logs=True))
    said = [one.sentence for one in report.findings if "logged.train_loss" in one.sentence]
    assert any('if nobody outside sees the log, say kept=("logged.train_loss",)' in one for one in said), said
    report = probed(Private(logs=True), kept="logged.train_loss")
    assert str(report.verdict) == "consistent", report.in_words()


def test_what_a_logger_is_given_is_released_and_not_written(tmp_path):
    class Own(Private):
        def on_train_batch_end(self, outputs, batch, number):
            self.logger.log_metrics({"own_loss": float(outputs["loss"])})

    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    report = probed(Own(), logger=logger, log_every_n_steps=1)
    assert any("logged.own_loss" in one.sentence for one in report.findings), report.in_words()
    assert not list(tmp_path.rglob("metrics.csv"))
    assert "log_metrics" not in vars(logger)


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_a_learning_rate_that_follows_the_loss(interval):
    report = probed(Private(logs=True, scheduler=plateau, interval=interval), kept="logged.*")
    assert any("ReduceLROnPlateau.best" in one.sentence for one in report.findings), report.in_words()


def test_learning_rates_by_the_number_of_the_step_are_right():
    def once(optimizer):  # it fails after its last step, and there are four
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=4)

    report = probed(Private(scheduler=once))
    assert str(report.verdict) == "consistent", report.in_words()


def test_callbacks_of_lightning_change_nothing(tmp_path, capsys):
    watching = [
        built_in.LearningRateMonitor(logging_interval="step"),
        built_in.Timer(),
        built_in.ModelCheckpoint(dirpath=tmp_path / "saved", every_n_train_steps=1),
        built_in.ModelSummary(),
        built_in.TQDMProgressBar(),
    ]
    shown = {"enable_progress_bar": True, "enable_model_summary": True, "log_every_n_steps": 1}
    shown["logger"] = CSVLogger(tmp_path)
    report = probed(Private(), *watching, **shown)
    assert str(report.verdict) == "consistent", report.in_words()
    assert not list(tmp_path.rglob("*.ckpt"))


def test_a_hook_that_cannot_be_run_is_named(tmp_path):
    report = probed(Private(), SavesToo(dirpath=tmp_path))
    assert str(report.verdict) == "inconclusive", report.in_words()
    assert "SavesToo.on_train_batch_end may change the training and was not run" in report.in_words()


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")  # by torch, of Opacus's hooks
def test_hooks_are_called_in_lightnings_order_with_its_numbers(capsys):
    class Talking(Private):
        def on_train_batch_start(self, batch, number):
            print("module starts", number)

        def on_before_optimizer_step(self, optimizer):
            print("step")

        def on_train_batch_end(self, outputs, batch, number):
            print("module ends", number)

    class Callback(lightning.Callback):
        def on_train_batch_start(self, trainer, module, batch, number):
            print("callback starts", number)

        def on_train_batch_end(self, trainer, module, outputs, batch, number):
            print("callback ends", number)

    trainer(Callback(), limit_train_batches=1).fit(Talking())
    once = capsys.readouterr().out.splitlines()
    assert once == ["callback starts 0", "module starts 0", "step", "callback ends 0", "module ends 0"]
    probed(Talking(), Callback())
    said = capsys.readouterr().out.splitlines()
    assert said[: 2 * len(once)] == 2 * once
    assert "module ends 7" in said  # in the eighth step


def test_columns_of_one_shape():
    columns = torch.rand(64, 6), torch.rand(64, 6)

    class Twins(Private):
        def training_step(self, batch):
            one, other = batch
            return (self.network(one) - self.network(other)).square().sum(dim=1).mean()

    report = probed(Twins(columns=columns))
    assert str(report.verdict) == "consistent", report.in_words()


def test_an_unknown_part_of_the_promise_is_refused():
    with pytest.raises(InvalidInputError, match="promise = 'sigma' is not allowed: expected one of bounds, build, cl"):
        probe(trainer(), Private(), sigma=2.0)
