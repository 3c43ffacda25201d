"""Turn-taking: when each turn speaks, what an interruption cuts, and what the caller has heard. Pure: time is an
argument, and actions go out through `turns.Effects`."""
