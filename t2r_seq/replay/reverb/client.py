"""`ReverbReplay`: a replay on a Reverb server, which may be temporarily unreachable."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, specs, windows
from t2r_seq.data.plan import dataset_options
from t2r_seq.replay.options import check_seconds, to_priority, to_updates
from t2r_seq.replay.replay import (
  Replay,
  ReplayCounters,
  ReplayWriter,
  SampleInfo,
  StepPacking,
  check_batch_size,
  check_open,
  flat_replay_specs,
  warn_of_invented_steps,
)
from t2r_seq.replay.reverb import items as items_lib
from t2r_seq.replay.reverb import server
from t2r_seq.replay.reverb.items import (
  TABLE,
  ItemLayout,
  from_wire,
  import_reverb,
  make_layout,
  to_wire,
  wire_signature,
)

# Timeout of one request for the state of the server.
LOOK_SECS = 1
# Seconds between two log lines of a wait.
LOG_SECS = 30.0


class Waiting:
  """One wait for the server, or for its rate limiter."""

  def __init__(
    self,
    connection: Connection,
    operation: str,
    should_stop: Callable[[], bool] | None = None,
  ) -> None:
    """Starts the wait; see `ReplayWriter` for `should_stop`."""
    self._connection = connection
    self._operation = operation
    self._should_stop = should_stop
    self._began = self._logged = time.monotonic()
    self._away_since: float | None = None

  def look(self) -> Tables | None:
    """Polls the server once, for about a second at most.

    Returns Reverb's infos of all tables; None if the server is unreachable. Raises
    ReplayTimeoutError if this lasts too long, or if `should_stop` ends the wait.
    """
    tables = self._connection.look()
    now = time.monotonic()
    if tables is None:
      self._check_away(now)
    else:
      self._away_since = None
      # It may have been restarted since the last poll.
      self._connection.check(tables)
    return tables

  def look_at_table(self) -> None:
    """Polls the server once, while its rate limiter may be the reason to wait."""
    tables = self.look()
    if tables is None:
      return
    why = why_it_waits(tables.get(TABLE))
    limit, now = self._connection.timeout, time.monotonic()
    if limit is not None and now - self._began >= limit:
      raise errors.ReplayTimeoutError(
        f"replay: {self._operation}: waited {limit:g} s for "
        f"{self._connection.address}: {why}"
      )
    self._check_stop("takes nothing")
    self._log(now, why)

  def _check_away(self, now: float) -> None:
    """Raises ReplayTimeoutError if the server has been unreachable for too long."""
    self._check_stop("gives no answer")
    if self._away_since is None:
      self._away_since = now - LOOK_SECS
      self._logged = now
    seconds = now - self._away_since
    limit = self._connection.server_timeout
    if limit is not None and seconds >= limit:
      raise errors.ReplayTimeoutError(
        f"replay: {self._operation}: {self._connection.address}: expected a Reverb "
        f"server with the table {TABLE}, got no answer for {seconds:.0f} s. Start it "
        "(t2r_seq replay-server), check the address, or allow more time: "
        "server_timeout."
      )
    bound = "without limit" if limit is None else f"up to {limit:g} s"
    self._log(now, f"no answer for {seconds:.0f} s; it waits {bound}.")

  def _check_stop(self, state: str) -> None:
    if self._should_stop is not None and self._should_stop():
      raise errors.ReplayTimeoutError(
        f"replay: {self._operation}: stopped while {self._connection.address} "
        f"{state}; steps that it has not taken are lost."
      )

  def _log(self, now: float, why: str) -> None:
    if now - self._logged >= LOG_SECS:
      self._logged = now
      where = self._connection.address
      logging.warning("replay: %s: waiting for %s: %s", self._operation, where, why)


def why_it_waits(info: Any | None) -> str:
  """Describes the state of a table's rate limiter, from Reverb's TableInfo or None."""
  if info is None:
    return f"the server has no table {TABLE}."
  limiter = info.rate_limiter_info
  text = (
    f"{info.current_size} of {limiter.min_size_to_sample} items are there, after "
    f"{limiter.insert_stats.completed} inserts and {limiter.sample_stats.completed} "
    "samples"
  )
  if limiter.max_diff < 1e300:
    text += (
      f"; inserts * {limiter.samples_per_insert:g} - samples is kept from "
      f"{limiter.min_diff:g} to {limiter.max_diff:g}"
    )
  return text + "."


Tables = dict[str, Any]

# Messages of gRPC if a server is unreachable, or died during a call.
_AWAY = re.compile(
  "connect|Socket closed|Connection|GOAWAY|unavailable|Broken pipe|recvmsg", re.I
)
# Attempts at a call that fails in this way although the server answers again.
_MAX_FAILURES = 5
_PAUSE_SECS = 0.1
# Seconds in which a server on another machine moves a checkpoint from `incoming`.
_TAKING_SECS = 1.5


class Connection:
  """A client of one server, with timeouts.

  Reverb's own calls wait without limit while a server is unreachable, and resume when
  it is back. Here every wait is split into polls of the server, and ends with an error
  that names the reason.

  Attributes:
    address: 'host:port' of the server.
    client: Reverb's client.
    timeout: seconds that a wait for the rate limiter may take; None for no limit.
    server_timeout: seconds that the server may be unreachable; None for no limit.
  """

  def __init__(
    self,
    address: str,
    timeout: float | None,
    server_timeout: float | None,
    signature: Mapping[str, tf.TensorSpec],
  ) -> None:
    """Waits for the server and compares its table; for errors see `ReverbReplay`."""
    check_seconds("ReverbReplay", "timeout", timeout)
    check_seconds("ReverbReplay", "server_timeout", server_timeout)
    self.address = address
    self.timeout = timeout
    self.server_timeout = server_timeout
    self._signature = signature
    self._reverb = import_reverb()
    self.client = self._reverb.Client(address)
    self.tables("connect")

  def look(self) -> Tables | None:
    """Returns Reverb's infos of all tables; None if the server is unreachable."""
    try:
      return self.client.server_info(LOOK_SECS)
    except (self._reverb.DeadlineExceededError, RuntimeError):
      return None

  def tables(
    self, operation: str, should_stop: Callable[[], bool] | None = None
  ) -> Tables:
    """Waits for the server, and returns Reverb's infos of all tables; see `look`."""
    waiting = Waiting(self, operation, should_stop)
    while (tables := waiting.look()) is None:
      pass
    return tables

  def check(self, tables: Tables) -> None:
    """Raises SpecError with all differences between the table and the signature."""
    where = f"ReverbReplay: {self.address}"
    if TABLE not in tables:
      raise errors.SpecError(
        f"{where}: {TABLE}: expected a table of this name, got "
        f"{errors.listing(tables)}. Start the server by ReplayServer."
      )
    items_lib.check_signature(where, self._signature, tables[TABLE].signature)

  def call(self, operation: str, function: Callable[[], Any]) -> Any:
    """Returns the result of a call that blocks while the server is unreachable.

    It runs in a thread, which continues after a timeout.

    Raises:
      ReplayTimeoutError: the server has been unreachable for too long.
      ReplayError: the server refuses the call.
    """
    waiting = Waiting(self, operation)
    num_failures = 0
    while True:
      done = _Call(function)
      while not done.wait(LOOK_SECS):
        waiting.look()
      try:
        return done.result()
      except RuntimeError as error:
        num_failures += 1
        if num_failures == _MAX_FAILURES or not _AWAY.search(str(error)):
          raise self.refusal(operation, error) from error
      while waiting.look() is None:
        time.sleep(_PAUSE_SECS)

  def checkpoint(self) -> str:
    """Makes the server write a checkpoint; see `ReverbReplay.checkpoint`."""
    try:
      written = self.call("checkpoint", self.client.checkpoint)
    except ValueError as error:
      if "no Checkpointer" not in str(error):
        raise
      raise errors.ReplayError(
        f"ReverbReplay: checkpoint: {self.address}: expected a server with a "
        "checkpoint_dir, got None. Start it with one."
      ) from error
    kept = server.kept_path(written)
    if kept == written:
      return written  # The server is not a ReplayServer.
    if not os.path.isdir(written):
      # On another machine, or moved already. If not moved, Reverb's next checkpoint
      # would remove it.
      time.sleep(_TAKING_SECS)
      return kept
    waiting = Waiting(self, "checkpoint")
    while os.path.isdir(written):
      time.sleep(_PAUSE_SECS)
      waiting.look()
    if not server.is_kept(kept):
      raise server.not_whole(os.path.dirname(kept))
    return kept

  def refusal(self, operation: str, error: Exception) -> errors.ReplayError:
    """Returns the error for a call that the server refuses."""
    return errors.ReplayError(
      f"{operation}: {self.address}: the server refused: {error}"
    )


