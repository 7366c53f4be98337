"""`ReverbReplay`: a replay that a Reverb server holds, which may be away."""

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
  check_open,
)
from t2r_seq.replay.reverb import server
from t2r_seq.replay.reverb.items import ItemLayout, make_layout
from t2r_seq.replay.reverb.server import (
  TABLE,
  from_wire,
  import_reverb,
  to_wire,
  wire_signature,
)
from t2r_seq.replay.sizing import (
  check_batch_size,
  flat_replay_specs,
  warn_of_invented_steps,
)
from t2r_seq.replay.writers import StepPacking

# How long one look at the server takes at most, and what lies between two.
LOOK_SECS = 1
# Seconds after which whoever waits says so, again and again.
TELL_SECS = 30.0


class Waiting:
  """One wait, from its beginning."""

  def __init__(
    self,
    connection: Connection,
    operation: str,
    should_stop: Callable[[], bool] | None = None,
  ) -> None:
    """Begins.

    Args:
      connection: to the server.
      operation: for the error.
      should_stop: see `ReplayWriter`.
    """
    self._connection = connection
    self._operation = operation
    self._should_stop = should_stop
    self._began = self._told = time.monotonic()
    self._away_since: float | None = None

  def look(self) -> Tables | None:
    """Looks at the server once; takes no longer than a second or so.

    Returns:
      Reverb's infos of all tables; None where the server is away.
    Raises:
      ReplayTimeoutError: it has been away for as long as it may, or until one is told
        to stop.
      SpecError: its table is another, or is not there.
    """
    found = self._connection.look()
    now = time.monotonic()
    if found is None:
      self._go_on_without(now)
    else:
      self._away_since = None
      # It may have gone and come back since the last look.
      self._connection.check(found)
    return found

  def look_at_table(self) -> None:
    """Looks at the server once, where its rate limiter may be what one waits for.

    Raises:
      ReplayTimeoutError: this has lasted for as long as it may, or until one is told to
        stop, or the server is away.
      SpecError: its table is another, or is not there.
    """
    found = self.look()
    if found is None:
      return
    why = why_it_waits(found.get(TABLE))
    limit, now = self._connection.timeout, time.monotonic()
    if limit is not None and now - self._began >= limit:
      raise errors.ReplayTimeoutError(
        f"replay: {self._operation}: waited {limit:g} s for "
        f"{self._connection.address}: {why}"
      )
    self._check_not_told_to_stop("takes nothing")
    self._tell(now, why)

  def _go_on_without(self, now: float) -> None:
    """Raises ReplayTimeoutError if the server has been away for as long as it may."""
    self._check_not_told_to_stop("gives no answer")
    if self._away_since is None:
      self._away_since = now - LOOK_SECS
      self._told = now
    seconds = now - self._away_since
    limit = self._connection.server_timeout
    if limit is not None and seconds >= limit:
      raise errors.ReplayTimeoutError(
        f"replay: {self._operation}: {self._connection.address}: expected a Reverb "
        f"server with the table {TABLE}, got no answer for {seconds:.0f} s. Start it "
        "(t2r_seq replay-server), check the address, or allow more time: "
        "server_timeout."
      )
    bound = "for ever" if limit is None else f"up to {limit:g} s"
    self._tell(now, f"no answer for {seconds:.0f} s; it waits {bound}.")

  def _check_not_told_to_stop(self, what_it_does: str) -> None:
    if self._should_stop is not None and self._should_stop():
      raise errors.ReplayTimeoutError(
        f"replay: {self._operation}: told to stop while {self._connection.address} "
        f"{what_it_does}; what it has not taken is lost."
      )

  def _tell(self, now: float, why: str) -> None:
    if now - self._told >= TELL_SECS:
      self._told = now
      where = self._connection.address
      logging.warning("replay: %s: waiting for %s: %s", self._operation, where, why)


def why_it_waits(info: Any | None) -> str:
  """Says in which state a table's rate limiter is.

  Args:
    info: Reverb's TableInfo; None where there is none.
  """
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

# What gRPC says of a server that is away, or went in the middle of a call.
_AWAY = re.compile(
  "connect|Socket closed|Connection|GOAWAY|unavailable|Broken pipe|recvmsg", re.I
)
# Calls that may fail so while the server answers others: it came back in between.
_MAX_FAILURES = 5
_PAUSE_SECS = 0.1
# Seconds for which a server that cannot be seen is left to take in what it has written.
_TAKING_SECS = 1.5


