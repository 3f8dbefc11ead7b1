"""Probe the step of a Lightning training with Opacus, and of one that steps the ordinary optimizer.

python examples/lightning_training.py
"""

import lightning
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from coalmine.integrations.lightning import probe

NOISE_MULTIPLIER, CLIP = 1.0, 1.0


def data():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TensorDataset(torch.randn(64, 6), torch.arange(64) % 3)


class Private(lightning.LightningModule):
    """Made private where Lightning asks for the optimizer, and for the loader."""

    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.made = None

    def make_private(self):
        if self.made is None:
            self.made = PrivacyEngine().make_private(
                module=self.network,
                optimizer=torch.optim.SGD(self.network.parameters(), lr=0.1),
                data_loader=DataLoader(data(), batch_size=16),
                noise_multiplier=NOISE_MULTIPLIER,
                max_grad_norm=CLIP,
            )
            self.network = self.made[0]
        return self.made

    def configure_optimizers(self):
        return self.make_private()[1]

    def train_dataloader(self):
        return self.make_private()[2]

    def training_step(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self.network(x), y)


class OrdinaryOptimizer(Private):
    """The private optimizer is made, and Lightning is given the ordinary one inside it."""

    def configure_optimizers(self):
        return self.make_private()[1].original_optimizer


def probed(module, **options):
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, **quiet)
    return probe(trainer, module, clip_norm=CLIP, noise_multiplier=NOISE_MULTIPLIER, divisor=16, **options)


if __name__ == "__main__":
    for module in (Private(), OrdinaryOptimizer()):
        print(probed(module).in_words(), "\n")
