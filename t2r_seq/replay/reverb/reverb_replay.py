"""`ReverbReplay`: the face of a replay that a Reverb server holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import specs, transitions
from t2r_seq.data.arguments import check_count
from t2r_seq.data.dataset_options import bounded_options
from t2r_seq.replay.failures import check_open
from t2r_seq.replay.flat_specs import flat_replay_specs
from t2r_seq.replay.memory.sizing import check_batch_size
from t2r_seq.replay.replay import Replay, ReplayCounters
from t2r_seq.replay.reverb import arguments, sampling, tables
from t2r_seq.replay.reverb.connection import Connection
from t2r_seq.replay.reverb.layouts import make_layout
from t2r_seq.replay.reverb.server import TABLE
from t2r_seq.replay.reverb.writer import ReverbWriter


@gin.configurable
class ReverbReplay(Replay):
  """Writes to and samples from a `ReplayServer`, which other machines use, too.

  With store='flat' an item holds every step that its window shows once, and items
  share their steps on the server: L stacks of K frames are L + K - 1 frames, stored
  once for all windows. They are stacked here, by what reads every other window of this
  library. With store='stacked' an item holds the window as it is learned from: the
  first of the two ways of Reverb's frame-stacking notebook, to compare with.

  A server that goes away is waited for, and work goes on where it comes back; what it
  has lost is what came in after its last checkpoint.
  """

  def __init__(
    self,
    spec_structure: specs.SpecStructure,
    address: str,
    sequence_length: int | None = None,
    stride: int = 1,
    shift: int = 1,
    padding: str = "drop",
    masks: bool = False,
    flat: bool = False,
    store: str = "flat",
    n_step: tuple[int, float] | transitions.NStep | None = None,
    rew: str = "rew",
    done: str = "done",
    truncated: str = "truncated",
    initial_priority: float = 1.0,
    timeout: float | None = None,
    server_timeout: float | None = 600.0,
    chunk_length: int = 1,
    max_in_flight_items: int = 48,
    max_in_flight_samples: int | None = None,
  ) -> None:
    """Connects to the server, and compares its table with the specs.

    Args:
      spec_structure: the specs of a window.
      address: 'host:port' of the server.
      sequence_length: L, stacks in a sequence; None for single windows.
      stride: steps between the stacks of one sequence.
      shift: stacks between the starts of two sequences.
      padding: 'drop', 'repeat' or 'zero'.
      masks: adds '<path>_mask' for every windowed path.
      flat: gives every step that a window shows once; see `windows.stack_windows`.
      store: 'flat' or 'stacked'.
      n_step: (n, gamma) to sample n-step transitions, where the specs are those of
        one-step ones; see `ReplayBuffer`.
      rew: path of the reward, or of a branch of several; for n_step.
      done: path of the flag of terminals; for n_step.
      truncated: path of the flag of truncations, if any; for n_step.
      initial_priority: of items that are written without one.
      timeout: seconds that samples and inserts wait for the rate limiter before they
        are an error; None for ever.
      server_timeout: seconds that a server may be away before writers, training and
        all calls that wait for it raise; None for ever. They say in the log that they
        wait. A dataset by itself waits for as long as Reverb's own does: for ever.
      chunk_length: rows that are compressed and stored together. Longer chunks compress
        better, but an item waits until its last one is full or its episode ends, and
        each sample brings whole chunks.
      max_in_flight_items: items that writers may be ahead of the server. From about 50
        on Reverb warns in the log, with every item.
      max_in_flight_samples: items that a dataset asks for before they are needed; None
        for two batches. Rate limiters and `max_times_sampled` count them when they are
        sent.
    Raises:
      SpecError: an argument is wrong, or the server's table is for other windows; all
        differences are named.
      ReplayTimeoutError: no server answers.
      ImportError: Reverb is not installed; says what to install.
    """
    arguments.check_address(address)
    arguments.check_writing(initial_priority, chunk_length, max_in_flight_items)
    if max_in_flight_samples is not None:
      where, name = "ReverbReplay", "max_in_flight_samples"
      check_count(where, name, max_in_flight_samples)
    structure = specs.flatten_spec_structure(spec_structure)
    self._spec_structure = specs.map_leaves(specs.ExtendedTensorSpec.to_spec, structure)
    self._flat_spec = flat_replay_specs("ReverbReplay", structure)
    self._layout = make_layout(
      "ReverbReplay",
      structure,
      sequence_length,
      stride,
      shift,
      padding,
      masks,
      flat,
      store,
      n_step,
      rew,
      done,
      truncated,
    )
    self._writer_options = (initial_priority, chunk_length, max_in_flight_items)
    self._max_in_flight_samples = max_in_flight_samples
    signature = tables.make_signature(self._layout)
    self._connection = Connection(address, timeout, server_timeout, signature)
    self._is_closed = False

  @property
  def spec_structure(self) -> specs.TensorSpecStruct:
    """The specs of one window, by path."""
    return self._spec_structure

  @property
  def flat_spec(self) -> specs.TensorSpecStruct:
    """What one `append` takes."""
    return self._flat_spec

  def writer(self, should_stop: Callable[[], bool] | None = None) -> ReverbWriter:
    """Returns a writer for one environment; there may be any number."""
    return ReverbWriter(
      self._open_connection("writer"), self._layout, *self._writer_options, should_stop
    )

  def dataset(self, batch_size: int, with_info: bool = False) -> tf.data.Dataset:
    """Makes an endless dataset of batches of windows; see `Replay.dataset`."""
    items = sampling.sample_items(
      self._open_connection("dataset"),
      self._layout,
      check_batch_size(batch_size),
      self._max_in_flight_samples,
    )
    both = sampling.to_windows(items, self._layout).with_options(bounded_options())
    return both if with_info else both.map(lambda _, windows: windows)

  def watch(self) -> Callable[[], Any]:
    """Begins to watch over a wait for a batch: a server may be away for so long."""
    return self._connection.waiting("sample").look

  def update_priorities(self, keys: Any, priorities: Any) -> None:
    """Sets priorities; see `Replay.update_priorities`. Reverb does not count them."""
    updates = arguments.check_updates(keys, priorities)
    connection = self._open_connection("update_priorities")
    connection.call(
      "update_priorities", lambda: connection.client.mutate_priorities(TABLE, updates)
    )

  @property
  def counters(self) -> ReplayCounters:
    """What the table holds and has seen."""
    connection = self._open_connection("counters")
    info = connection.call("counters", connection.client.server_info)[TABLE]
    limiter = info.rate_limiter_info
    inserts = limiter.insert_stats.completed
    return ReplayCounters(
      num_episodes=info.num_episodes,
      num_steps=None,
      num_items=info.current_size,
      num_inserts=inserts,
      num_samples=limiter.sample_stats.completed,
      num_deletes=inserts - info.current_size,
      num_ignored_updates=None,
      num_bytes=None,
    )

  def checkpoint(self) -> str:
    """Has the server write a checkpoint.

    The server takes it in where it is whole; otherwise it says so in its log, and the
    former one stays. Here this is an error where the server's folder can be seen.

    Returns:
      Its path, on the server's machine.
    Raises:
      ReplayTimeoutError: no server answers.
      ReplayError: the server cannot write it, and the former one stays; or it has no
        `checkpoint_dir`.
    """
    return self._open_connection("checkpoint").checkpoint()

  def close(self) -> None:
    """Refuses all that is asked of it from now on; the server is left as it is.

    Writers, datasets and iterators that there are go on, until they are closed
    themselves.
    """
    self._is_closed = True

  def _open_connection(self, operation: str) -> Connection:
    """Returns the connection; raises ReplayError once the replay is closed."""
    check_open(operation, self._is_closed)
    return self._connection