class Connection:
  """A client of one server, and the patience that it has with it.

  Reverb's own calls wait for ever where a server is away, and take up their work where
  it comes back. Here every wait is cut into looks at the server, and ends with an error
  that says what is wrong.

  Attributes:
    address: of the server.
    client: Reverb's.
    timeout: seconds that the rate limiter may keep somebody waiting; None for ever.
    server_timeout: seconds that the server may be away; None for ever.
  """

  def __init__(
    self,
    address: str,
    timeout: float | None,
    server_timeout: float | None,
    signature: Mapping[str, tf.TensorSpec],
  ) -> None:
    """Waits for the server and compares its table; see the attributes.

    Args:
      address: 'host:port'.
      timeout: see the attributes.
      server_timeout: see the attributes.
      signature: that the table has to have.
    Raises:
      ReplayTimeoutError: it does not answer.
      SpecError: a number of seconds is wrong, or the table is another.
    """
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
    """Returns Reverb's infos of all tables; None where the server is away."""
    try:
      return self.client.server_info(LOOK_SECS)
    except (self._reverb.DeadlineExceededError, RuntimeError):
      return None

  def tables(
    self, operation: str, should_stop: Callable[[], bool] | None = None
  ) -> Tables:
    """Returns Reverb's infos of all tables; waits for the server.

    Args:
      operation: for the error.
      should_stop: see `ReplayWriter`.
    Raises:
      ReplayTimeoutError: it has been away for too long, or until one is told to stop.
      SpecError: its table is for other items.
    """
    waiting = Waiting(self, operation, should_stop)
    while (found := waiting.look()) is None:
      pass
    return found

  def check(self, found: Tables) -> None:
    """Checks that the table is for the items that are meant.

    Args:
      found: Reverb's infos of all tables.
    Raises:
      SpecError: it is not, or there is no such table; all differences are named.
    """
    where = f"ReverbReplay: {self.address}"
    if TABLE not in found:
      raise errors.SpecError(
        f"{where}: {TABLE}: expected a table of this name, got "
        f"{errors.listing(found)}. Start the server by ReplayServer."
      )
    server.check_signature(where, self._signature, found[TABLE].signature)

  def call(self, operation: str, function: Callable[[], Any]) -> Any:
    """Calls what blocks for as long as the server is away, in a thread of its own.

    Args:
      operation: for the error.
      function: the call.
    Returns:
      What it returns.
    Raises:
      ReplayTimeoutError: the server has been away for too long; the call goes on.
      ReplayError: the server refuses.
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
    """Has the server write a checkpoint; see `ReverbReplay.checkpoint`."""
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
      return written  # Of a server that is no ReplayServer.
    if not os.path.isdir(written):
      time.sleep(_TAKING_SECS)  # The next one might remove it.
      return kept
    waiting = Waiting(self, "checkpoint")
    while os.path.isdir(written):
      time.sleep(_PAUSE_SECS)
      waiting.look()
    if not server.is_kept(kept):
      raise server.not_whole(os.path.dirname(kept))
    return kept

  def refusal(self, operation: str, error: Exception) -> errors.ReplayError:
    """Returns the error for what the server does not do."""
    return errors.ReplayError(
      f"{operation}: {self.address}: the server refused: {error}"
    )


class _Call(threading.Thread):
  """A call that nobody has to wait for: the process may end before it does."""

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


_as_it_is = tf.autograph.experimental.do_not_convert


def rate_limiter_timeout(connection: Connection, element_spec: Any) -> tf.data.Dataset:
  """Makes a dataset that is an error: that of Reverb's, which just ends.

  Args:
    connection: to the server.
    element_spec: of its elements, if it had any.
  """

  def fail() -> Iterator[Any]:
    tables = connection.look()
    info = None if tables is None else tables.get(TABLE)
    why = "the server is away." if tables is None else why_it_waits(info)
    if info is not None and info.max_times_sampled:
      why += (
        " What had been taken for the unfinished batch counts as sampled, and is gone."
      )
    raise errors.ReplayTimeoutError(
      f"replay: sample: waited {connection.timeout:g} s for {connection.address}: {why}"
    )
    yield  # Never: it is what makes a generator of it.

  return tf.data.Dataset.from_generator(fail, output_signature=element_spec)


def sample_items(
  connection: Connection,
  layout: ItemLayout,
  batch_size: int,
  max_in_flight: int | None = None,
) -> tf.data.Dataset:
  """Samples batches of items as they are stored.

  Items are batched before they are windows: flat ones are smaller, and stacking a batch
  is one op for each path.

  Args:
    connection: to the server.
    layout: what items hold.
    batch_size: B.
    max_in_flight: items that are asked for before they are needed; None for two
      batches. A queue gives them away, and a rate limiter counts them.
  Returns:
    Endless dataset of (SampleInfo, columns), leaves [B, ...]. Where the rate limiter
    holds for longer than is allowed, it ends with an error.
  Raises:
    ReplayTimeoutError: the server is away.
  """
  signature = wire_signature(layout.signature)
  info = connection.tables("sample")[TABLE]
  is_ordered = info.sampler_options.is_deterministic
  in_flight = max_in_flight or 2 * batch_size
  # A reader asks again when all that it asked for has been taken: two take turns, which
  # is 10% faster than one that asks for as much, and as fast as three or four. Where
  # order matters, several would mix it up.
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
    batches = items.padded_batch(batch_size, shapes, drop_remainder=True)
  batches = batches.map(lambda sample: (SampleInfo(*sample.info), sample.data))
  too_late = rate_limiter_timeout(connection, batches.element_spec)
  return batches.concatenate(too_late)


def to_windows(items: tf.data.Dataset, layout: ItemLayout) -> tf.data.Dataset:
  """Makes windows of items.

  Args:
    items: batches of (SampleInfo, columns).
    layout: what items hold.
  Returns:
    Dataset of (SampleInfo, windows).
  """

  @_as_it_is
  def stack(info: SampleInfo, columns: Any) -> tuple[SampleInfo, Any]:
    columns = {
      name: from_wire(columns[name], spec.dtype)
      for name, spec in layout.signature.items()
    }
    return info, layout.to_windows(columns)

  return items.map(stack, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


class ReverbWriter(ReplayWriter):
  """Writes every window as an item as soon as the last step that it shows is there.

  While the server is away, items wait here, and their steps with them; they are sent
  when it is back.
  """

  def __init__(
    self,
    connection: Connection,
    layout: ItemLayout,
    initial_priority: float = 1.0,
    chunk_length: int = 1,
    max_in_flight_items: int = 48,
    allow_nan: bool = False,
    should_stop: Callable[[], bool] | None = None,
  ) -> None:
    """Opens the writer.

    Args:
      connection: to the server.
      layout: what items hold.
      initial_priority: of items that are written without one.
      chunk_length: rows that are compressed and stored together.
      max_in_flight_items: written items that the server may not have taken yet.
      allow_nan: accepts NaN and infinity.
      should_stop: see `ReplayWriter`.
    Raises:
      ReplayTimeoutError: no server answers for too long, or until it is told to stop.
    """
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
    # A chunk is kept as long as one of its rows is.
    kept = layout.num_rows_kept + chunk_length
    self._writer = connection.client.trajectory_writer(num_keep_alive_refs=kept)
    for name in sorted({column for column, _ in layout.item(0, 1).values()}):
      self._writer.configure(
        (name,), num_keep_alive_refs=kept, max_chunk_length=chunk_length
      )
    self._begin_episode()

  def _append(self, step: Any, priority: float | None) -> None:
    self._check_open("append")
    if self._is_ending:
      self._end()  # It was interrupted by a timeout.
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
    """Ends the episode; see `ReplayWriter.end_episode`."""
    self._check_open("end_episode")
    self._end()

  def close(self) -> None:
    """Ends the episode, and waits until the server has taken all items.

    Raises:
      ReplayTimeoutError: it does not; what it has not taken is lost.
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
    """Makes the items that are complete by now."""
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
    """Waits until the server has taken all but the last items."""
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

  An item holds every step that its window shows once, and items share their steps on
  the server: L stacks of K frames are L + K - 1 frames, stored once for all windows.
  They are stacked here, by what reads every other window of this library.

  A server that goes away is waited for, and work goes on where it comes back; what it
  has lost is what came in after its last checkpoint.
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
    chunk_length: int = 1,
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
      flat: gives every step that a window shows once; see `windows.stack_windows`.
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
      allow_nan: appends NaN and infinity, which are otherwise an error.
      **fields: or fields of the cut, as of `ReplayBuffer`.
    Raises:
      SpecError: an argument is wrong, or the server's table is for other windows; all
        differences are named.
      ReplayTimeoutError: no server answers.
      ImportError: Reverb is not installed; says what to install.
    """
    where = "ReverbReplay"
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("",) * 3
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
      raise errors.SpecError(
        f"{where}: address: expected 'host:port' of a server, got {address!r}."
      )
    initial_priority = to_priority(where, initial_priority, "initial_priority")
    errors.check_count(where, "chunk_length", chunk_length)
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
      chunk_length,
      max_in_flight_items,
      allow_nan,
    )
    self._max_in_flight_samples = max_in_flight_samples
    signature = server.make_signature(self._layout)
    self._connection = Connection(address, timeout, server_timeout, signature)
    self._is_closed = False

  @property
  def spec_structure(self) -> specs.TensorSpecStruct:
    """The specs of one window, by path."""
    return self._spec_structure

  @property
  def cut(self) -> windows.Cut:
    """How episodes become windows, and transitions are joined."""
    return self._layout.reader.cut

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
    items = sample_items(
      self._open_connection("dataset"),
      self._layout,
      check_batch_size(batch_size),
      self._max_in_flight_samples,
    )
    both = to_windows(items, self._layout).with_options(dataset_options())
    return both if with_info else both.map(lambda _, window: window)

  def watch(self) -> Callable[[], Any]:
    """Begins to watch over a wait for a batch: a server may be away for so long."""
    return Waiting(self._connection, "sample").look

  def update_priorities(self, keys: Any, priorities: Any) -> None:
    """Sets priorities; see `Replay.update_priorities`. Reverb does not count them."""
    keys, priorities = to_updates(keys, priorities)
    updates = dict(zip(keys.tolist(), priorities.tolist(), strict=True))
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
