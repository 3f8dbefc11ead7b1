"""Audit the private training of a language model by one run: 500 canaries that each end in a token of their own.

    python examples/language_model_one_run.py

A GPT-2 with random weights (no download) is trained with Opacus on made-up text, once with the noise that is claimed
and once with a quarter of it: the positive control, which must be refuted. Fresh sequences, which no training has seen,
are scored beside the canaries: they must prove nothing.
"""

import warnings

import numpy as np
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from transformers import GPT2Config, GPT2LMHeadModel

import coalmine
from coalmine.integrations.transformers import IGNORED, canary_scores, row_losses

ROWS, VOCABULARY, LENGTH = 750, 50, 8
CLIP, LEARNING_RATE, DELTA = 1.0, 0.1, 1e-5
CLAIM = coalmine.DpSgd(sample_rate=0.25, noise_multiplier=2.0, steps=40)  # constants: nothing is read off the data


def text(rows=ROWS):
    """Rows of tokens: walks through the vocabulary in small steps."""
    rng = np.random.default_rng(0)
    start, steps = rng.integers(0, VOCABULARY, (rows, 1)), rng.integers(-2, 3, (rows, LENGTH - 1))
    return np.concatenate([start, start + np.cumsum(steps, axis=1)], axis=1) % VOCABULARY


def network(tokens):
    """The model before the training: the same for everybody, because it does not depend on the data."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        sizes = {"n_positions": LENGTH, "n_embd": 32, "n_layer": 1, "n_head": 2}
        no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        made = GPT2LMHeadModel(GPT2Config(vocab_size=tokens, bos_token_id=0, eos_token_id=0, **sizes, **no_dropout))
    with torch.no_grad():
        made.transformer.wte.weight[VOCABULARY:] = 0.0  # new tokens begin alike
    return made


def train(model, rows, *, noise_multiplier, seed):
    """DP-SGD with Opacus: Poisson sampling, each row's own loss, a constant divisor, noise for an empty batch."""
    if seed is not None:
        torch.manual_seed(seed)
    rows = torch.from_numpy(rows)
    rate, steps = CLAIM.sample_rate, CLAIM.steps
    private = GradSampleModule(model.train())
    optimizer = DPOptimizer(
        torch.optim.SGD(private.parameters(), lr=LEARNING_RATE),
        noise_multiplier=noise_multiplier,
        max_grad_norm=CLIP,
        expected_batch_size=rate * ROWS,
    )
    for drawn in UniformWithReplacementSampler(num_samples=len(rows), sample_rate=rate, steps=steps):
        optimizer.zero_grad()
        batch = rows[drawn]
        if len(batch):
            positions = torch.arange(LENGTH).expand(len(batch), -1)  # each row has its own
            labels = batch.masked_fill(positions < LENGTH - 1, IGNORED)  # a question, and the last token its answer
            row_losses(private(input_ids=batch, position_ids=positions).logits, labels).mean().backward()
        else:
            for one in optimizer.params:
                one.grad_sample = one.new_zeros((0, *one.shape))
        optimizer.step()
    return model


def audit(*, noise_multiplier=CLAIM.noise_multiplier, canaries=500, control=None, seed=None):
    """One training and its verdict; the second result is that of the fresh sequences."""
    question = np.arange(LENGTH - 1)[
        None
    ]  # one for all: what the model says about their answers differs by these alone
    drawn = coalmine.one_run.canaries.new_tokens(
        vocabulary=VOCABULARY, length=LENGTH, canaries=2 * canaries, prefixes=question
    )
    chosen, fresh = drawn.take(np.arange(canaries)), drawn.take(np.arange(canaries, 2 * canaries))
    claim = coalmine.MechanismClaim(mechanism=CLAIM, delta=DELTA)
    run = coalmine.one_run.begin(chosen, claim=claim, x=text(), seed=seed)

    start, model = network(VOCABULARY + 2 * canaries), network(VOCABULARY + 2 * canaries)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch about hooks
        train(model, run.x, noise_multiplier=noise_multiplier, seed=seed)

    def scores(sequences):  # how much the training lowered the loss on the last token
        return canary_scores(model, sequences.x, last=1) - canary_scores(start, sequences.x, last=1)

    return run.judge(scores(run.canaries), control=control), run.judge_fresh(scores(fresh))


if __name__ == "__main__":
    broken, _ = audit(noise_multiplier=CLAIM.noise_multiplier / 4)
    print(f"a quarter of the noise: {broken.verdict}, ε ≥ {broken.epsilon:.2f}")
    result, control = audit(control=broken.scores)
    print(f"as claimed: {result.verdict}, ε ≥ {result.epsilon:.2f}; fresh sequences: ε ≥ {control.epsilon:.2f}")