class _Call(threading.Thread):
  """A call in a daemon thread: the process may end before it does."""

  def __init__(self, function: Callable[[], Any]) -> None:
    super().__init__(daemon=True)
    self._function = function
    self._result: Any = None
    self._error: BaseException | None = None
    self.start()

  def run(self) -> None:
    try:
      self._result = self._function()
    except BaseException as error:
      self._error = error

  def wait(self, seconds: float) -> bool:
    self.join(seconds)
    return not self.is_alive()

  def result(self) -> Any:
    if self._error is not None:
      raise self._error
    return self._result


_no_autograph = tf.autograph.experimental.do_not_convert


def rate_limiter_timeout(connection: Connection, element_spec: Any) -> tf.data.Dataset:
  """Returns a dataset that raises ReplayTimeoutError; Reverb's only ends."""

  def fail() -> Iterator[Any]:
    tables = connection.look()
    info = None if tables is None else tables.get(TABLE)
    why = "the server does not answer." if tables is None else why_it_waits(info)
    if info is not None and info.max_times_sampled:
      why += " Items of the unfinished batch count as sampled, and are lost."
    raise errors.ReplayTimeoutError(
      f"replay: sample: waited {connection.timeout:g} s for {connection.address}: {why}"
    )
    yield  # Makes this a generator.

  return tf.data.Dataset.from_generator(fail, output_signature=element_spec)


