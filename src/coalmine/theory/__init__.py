"""What is exact: trade-off curves, privacy profiles, and what independent bits reveal."""
