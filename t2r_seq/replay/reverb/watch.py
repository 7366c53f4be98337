"""`Watch`: ends a dataset that waits for a server which does not come back."""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf

from t2r_seq import errors
from t2r_seq.replay.reverb.connection import LOOK_SECS, Connection
from t2r_seq.replay.reverb.failing import failing


class Watch:
  """Looks at the server from a thread, for all datasets of a replay.

  Reverb's dataset waits for ever for a server that is away, and tf.data has no
  timeouts. So it is interleaved with one that gives no element, ever, but an error when
  the server has been away for too long. A queue is what that waits at: other ways to
  wait in a graph hold one of TensorFlow's threads.
  """

  def __init__(self, connection: Connection) -> None:
    """Starts to watch."""
    self._connection = connection
    self._stopping = threading.Event()
    self._messages = tf.queue.FIFOQueue(1, [tf.string], [()])
    self._thread = threading.Thread(target=self._look, daemon=True)
    self._thread.start()

  def over(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset, which now ends with an error in place of a wait for ever.

    Args:
      dataset: its elements are passed on as they are, in their order.
    """
    messages = self._messages

    def fail(_: tf.Tensor) -> Any:
      return failing(messages.dequeue(), dataset.element_spec)

    never = tf.data.Dataset.range(1).map(fail)
    both = tf.data.Dataset.from_tensors(dataset).concatenate(
      tf.data.Dataset.from_tensors(never)
    )
    return both.interleave(
      lambda one: one, cycle_length=2, num_parallel_calls=2, deterministic=False
    )

  def close(self) -> None:
    """Stops to watch; datasets that still wait end with an error."""
    self._stopping.set()
    self._thread.join()
    self._messages.close(cancel_pending_enqueues=True)

  def _look(self) -> None:
    waiting = self._connection.waiting("sample")
    while not self._stopping.wait(LOOK_SECS):
      try:
        waiting.look(does_table_matter=False)
      except errors.ReplayTimeoutError as error:
        if not int(self._messages.size()):
          self._messages.enqueue(str(error))
      else:
        if int(self._messages.size()):
          self._messages.dequeue()
