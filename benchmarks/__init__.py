"""Benchmarks of t2r_seq against plain TensorFlow; see README.md in this folder."""
