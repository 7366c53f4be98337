"""Appends episodes to a segment of a store, until it is killed.

`python following_writer.py STORE SEGMENT FIRST`: the steps of an episode count on from
FIRST, in two columns, and a line is printed for each episode that is committed.
"""

from __future__ import annotations

import itertools
import sys

import numpy as np
import tensorflow as tf

from t2r_seq import errors, store
from t2r_seq.specs import ExtendedTensorSpec as Spec

SPEC = {
  "x": Spec((), tf.int64, is_sequence=True),
  "twice": Spec((), tf.int64, is_sequence=True),
}
NUM_STEPS = 10


def main(path: str, segment: str, first: int) -> None:
  """Writes."""
  try:
    writer = store.EpisodeStore.create(path, SPEC, segment=segment)
  except errors.StoreError:
    writer = store.EpisodeStore.append(path, segment)
  for episode in itertools.count():
    x = first + episode * NUM_STEPS + np.arange(NUM_STEPS)
    writer.append_episode({"x": x, "twice": 2 * x})
    print(episode, flush=True)


if __name__ == "__main__":
  main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
