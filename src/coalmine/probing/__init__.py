"""One private step, recorded and replayed: sensitivity, noise, sampling and accounting, each fault by its name."""
