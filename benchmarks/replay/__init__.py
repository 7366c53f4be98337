"""What the benchmarks of live replay compare."""
