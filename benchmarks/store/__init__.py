"""The episode store against its peers: works, candidates, limits."""
