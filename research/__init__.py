"""Research projects: each imports t2r_seq, never the reverse."""