def sample_items(
  connection: Connection,
  layout: ItemLayout,
  batch_size: int,
  max_in_flight: int | None = None,
) -> tf.data.Dataset:
  """Samples batches of items in stored form.

  Items are batched before they are stacked into windows: an item holds each step once,
  and stacking a whole batch is one op per path.

  Returns:
    Infinite dataset of (SampleInfo, columns), leaves [B, ...].
  """
  signature = wire_signature(layout.signature)
  info = connection.tables("sample")[TABLE]
  is_ordered = info.sampler_options.is_deterministic
  in_flight = max_in_flight or 2 * batch_size
  # A reader requests more items when all have been consumed: two readers alternate,
  # 10% faster than one, and as fast as three or four. One keeps the order.
  num_readers = 1 if is_ordered or in_flight == 1 else 2
  milliseconds = -1 if connection.timeout is None else int(1000 * connection.timeout)
  items = import_reverb().TrajectoryDataset(
    connection.address,
    TABLE,
    dtypes={name: spec.dtype for name, spec in signature.items()},
    shapes={name: spec.shape for name, spec in signature.items()},
    max_in_flight_samples_per_worker=in_flight // num_readers,
    num_workers_per_iterator=num_readers,
    rate_limiter_timeout_ms=milliseconds,
  )
  if layout.full_shapes == {name: spec.shape for name, spec in signature.items()}:
    batches = items.batch(batch_size, drop_remainder=True)
  else:
    info_shapes = tf.nest.map_structure(lambda _: [], items.element_spec.info)
    shapes = items.element_spec._replace(info=info_shapes, data=layout.full_shapes)
    # Items at an episode's ends have fewer steps, and the numbers of their first and
    # last one: `layout.to_windows` finds the padding by these.
    batches = items.padded_batch(batch_size, shapes, drop_remainder=True)
  batches = batches.map(lambda sample: (SampleInfo(*sample.info), sample.data))
  timeout_error = rate_limiter_timeout(connection, batches.element_spec)
  return batches.concatenate(timeout_error)


