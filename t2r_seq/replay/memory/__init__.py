"""The engine in this process: flat columns in a ring, windows gathered on demand."""

from t2r_seq.replay.memory.replay_buffer import ReplayBuffer

__all__ = ["ReplayBuffer"]
