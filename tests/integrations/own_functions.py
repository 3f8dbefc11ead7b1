"""Functions as a user would write them: right ones, and ones that go wrong in every way."""

import os
import signal
import threading
import time

import numpy as np

from coalmine import neighbours


def worlds():
    return neighbours(np.zeros(3), 1.0)


def train(dataset, seed, sigma=0.1):
    return dataset.sum() + sigma * np.random.default_rng(seed).normal()


def right(dataset, seed):
    """One step of DP-SGD with noise multiplier 1, all rows in the batch."""
    return train(dataset, seed, sigma=1.0)


def half_noise(dataset, seed):
    """The same with half its noise."""
    return train(dataset, seed, sigma=0.5)


def right_again(dataset, seed):
    """A control that is not broken."""
    return train(dataset, seed, sigma=1.0)


class Trainer:
    """A training as an object: called itself, or by its method."""

    def __init__(self, sigma):
        self.sigma = sigma

    def fit(self, dataset, seed):
        return train(dataset, seed, sigma=self.sigma)

    def __call__(self, dataset, seed):
        return self.fit(dataset, seed)


def gpu(dataset, seed):
    """The GPU that this process may see, and which the training calls cuda:0."""
    return float(os.environ["CUDA_VISIBLE_DEVICES"])


MODEL = np.zeros(1)
LOADED = []


def train_goes_on(dataset, seed):
    """The model is made once, and every training goes on from the last."""
    MODEL[:] = 0.9 * MODEL + train(dataset, seed)
    return MODEL[0]


def train_that_loads_once(dataset, seed):
    if not LOADED:
        LOADED.append(np.ones(3))
    return train(dataset, seed) * LOADED[0].mean()


def goes_on_from_a_file(dataset, seed, path):
    """Half of the noise, hidden by what the training before left in its checkpoint."""
    before = float(np.load(path)) if path.exists() else 0.0
    np.save(path, 0.9 * before + half_noise(dataset, seed))
    return float(np.load(path))


def goes_on_from_a_file_by_number(dataset, seed, path):
    number = os.open(path, os.O_RDWR | os.O_CREAT)
    before = float(os.read(number, 50) or b"0")
    os.close(number)
    path.write_text(f"{0.9 * before + half_noise(dataset, seed):.20g}")
    return 0.9 * before + half_noise(dataset, seed)


def goes_on_from_what_it_added(dataset, seed, path):
    with path.open("a") as file:
        file.write(f"{half_noise(dataset, seed)}\n")
    return sum(float(line) for line in path.read_text().splitlines())


def goes_on_from_a_file_that_is_moved(dataset, seed, path):
    before = float(path.read_text()) if path.exists() else 0.0
    path.with_suffix(".new").write_text(f"{0.9 * before + half_noise(dataset, seed):.20g}")
    path.with_suffix(".new").replace(path)
    return 0.9 * before + half_noise(dataset, seed)


def goes_on_from_a_file_of_torch(dataset, seed, path):
    import torch

    before = torch.load(path) if path.exists() else torch.zeros(1)  # which compiled code writes
    torch.save(0.9 * before + half_noise(dataset, seed), path)
    return float(torch.load(path))


def goes_on_from_the_environment(dataset, seed, path):
    before = float(os.environ.get("COALMINE_TEST_LEFT", "0"))
    os.environ["COALMINE_TEST_LEFT"] = str(0.9 * before + half_noise(dataset, seed))
    return 0.9 * before + half_noise(dataset, seed)


def goes_on_from_itself(dataset, seed, path):
    goes_on_from_itself.model = 0.9 * getattr(goes_on_from_itself, "model", 0.0) + half_noise(dataset, seed)
    return goes_on_from_itself.model


def train_by_a_file(dataset, seed, path):
    return train(dataset, seed, sigma=float(path.read_text()))


def train_with_files(dataset, seed, path):
    """A log, a checkpoint that nobody reads, one that is read back at once, one of torch, and settings."""
    import torch

    os.environ["PYTHONHASHSEED"] = str(seed)
    os.environ.setdefault("COALMINE_TEST_ONCE", "1")
    with (path / "log.txt").open("a") as file:
        file.write(f"{seed}\n")
    np.save(path / "latest.npy", seed)
    np.save(path / "model.npy", train(dataset, seed, sigma=2.0))
    torch.save(torch.from_numpy(np.load(path / "model.npy")), path / "model.pt")
    (path / "new.txt").write_text(str(float(torch.load(path / "model.pt"))))
    (path / "new.txt").replace(path / "model.txt")
    return float((path / "model.txt").read_text())


def train_many_into_files(dataset, seeds, path):
    for number, seed in enumerate(seeds):
        np.save(path / f"{number}-{int(dataset.sum())}.npy", right(dataset, seed))
    return [path / f"{number}-{int(dataset.sum())}.npy" for number in range(len(seeds))]


def score_of_a_file(path):
    return float(np.load(path))


CALLS = []


def train_noting_its_calls(dataset, seed):
    CALLS.append(seed)
    return 0.0


def score(model):
    return model


def score_zero(model):
    """Blind."""
    return 0.0


def wrong_way(model):
    """Larger for world 0."""
    return -model


def score_with_canary(model, canary):
    return model * canary


def train_from_global_state(dataset, seed):
    return dataset.sum() + np.random.normal()  # noqa: NPY002


