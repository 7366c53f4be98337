"""Two arms with different numbers of joints: one policy for both, and one for each."""
