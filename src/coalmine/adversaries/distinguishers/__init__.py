"""Tests that turn what an adversary sees into one score a trial; a larger score speaks for world 1."""