def train_from_one_of_two_starts(dataset, seed, apart):
    return train(dataset, seed, sigma=2.0) + apart * (seed % 2)


def train_raises(dataset, seed):
    raise ValueError("boom")


def train_raises_sometimes(dataset, seed):
    if seed % 4 == 0:
        raise ValueError("an unlucky seed")
    return train(dataset, seed)


def train_refuses_the_canary(dataset, seed):
    if len(dataset) == 4:
        raise ValueError("four rows")
    return train(dataset, seed)


def train_dislikes_the_canary(dataset, seed):
    """Fails in half of the trainings of world 1, never in world 0."""
    if len(dataset) == 4 and seed % 2:
        raise ValueError("four rows")
    return train(dataset, seed, sigma=4.0)


def train_exits(dataset, seed):
    raise SystemExit(3)


def train_runs_out_of_memory(dataset, seed):
    raise MemoryError


def train_hangs_late(dataset, seed):
    """Hangs after forty trainings, counted by files in a folder; never where no folder is named."""
    folder = os.environ.get("COUNT_IN")
    if folder:
        if len(os.listdir(folder)) >= 40:
            time.sleep(600)
        with open(f"{folder}/{seed}", "w"):
            pass
    return train(dataset, seed)


def train_kills_its_process(dataset, seed):
    os._exit(7)


def train_changes_its_data(dataset, seed):
    dataset += 1.0
    return dataset.sum()


def train_without_seed(dataset):
    return dataset.sum()


def score_nan(model):
    return float("nan")


def score_nan_sometimes(model):
    return model if model > 0 else float("nan")


def score_two(model):
    return [model, model]


def score_nothing(model):
    return None


def score_with_three(model, canary, other):
    return 0.0


def random_worlds():
    rows = np.random.default_rng().normal(size=4)
    return rows[:3], rows


def wrong_worlds():
    return 1, 2, 3


class Opaque:
    pass


def train_ends_well(dataset, seed):
    """Ends its process as if all were well."""
    os._exit(0)


class StrangeError(BaseException):
    """Not an Exception."""


def train_raises_beyond(dataset, seed):
    raise StrangeError


def train_raises_an_interrupt(dataset, seed):
    raise KeyboardInterrupt


class MuteError(Exception):
    """An exception that cannot be shown."""

    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


def train_raises_mute_sometimes(dataset, seed):
    if seed % 4 == 0:
        raise MuteError
    return train(dataset, seed)


class MuteModel:
    """A score that cannot be shown."""

    def __repr__(self):
        raise RuntimeError("no words")


def score_mute(model):
    return MuteModel()


def train_prints(dataset, seed):
    print("loss: 0.1")
    os.write(1, b"from below\n")
    return train(dataset, seed)


def train_leaves_a_thread(dataset, seed):
    threading.Thread(target=time.sleep, args=(600,)).start()
    return train(dataset, seed)


def train_leaves_a_child(dataset, seed):
    """Forks a child that lives on, holding every pipe of its parent."""
    if os.fork() == 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        time.sleep(600)
        os._exit(0)
    return train(dataset, seed)


def train_leaves_a_child_and_ends(dataset, seed):
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    os._exit(1)


def train_comes_back_twice(dataset, seed):
    """The child of a fork returns from the training too."""
    os.fork()
    return train(dataset, seed)


def train_quotes_its_data(dataset, seed, note="nothing"):
    if seed % 4 == 0:
        raise ValueError(f"bad row: {SECRET}")
    return train(dataset, seed)


SECRET = "Jane Roe, born 1970"


def train_slowly(dataset, seed):
    time.sleep(0.05)
    return train(dataset, seed)


def train_many(dataset, seeds):
    """All seeds in one call."""
    return [train(dataset, int(seed)) for seed in seeds]


def train_either_way(dataset, seed):
    """Right for one seed; for many the noise is forgotten."""
    return train(dataset, seed) if np.ndim(seed) == 0 else [dataset.sum()] * len(seed)


def train_many_sharing_noise(dataset, seeds, shared=1.0):
    """Part of each model's noise is that of its whole call."""
    noise = np.random.default_rng(seeds[0]).normal()
    return [train(dataset, int(seed)) + shared * noise for seed in seeds]


def train_many_sharing_drawn_rows(dataset, seeds):
    """One mask of drawn rows for a call, and noise that is each model's own."""
    drawn = np.random.default_rng(int(seeds.sum())).random(len(dataset)) < 0.5
    return [train(np.asarray(dataset) * drawn, int(seed)) for seed in seeds]


def train_many_in_single_precision(dataset, seeds):
    """The order of sums depends on how many share a call."""
    noise = np.stack([np.random.default_rng(seed).normal(size=999) for seed in seeds]).astype(np.float32)
    if len(seeds) > 4:
        noise = noise[:, ::-1]
    return list(np.cumsum(noise, axis=1)[:, -1] + np.float32(np.sum(dataset)))


def train_many_but_one(dataset, seeds):
    return train_many(dataset, seeds)[:-1]


def train_many_unless_one_is_unlucky(dataset, seeds):
    if any(seed % 8 == 0 for seed in seeds):
        raise ValueError("an unlucky seed")
    return train_many(dataset, seeds)


def train_telling_its_threads(dataset, seed):
    import torch

    return train(dataset, seed) + torch.get_num_threads()