def to_windows(items: tf.data.Dataset, layout: ItemLayout) -> tf.data.Dataset:
  """Maps batches (SampleInfo, columns) to batches (SampleInfo, windows)."""

  @_no_autograph
  def stack(info: SampleInfo, columns: Any) -> tuple[SampleInfo, Any]:
    columns = {
      name: from_wire(columns[name], spec.dtype)
      for name, spec in layout.signature.items()
    }
    return info, layout.to_windows(columns)

  return items.map(stack, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


class ReverbWriter(ReplayWriter):
  """Writes every window as an item as soon as its last step has arrived.

  While the server is unreachable, items and their steps wait in this process.
  """

  def __init__(
    self,
    connection: Connection,
    layout: ItemLayout,
    initial_priority: float = 1.0,
    max_in_flight_items: int = 48,
    allow_nan: bool = False,
    should_stop: Callable[[], bool] | None = None,
  ) -> None:
    """Opens the writer; see `ReverbReplay`, and for errors `Replay.writer`."""
    self.should_stop = should_stop
    self._connection = connection
    self._layout = layout
    self._packing = StepPacking(layout.columns, allow_nan)
    self._dtypes = {
      path: np.dtype(object) if column.is_bytes else column.dtype
      for path, column in layout.columns.items()
    }
    self._step_paths = [p for p, column in layout.columns.items() if column.is_per_step]
    self._given: dict[str, Any] = {}
    self._initial_priority = initial_priority
    self._max_in_flight_items = max_in_flight_items
    self._reverb = import_reverb()
    self._column = self._reverb.TrajectoryColumn
    # Without a server Reverb crashes in the next call.
    connection.tables("writer", should_stop)
    kept = layout.num_rows_kept + 1
    self._writer = connection.client.trajectory_writer(num_keep_alive_refs=kept)
    # Reverb sends and samples whole chunks. With one row each, an item neither waits
    # for later rows, nor brings others when it is sampled.
    for name in sorted({column for column, _ in layout.item(0, 1).values()}):
      self._writer.configure((name,), num_keep_alive_refs=kept, max_chunk_length=1)
    self._begin_episode()

  def _append(self, step: Any, priority: float | None) -> None:
    self._check_open("append")
    if self._is_ending:
      self._end()  # A timeout interrupted `end_episode`.
    values, context = self._packing.pack(step, self._given or None)
    self._flush("insert", self._max_in_flight_items)
    self._given = self._given or context
    given = {**dict(zip(self._step_paths, values, strict=True)), **context}
    flag = self._layout.reader.end_flag
    self._last_flag = flag is not None and bool(np.any(given[flag]))
    row = {path: to_wire(value, self._dtypes[path]) for path, value in given.items()}
    self._priorities.append(self._initial_priority if priority is None else priority)
    self._write_row(self._layout.row(row, self._num_steps))
    self._write_items(has_ended=False)

  def end_episode(self) -> None:
    self._check_open("end_episode")
    self._end()

  def close(self) -> None:
    """Ends the episode, and waits until the server has received all items.

    Raises:
      ReplayTimeoutError: the server has not received all items; the rest is lost.
      ReplayError: the server refuses an item.
    """
    if self._is_closed:
      return
    self._is_closed = True
    try:
      self._end()
    finally:
      self._writer.close()

  def _end(self) -> None:
    if not self._num_steps:
      return
    self._is_ending = True
    self._write_items(has_ended=True)
    self._flush("insert", 0)
    self._writer.end_episode(timeout_ms=1000 * LOOK_SECS)
    self._begin_episode()

  def _begin_episode(self) -> None:
    self._num_steps = self._num_items = 0
    self._last_flag = False
    self._rows: deque[dict[str, Any]] = deque(maxlen=self._layout.num_rows_kept)
    self._given = {}
    self._context: dict[str, Any] = {}
    self._priorities: list[float] = []
    self._is_ending = False

  def _write_row(self, row: Mapping[str, Any]) -> None:
    self._writer.append(row)
    history = self._writer.history
    references = {name: next(iter(history[name][-1:])) for name in row}
    self._context = self._context or references
    self._rows.append(references)
    self._num_steps += 1

  def _write_items(self, has_ended: bool) -> None:
    """Creates the items whose last step has been written."""
    layout = self._layout
    end = layout.num_items(self._num_steps, has_ended, self._last_flag)
    for number in range(self._num_items, end):
      rows = layout.item(number, self._num_steps)
      item = {name: self._references(*of) for name, of in rows.items()}
      priority = self._priorities[layout.first_anchor(number)]
      self._writer.create_item(TABLE, priority, item)
      self._num_items += 1

  def _references(self, name: str, rows: range | int | None) -> Any:
    if rows is None:
      return self._column([self._context[name]], squeeze=True)
    first = self._num_steps - len(self._rows)
    if isinstance(rows, int):
      return self._column([self._rows[rows - first][name]], squeeze=True)
    return self._column([self._rows[row - first][name] for row in rows])

  def _flush(self, operation: str, num_items: int) -> None:
    """Waits until the server has received all but the last `num_items` items."""
    waiting, patience = None, self._connection.timeout
    seconds = LOOK_SECS if patience is None else min(LOOK_SECS, patience)
    milliseconds = max(int(1000 * seconds), 1)
    while True:
      try:
        return self._writer.flush(num_items, timeout_ms=milliseconds)
      except self._reverb.DeadlineExceededError:
        waiting = waiting or Waiting(self._connection, operation, self.should_stop)
        waiting.look_at_table()
      except RuntimeError as error:
        raise self._connection.refusal(operation, error) from error


@gin.configurable
class ReverbReplay(Replay):
  """Writes to and samples from a `ReplayServer`, which other machines use, too.

  An item has every step of its window once, and items share their steps on the server:
  L stacks of K frames are L + K - 1 frames, stored once for all windows. The client
  stacks them.

  The client waits for a server that is unreachable, and resumes when it is back. A
  server that restarts has lost the steps after its last checkpoint.
  """

  def __init__(
    self,
    spec_structure: specs.SpecStructure,
    address: str,
    cut: windows.Cut | None = None,
    flat: bool = False,
    initial_priority: float = 1.0,
    timeout: float | None = None,
    server_timeout: float | None = 600.0,
    max_in_flight_items: int = 48,
    max_in_flight_samples: int | None = None,
    allow_nan: bool = False,
    **fields: Any,
  ) -> None:
    """Connects to the server, and compares its table with the specs.

    Args:
      spec_structure: the specs of a window.
      address: 'host:port' of the server.
      cut: how episodes become windows; None for `windows.Cut()`.
      flat: returns every step of a window once; see `windows.stack_windows`.
      initial_priority: priority of items that are written without one.
      timeout: seconds that samples and inserts wait for the rate limiter; None for no
        limit.
      server_timeout: seconds that a server may be unreachable before writers, training
        and calls raise; None for no limit. A dataset by itself waits without limit.
      max_in_flight_items: maximum number of a writer's items that the server has not
        confirmed. From about 50 on, Reverb logs a warning with every item.
      max_in_flight_samples: items that a dataset requests ahead; None for two batches.
        Rate limiters and `max_times_sampled` count them when they are sent.
      allow_nan: whether steps may have NaN and infinity, which are otherwise an error.
      **fields: fields of the cut, which replace those of `cut`.
    Raises:
      SpecError: an argument is wrong, or the server's table is for other windows; all
        differences are named.
      ReplayTimeoutError: no server answers within `server_timeout`.
      ImportError: Reverb is not installed.
    """
    where = "ReverbReplay"
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("",) * 3
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
      raise errors.SpecError(
        f"{where}: address: expected 'host:port' of a server, got {address!r}."
      )
    initial_priority = to_priority(where, initial_priority, "initial_priority")
    errors.check_count(where, "max_in_flight_items", max_in_flight_items, 0)
    if max_in_flight_samples is not None:
      errors.check_count(where, "max_in_flight_samples", max_in_flight_samples)
    structure = specs.flatten_spec_structure(spec_structure)
    self._spec_structure = specs.map_leaves(specs.ExtendedTensorSpec.to_spec, structure)
    cut = windows.Cut.of(where, cut, fields)
    self._flat_spec = flat_replay_specs(where, structure, cut.n_step)
    warn_of_invented_steps(where, structure, cut)
    self._layout = make_layout(where, structure, cut, flat)
    self._writer_options = (
      initial_priority,
      max_in_flight_items,
      allow_nan,
    )
    self._max_in_flight_samples = max_in_flight_samples
    signature = items_lib.make_signature(self._layout)
    self._connection = Connection(address, timeout, server_timeout, signature)
    self._is_closed = False

  @property
  def spec_structure(self) -> specs.TensorSpecStruct:
    return self._spec_structure

  @property
  def cut(self) -> windows.Cut:
    return self._layout.reader.cut

  @property
  def flat_spec(self) -> specs.TensorSpecStruct:
    return self._flat_spec

  def writer(self, should_stop: Callable[[], bool] | None = None) -> ReverbWriter:
    """Returns a writer for one environment, of any number; see `Replay.writer`."""
    return ReverbWriter(
      self._open_connection("writer"), self._layout, *self._writer_options, should_stop
    )

  def dataset(self, batch_size: int, with_info: bool = False) -> tf.data.Dataset:
    items = sample_items(
      self._open_connection("dataset"),
      self._layout,
      check_batch_size(batch_size),
      self._max_in_flight_samples,
    )
    both = to_windows(items, self._layout).with_options(dataset_options())
    return both if with_info else both.map(lambda _, window: window)

  def watch(self) -> Callable[[], Any]:
    """Returns a check for a wait for a batch; it raises if no server answers."""
    return Waiting(self._connection, "sample").look

  def update_priorities(self, keys: Any, priorities: Any) -> None:
    """Sets priorities; see `Replay.update_priorities`. Returns no count."""
    keys, priorities = to_updates(keys, priorities)
    updates = dict(zip(keys.tolist(), priorities.tolist(), strict=True))
    connection = self._open_connection("update_priorities")
    connection.call(
      "update_priorities", lambda: connection.client.mutate_priorities(TABLE, updates)
    )

  @property
  def counters(self) -> ReplayCounters:
    """The counts of the table; raises ReplayTimeoutError if no server answers."""
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
    """Makes the server write a checkpoint.

    If it is incomplete, the server logs an error and keeps the former one. The client
    notices this only if it sees the server's folder.

    Returns:
      Its path, on the server's machine.
    Raises:
      ReplayTimeoutError: no server answers.
      ReplayError: the server cannot write it or has no `checkpoint_dir`, or this replay
        is closed.
    """
    return self._open_connection("checkpoint").checkpoint()

  def close(self) -> None:
    """Further calls raise; the server, and open writers and datasets, continue."""
    self._is_closed = True

  def _open_connection(self, operation: str) -> Connection:
    """Returns the connection; raises ReplayError once the replay is closed."""
    check_open(operation, self._is_closed)
    return self._connection
