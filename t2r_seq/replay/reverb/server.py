"""`ReplayServer`: a Reverb server whose table is made from a spec structure."""

from __future__ import annotations

import os
import signal
import socket
import threading
import types
from typing import Any

import gin
from absl import logging

from t2r_seq import errors, specs, transitions
from t2r_seq.data.arguments import check_count
from t2r_seq.replay import options
from t2r_seq.replay.arguments import check_checkpoint_dir, check_options
from t2r_seq.replay.reverb import arguments, restored, tables
from t2r_seq.replay.reverb.checkpoint_folder import CheckpointFolder
from t2r_seq.replay.reverb.importing import import_reverb
from t2r_seq.replay.reverb.layouts import make_layout

TABLE = "replay"
# Seconds between two looks for checkpoints that clients asked for.
_LOOK_SECS = 0.5


@gin.configurable
class ReplayServer:
  """Serves one table of windows until it is stopped; restores its last checkpoint.

  What the windows are has to be the same as in the clients (`ReverbReplay`), which
  compare it when they connect. How items are sampled, removed and paced is the
  server's alone.

  With `checkpoint_dir`, the server begins with the newest whole checkpoint there; a
  half-written one is passed over. `serve` writes one every so many seconds, and at the
  end; while it cannot, because the disk is full, it says so in the log and serves on.
  Reverb itself loses what came in after the last one; see docs/replay.md.
  """

  def __init__(
    self,
    spec_structure: specs.SpecStructure = gin.REQUIRED,
    port: int | None = None,
    sequence_length: int | None = None,
    stride: int = 1,
    shift: int = 1,
    padding: str = "drop",
    store: str = "flat",
    n_step: tuple[int, float] | transitions.NStep | None = None,
    rew: str = "rew",
    done: str = "done",
    truncated: str = "truncated",
    max_size: int = 1_000_000,
    sampler: options.SelectorOption | None = None,
    remover: options.SelectorOption | None = None,
    rate_limiter: options.RateLimiterOption | None = None,
    max_times_sampled: int = 0,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_secs: float | None = 600.0,
  ) -> None:
    """Starts the server; it serves when this returns.

    Args:
      spec_structure: the specs of a window.
      port: to listen at; None picks a free one.
      sequence_length: L, stacks in a sequence; None for single windows.
      stride: steps between the stacks of one sequence.
      shift: stacks between the starts of two sequences.
      padding: 'drop', 'repeat' or 'zero'.
      store: 'flat' or 'stacked'; see `ReverbReplay`.
      n_step: (n, gamma) of clients that sample n-step transitions: items then hold what
        n joined steps show. The discount matters to clients only.
      rew: path of the reward, or of a branch of several; for n_step.
      done: path of the flag of terminals; for n_step.
      truncated: path of the flag of truncations, if any; for n_step.
      max_size: items that it holds; the remover makes room for more.
      sampler: which items are sampled; `Uniform()` by default.
      remover: which items are removed; `Fifo()` by default.
      rate_limiter: when samples and inserts wait; `MinSize(1)` by default.
      max_times_sampled: samples after which an item is removed; 0 for no limit.
      checkpoint_dir: where checkpoints are, a folder of this server alone, which is
        made if it is not there; None keeps nothing.
      checkpoint_secs: seconds between two checkpoints of `serve`, above 0; None writes
        one at the end only.
    Raises:
      SpecError: an argument is wrong, or the checkpoint is of other specs or options.
      ReplayError: the port is in use, `checkpoint_dir` may not be written to, or the
        checkpoint cannot be read.
      ImportError: Reverb is not installed; says what to install.
    """
    reverb = import_reverb()
    layout = make_layout(
      "ReplayServer",
      spec_structure,
      sequence_length,
      stride,
      shift,
      padding,
      store=store,
      n_step=n_step,
      rew=rew,
      done=done,
      truncated=truncated,
    )
    arguments.check_port("ReplayServer", port)
    check_count("ReplayServer", "max_size", max_size)
    check_count("ReplayServer", "max_times_sampled", max_times_sampled, 0)
    folder = check_checkpoint_dir("ReplayServer", checkpoint_dir)
    seconds = arguments.check_checkpoint_secs("ReplayServer", checkpoint_secs)
    sampler = options.Uniform() if sampler is None else sampler
    remover = options.Fifo() if remover is None else remover
    rate_limiter = options.MinSize(1) if rate_limiter is None else rate_limiter
    check_options("ReplayServer", sampler, remover, rate_limiter)
    _check_room(max_size, rate_limiter)
    self._signature = tables.make_signature(layout)
    table = reverb.Table(
      TABLE,
      sampler=tables.make_selector(reverb, sampler),
      remover=tables.make_selector(reverb, remover),
      max_size=max_size,
      rate_limiter=tables.make_rate_limiter(reverb, rate_limiter),
      max_times_sampled=max_times_sampled,
      signature=self._signature,
    )
    self._folder = None if folder is None else CheckpointFolder(folder)
    self._checkpoint_secs = seconds
    self._stopping = threading.Event()
    self._server = self._start(reverb, table, port)
    self._client = reverb.Client(f"localhost:{self.port}")
    self._looking = threading.Thread(target=self._look_for_checkpoints, daemon=True)
    self._looking.start()

  @property
  def port(self) -> int:
    """Where it listens."""
    return self._server.port

  @property
  def address(self) -> str:
    """What clients on this machine connect to; others need the machine's name."""
    return f"localhost:{self.port}"

  def serve(self) -> None:
    """Serves until `stop`, SIGTERM or SIGINT, then writes a checkpoint and stops.

    Call it in the main thread: it handles the two signals while it runs.
    """
    handled = (signal.SIGTERM, signal.SIGINT)
    former = {number: signal.signal(number, self._on_signal) for number in handled}
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
    """Asks `serve` to end; for other threads."""
    self._stopping.set()

  def checkpoint(self) -> str:
    """Writes a checkpoint. When it is whole, the former one is removed.

    Returns:
      Its path.
    Raises:
      ReplayError: there is no `checkpoint_dir`, or it cannot be written; the former
        checkpoint stays as it is.
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
    """Stops serving at once, without a checkpoint; closing twice is no error."""
    self._stopping.set()
    self._server.stop()
    self._looking.join()

  def __enter__(self) -> ReplayServer:
    return self

  def __exit__(
    self,
    exc_type: type[BaseException] | None,
    exc_value: BaseException | None,
    traceback: types.TracebackType | None,
  ) -> None:
    self.close()

  def _start(self, reverb: types.ModuleType, table: Any, port: int | None) -> Any:
    if port is not None:
      _check_is_free(port)
    wanted, saved = table.info, None
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
      # A checkpoint brings its own signature and options, whatever was asked for.
      found = server.localhost_client().server_info()[TABLE]
      where = f"ReplayServer: checkpoint in {saved}"
      tables.check_signature(where, self._signature, found.signature)
      restored.check_options(where, wanted, found)
    except BaseException:
      server.stop()
      raise
    return server

  def _look_for_checkpoints(self) -> None:
    """Takes in what clients have Reverb write, until the server stops."""
    while self._folder is not None and not self._stopping.wait(_LOOK_SECS):
      try:
        self._folder.take_in_those_of_clients()
      except OSError as error:
        logging.error("ReplayServer: checkpoint: %s", error)

  def _try_checkpoint(self) -> None:
    """Writes a checkpoint if one is wanted; where it cannot, others work on."""
    try:
      if self._folder is not None:
        self.checkpoint()
    except errors.ReplayError as error:
      logging.error("%s", error)

  def _on_signal(self, number: int, frame: types.FrameType | None) -> None:
    self._stopping.set()


class _NoCheckpoints:
  """Refuses checkpoints: Reverb would write them where no server looks for them."""

  def internal_checkpointer(self) -> None:
    """Returns Reverb's own."""


def _check_room(max_size: int, rate_limiter: options.RateLimiterOption) -> None:
  """Raises SpecError if more items are to be there than there may be."""
  wanted = getattr(rate_limiter, "min_size_to_sample", 1)
  if wanted > max_size:
    raise errors.SpecError(
      "ReplayServer: rate_limiter: expected a min_size_to_sample of at most "
      f"{max_size}, the max_size, got {wanted}. Nothing could ever be sampled: raise "
      "max_size, or ask for less."
    )


def _check_is_free(port: int) -> None:
  """Raises ReplayError if somebody listens at the port: Reverb would share it."""
  with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
      probe.bind(("", port))
    except OSError as error:
      raise errors.ReplayError(
        f"ReplayServer: port: expected a free port, got {port}: {error.strerror}. Stop "
        "what listens there, or take another port; None picks one."
      ) from error
