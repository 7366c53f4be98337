"""`ReplayServer`: a Reverb server with a table for a spec structure."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import socket
import threading
import types
import zlib
from typing import Any

import gin
from absl import logging

from t2r_seq import errors, files, specs, windows
from t2r_seq.replay import options
from t2r_seq.replay.options import (
  bad_checkpoint_dir,
  check_checkpoint_dir,
  check_seconds,
)
from t2r_seq.replay.reverb.items import (
  TABLE,
  check_signature,
  import_reverb,
  make_layout,
  make_signature,
)
from t2r_seq.serving import listening

INCOMING = "incoming"
_DONE = "DONE"
_FILES = ("tables.tfrecord", "items.tfrecord", "chunks.tfrecord")
_READ_BYTES = 1 << 16


class CheckpointFolder:
  """The folder of one server's checkpoints.

  Reverb marks a checkpoint as done, and removes the former one, without checking
  whether the disk had room for the last kilobytes of its files. So it writes to
  `incoming`; whole checkpoints are moved from there to `path`, and only then the former
  one is removed. Only whole checkpoints are restored.

  When a client calls `checkpoint`, Reverb writes without notifying the server's code:
  the server polls for such checkpoints.

  Attributes:
    path: path of the folder; each whole checkpoint is a folder in it.
    incoming: folder that Reverb writes to.
    lock: held from before Reverb writes until its checkpoint is moved to `path`.
  """

  def __init__(self, path: str) -> None:
    """Creates the folder if it is missing; raises ReplayError if it cannot."""
    self.path = path
    self.incoming = os.path.join(path, INCOMING)
    self.lock = threading.Lock()
    self._seen: set[str] = set()
    try:
      os.makedirs(self.incoming, exist_ok=True)
    except OSError as error:
      raise bad_checkpoint_dir("ReplayServer", path, str(error)) from error

  def newest(self) -> str | None:
    """Returns the newest whole checkpoint, or None; removes unfinished ones."""
    done = [*_done(self.path), *_done(self.incoming)]
    damaged: list[str] = []
    for path in sorted(done, key=os.path.basename, reverse=True):
      if is_whole(path):
        if damaged:
          names = errors.listing(damaged)
          logging.error("ReplayServer: %s: damaged; restored is %s", names, path)
        kept = self._keep(path)
        for other in _done(self.incoming):
          shutil.rmtree(other, ignore_errors=True)
        self.clear()
        return kept
      damaged.append(path)
    if damaged:
      raise errors.ReplayError(
        f"ReplayServer: checkpoint: {damaged[0]}: expected whole files, got damaged "
        "ones, and no other checkpoint. Move it away, or use another folder."
      )
    self.clear()
    return None

  def take_in(self, path: str) -> str:
    """Moves a checkpoint that Reverb wrote; removes the former one; returns the path.

    Raises:
      ReplayError: the checkpoint is damaged, or the disk failed; the former one stays.
    """
    if not is_whole(path):
      shutil.rmtree(path, ignore_errors=True)
      raise not_whole(self.path)
    try:
      kept = self._keep(path)
    except OSError as error:
      shutil.rmtree(path, ignore_errors=True)
      raise errors.ReplayError(
        f"ReplayServer: checkpoint: {self.path}: expected a disk that takes it, got: "
        f"{error}. The former checkpoint stays."
      ) from error
    self.clear()
    return kept

  def take_in_those_of_clients(self) -> None:
    """Moves checkpoints of clients to `path`; logs and removes damaged ones.

    Only those that the previous poll has seen, too: Reverb has finished them.
    """
    with self.lock:
      seen, self._seen = self._seen, set(_done(self.incoming))
      for path in sorted(self._seen & seen):
        if not is_whole(path):
          shutil.rmtree(path, ignore_errors=True)
          logging.error("%s", not_whole(self.path))
        elif is_kept(kept_path(path)):  # A later one exists.
          shutil.rmtree(path, ignore_errors=True)
        else:
          self._keep(path)

  def clear(self) -> None:
    """Removes unfinished checkpoints, which would fill the disk."""
    done = _done(self.incoming)
    for name in os.listdir(self.incoming):
      if (path := os.path.join(self.incoming, name)) not in done:
        shutil.rmtree(path, ignore_errors=True)

  def _keep(self, path: str) -> str:
    kept = os.path.join(self.path, os.path.basename(path))
    if path != kept:
      _sync(path)
      os.rename(path, kept)
      files.sync_folder(self.path)
    for other in _done(self.path):
      if other != kept:
        shutil.rmtree(other, ignore_errors=True)
    return kept


def kept_path(path: str) -> str:
  """Returns where a checkpoint that Reverb wrote for a client is kept."""
  folder, name = os.path.split(path)
  parent, last = os.path.split(folder)
  return os.path.join(parent, name) if last == INCOMING else path


def is_kept(path: str) -> bool:
  """Whether this checkpoint or a later one exists."""
  folder, name = os.path.split(path)
  return any(os.path.basename(other) >= name for other in _done(folder))


def not_whole(path: str) -> errors.ReplayError:
  """Returns the error for a checkpoint that did not fit on the disk."""
  return errors.ReplayError(
    f"ReplayServer: checkpoint: {path}: expected a folder with room for it, got files "
    "without their ends. Free some of the disk. The former checkpoint stays."
  )


def is_whole(path: str) -> bool:
  """Whether all files of a checkpoint are complete."""
  return all(_has_end(os.path.join(path, name)) for name in _FILES)


def _has_end(path: str) -> bool:
  """Whether the compressed data of a file are complete, with the right checksum."""
  stream = zlib.decompressobj()
  try:
    with open(path, "rb") as file:
      while not stream.eof and (data := file.read(_READ_BYTES)):
        stream.decompress(data)
  except (OSError, zlib.error):
    return False
  return stream.eof


def _sync(path: str) -> None:
  """fsyncs a checkpoint, which Reverb does not."""
  for name in (*_FILES, _DONE):
    with open(os.path.join(path, name), "rb") as file:
      os.fsync(file.fileno())
  files.sync_folder(path)


def _done(folder: str) -> list[str]:
  """Returns the checkpoints of a folder that Reverb has marked as done."""
  paths = (os.path.join(folder, name) for name in os.listdir(folder))
  return [path for path in paths if os.path.exists(os.path.join(path, _DONE))]


def check_options(operation: str, expected: Any, actual: Any) -> None:
  """Raises SpecError with every option of a table that a checkpoint has replaced.

  Reverb silently uses the options in a checkpoint.
  """
  want, got = describe_options(expected), describe_options(actual)
  mismatches = [
    errors.Mismatch(name, want[name], f"{got[name]} in the checkpoint")
    for name in want
    if want[name] != got[name]
  ]
  if mismatches:
    hint = "A checkpoint has its options: give those, or begin a new folder."
    mismatches[-1] = dataclasses.replace(mismatches[-1], hint=hint)
    raise errors.mismatch_error(operation, mismatches)


def describe_options(info: Any) -> dict[str, str]:
  """Returns the options of a Reverb table as text, from its TableInfo."""
  limiter = info.rate_limiter_info
  bounds = (limiter.samples_per_insert, limiter.min_diff, limiter.max_diff)
  return {
    "max_size": str(info.max_size),
    "max_times_sampled": str(info.max_times_sampled),
    "rate_limiter": f"min_size_to_sample {limiter.min_size_to_sample}, "
    "samples per insert {:g} within {:g} to {:g}".format(*bounds),
    "remover": _text(info.remover_options),
    "sampler": _text(info.sampler_options),
  }


def _text(selector: Any) -> str:
  text = " ".join(str(selector).replace("is_deterministic: true", "").split())
  return text.replace(": true", "")


# Seconds between two polls for checkpoints of clients.
_LOOK_SECS = 0.5


@gin.configurable
class ReplayServer(files.Closing):
  """Serves one table of windows until it is stopped; restores its last checkpoint.

  The windows have to be those of the clients (`ReverbReplay`), which compare them when
  they connect. Only the server has options of sampling, removing and pacing.

  With `checkpoint_dir`, the server starts with the newest whole checkpoint there.
  `serve` writes one periodically, and logs failures such as a full disk; it writes one
  more at the end. A restart loses later items; see docs/replay.md.

  Reverb has no authentication: other machines reach the server only if `listen` allows
  it.
  """

  def __init__(
    self,
    spec_structure: specs.SpecStructure = gin.REQUIRED,
    port: int | None = None,
    cut: windows.Cut | None = None,
    max_size: int = 1_000_000,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_secs: float | None = 600.0,
    listen: str = listening.LOOPBACK,
    **fields: Any,
  ) -> None:
    """Starts the server; it serves when this returns.

    Args:
      spec_structure: the specs of a window.
      port: the port to listen at, 1 to 65535; None picks a free one.
      cut: how episodes become windows; None for `windows.Cut()`. Masks, and the
        discount of joined steps, matter to clients only.
      max_size: maximum number of items; beyond it the remover removes some.
      checkpoint_dir: folder of this server's checkpoints; None saves nothing.
      checkpoint_secs: seconds between two checkpoints of `serve`, above 0; None writes
        only the last one.
      listen: the address to listen at, such as '10.0.0.5'; 'localhost' accepts this
        machine only, '0.0.0.0' listens at all addresses.
      **fields: `sampler`, `remover`, `rate_limiter`, `max_times_sampled`, and fields of
        the cut, as of `ReplayBuffer`.
    Raises:
      SpecError: an argument is wrong, or the checkpoint is of other specs or options.
      ReplayError: the port is in use, `checkpoint_dir` is not writable, or the
        checkpoint cannot be read.
      ImportError: Reverb is not installed.
    """
    reverb = import_reverb()
    where = "ReplayServer"
    table_options, fields = options.split_fields(
      where, {**fields, "max_size": max_size}, without=("initial_priority", "timeout")
    )
    cut = windows.Cut.of(where, cut, fields)
    layout = make_layout(where, spec_structure, cut)
    if port is not None:
      errors.check_count(where, "port", port, most=65535)
    listening.check_address(f"{where}: listen", listen)
    self._listen = listen
    folder = check_checkpoint_dir(where, checkpoint_dir)
    check_seconds(where, "checkpoint_secs", checkpoint_secs, is_above=True)
    errors.check_count(where, "max_size", max_size)
    _check_room(max_size, table_options.rate_limiter)
    self._signature = make_signature(layout)
    sampler, remover = (
      getattr(reverb.selectors, type(option).__name__)(*dataclasses.astuple(option))
      for option in (table_options.sampler, table_options.remover)
    )
    limiter = table_options.rate_limiter
    arguments = dataclasses.astuple(limiter)
    if isinstance(limiter, options.SampleToInsertRatio):
      arguments = (*arguments[:2], limiter.bounds)
    table = reverb.Table(
      TABLE,
      sampler=sampler,
      remover=remover,
      max_size=max_size,
      # Options have the names, and the fields, of Reverb's own.
      rate_limiter=getattr(reverb.rate_limiters, type(limiter).__name__)(*arguments),
      max_times_sampled=table_options.max_times_sampled,
      signature=self._signature,
    )
    self._folder = None if folder is None else CheckpointFolder(folder)
    self._checkpoint_secs = checkpoint_secs
    self._stopping = threading.Event()
    self._server = self._start(reverb, table, port)
    self._client = reverb.Client(self.address)
    self._looking = threading.Thread(target=self._look_for_checkpoints, daemon=True)
    self._looking.start()

  @property
  def port(self) -> int:
    """The port of the server."""
    return self._server.port

  @property
  def address(self) -> str:
    """The address for clients: this machine's name if it listens at all addresses."""
    return f"{listening.reached_at(self._listen)}:{self.port}"

  def serve(self) -> None:
    """Serves until `stop`, SIGTERM or SIGINT, then writes a checkpoint and stops.

    Call it in the main thread: it handles the two signals while it runs.

    Raises:
      ReplayError: the last checkpoint cannot be written; the server has stopped.
      ValueError: this is not the main thread; raised by Python.
    """
    handled = (signal.SIGTERM, signal.SIGINT)
    former = {n: signal.signal(n, lambda *_: self._stopping.set()) for n in handled}
    try:
      while not self._stopping.wait(self._checkpoint_secs):
        self._try_checkpoint()
      if self._folder is not None:
        self.checkpoint()
    finally:
      self.close()
      for number, handler in former.items():
        signal.signal(number, handler)

  def stop(self) -> None:
    """Makes `serve` return; for other threads."""
    self._stopping.set()

  def checkpoint(self) -> str:
    """Writes a checkpoint; once it is whole, removes the former one.

    Returns:
      Its path.
    Raises:
      ReplayError: there is no `checkpoint_dir`, or it cannot be written; the former
        checkpoint stays.
    """
    if self._folder is None:
      raise errors.ReplayError(
        "ReplayServer: checkpoint: expected a checkpoint_dir, got None."
      )
    with self._folder.lock:
      try:
        written = self._client.checkpoint()
      except RuntimeError as error:
        self._folder.clear()
        raise errors.ReplayError(
          f"ReplayServer: checkpoint: {self._folder.path}: expected a folder with room "
          f"for it, got: {error}. The former checkpoint stays."
        ) from error
      return self._folder.take_in(written)

  def close(self) -> None:
    """Stops serving at once, without a checkpoint; closing twice is not an error."""
    self._stopping.set()
    self._server.stop()
    self._looking.join()

  def _start(self, reverb: types.ModuleType, table: Any, port: int | None) -> Any:
    if port is not None:
      _check_is_free(port)
    expected, saved = table.info, None
    checkpointer: Any = _NoCheckpoints()
    if self._folder is not None:
      saved = self._folder.newest()
      checkpointer = reverb.checkpointers.DefaultCheckpointer(
        self._folder.incoming, fallback_checkpoint_path=saved
      )
    try:
      server = reverb.Server([table], port, checkpointer)
    except (RuntimeError, ValueError) as error:
      raise errors.ReplayError(
        f"ReplayServer: checkpoint: {saved}: expected a checkpoint of the table "
        f"{TABLE}, got: {error}. Move it away, or use another folder."
      ) from error
    try:
      listening.restrict(self._listen, server.port)
      # A checkpoint replaces the table's signature and options.
      address = f"{listening.reached_at(self._listen)}:{server.port}"
      table_info = reverb.Client(address).server_info()[TABLE]
      where = f"ReplayServer: checkpoint in {saved}"
      check_signature(where, self._signature, table_info.signature)
      check_options(where, expected, table_info)
    except BaseException:
      server.stop()
      raise
    return server

  def _look_for_checkpoints(self) -> None:
    """Moves the checkpoints of clients, until the server stops."""
    while self._folder is not None and not self._stopping.wait(_LOOK_SECS):
      try:
        self._folder.take_in_those_of_clients()
      except OSError as error:
        logging.error("ReplayServer: checkpoint: %s", error)

  def _try_checkpoint(self) -> None:
    """Writes a checkpoint; logs a failure."""
    try:
      if self._folder is not None:
        self.checkpoint()
    except errors.ReplayError as error:
      logging.error("%s", error)


class _NoCheckpoints:
  """Refuses checkpoints: Reverb would write them to a temporary folder."""

  def internal_checkpointer(self) -> None:
    """Returns None: Reverb then has no checkpointer."""


def _check_room(max_size: int, rate_limiter: options.RateLimiterOption) -> None:
  """Raises SpecError if sampling waits for more items than fit."""
  expected = getattr(rate_limiter, "min_size_to_sample", 1)
  if expected > max_size:
    raise errors.SpecError(
      "ReplayServer: rate_limiter: expected a min_size_to_sample of at most "
      f"{max_size}, the max_size, got {expected}. Nothing could ever be sampled: raise "
      "max_size, or lower min_size_to_sample."
    )


def _check_is_free(port: int) -> None:
  """Raises ReplayError if the port is in use: Reverb would silently share it."""
  with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
      probe.bind(("", port))
    except OSError as error:
      raise errors.ReplayError(
        f"ReplayServer: port: expected a free port, got {port}: {error.strerror}. Stop "
        "what listens there, or take another port; None picks one."
      ) from error
