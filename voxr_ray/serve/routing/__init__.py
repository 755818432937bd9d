"""Choice of the replica for a request: by sampler, then by load, then by what is cached there."""
