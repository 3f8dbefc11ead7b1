"""An audit from its config to its verdict: config, setting, judge, results, and the run that joins them."""
