"""A plan runs: the host kernels, and a deterministic fake for tests."""
