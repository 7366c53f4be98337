"""`train_eval_model`: trains, evaluates, checkpoints and exports, as gin configures.

>>> from t2r_seq import testing, training
>>> metrics = training.train_eval_model(
...   testing.MockT2RModel(),
...   input_generator_train=testing.MockInputGenerator(),
...   input_generator_eval=testing.MockInputGenerator(),
...   max_train_steps=2,
...   model_dir="run",
...   run_config=training.RunConfig(show_progress=False),
... )
>>> metrics["global_step"]
2

"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import gin
import tensorflow as tf
from absl import logging

from t2r_seq import errors, files
from t2r_seq.data import AbstractInputGenerator, joint
from t2r_seq.models import T2RModel
from t2r_seq.policies.policy_module import exported_feature_specs
from t2r_seq.specs import ModeKeys, flatten_spec_structure
from t2r_seq.training import arguments, evaluation, exports, stopping, workers
from t2r_seq.training.callbacks import Callback, Run
from t2r_seq.training.checkpoints import Checkpoints, mark_finished, resume_batch
from t2r_seq.training.screen import ProgressLog, Screen
from t2r_seq.training.summaries import SummaryWriter
from t2r_seq.training.trainer import Trainer
from t2r_seq.windows.dataset import WindowReport

# 10 steps at 200 steps/s take 50 ms: the most that a stop waits for.
_STEPS_PER_LOOP, _LOOPED_STEPS_PER_SECOND = 10, 200.0


@gin.configurable
@dataclasses.dataclass(frozen=True)
class RunConfig:
  """Options of a training run: checkpoints, logging, device.

  Replaces `tf.estimator.RunConfig`.

  Attributes:
    save_checkpoints_steps: steps between two checkpoints.
    keep_checkpoint_max: number of newest checkpoints to keep.
    log_every_n_steps: steps between two progress lines and TensorBoard points.
    steps_per_loop: maximum train steps per `tf.function` call. Calls do not cross steps
      that are logged, saved or passed to a callback. SIGTERM waits for the end of a
      call. None: 10 if steps take less than 5 ms, otherwise 1; on several workers 1.
    jit_compile: whether to compile train steps with XLA; one replica only.
    async_exports: whether to export in a thread, so that the training does not wait;
      needs the memory of a second network. Not with several workers.
    strategy: a `tf.distribute` strategy; None: the current one.
    seed: seed of dropout and of the initial weights of a model that is not built yet.
      Input generators have separate seeds.
    show_progress: whether to show progress on stderr: a bar on a terminal, otherwise
      lines, unless absl logs them.
  """

  save_checkpoints_steps: int = 1000
  keep_checkpoint_max: int = 5
  log_every_n_steps: int = 100
  steps_per_loop: int | None = None
  jit_compile: bool = False
  async_exports: bool = False
  strategy: tf.distribute.Strategy | None = None
  seed: int | None = None
  show_progress: bool = True

  def __post_init__(self) -> None:
    """Raises SpecError if a count is not an integer of at least 1; lists all."""
    counts = {
      "save_checkpoints_steps": self.save_checkpoints_steps,
      "keep_checkpoint_max": self.keep_checkpoint_max,
      "log_every_n_steps": self.log_every_n_steps,
    }
    if self.steps_per_loop is not None:
      counts["steps_per_loop"] = self.steps_per_loop
    if bad := arguments.bad_counts(counts):
      raise errors.mismatch_error("RunConfig", bad)


@gin.configurable
def train_eval_model(
  t2r_model: T2RModel = gin.REQUIRED,
  input_generator_train: AbstractInputGenerator | None = None,
  input_generator_eval: AbstractInputGenerator | None = None,
  max_train_steps: int = 1000,
  model_dir: str = gin.REQUIRED,
  eval_steps: int | None = 100,
  eval_throttle_secs: float = 600,
  create_exporters_fn: Callable[[], list[exports.Exporter]]
  | None = exports.create_default_exporters,
  callbacks: Sequence[Callback] | None = None,
  use_continuous_eval: bool = False,
  run_config: RunConfig | None = None,
) -> dict[str, float]:
  """Trains a model up to a global step; evaluates and exports it meanwhile.

  If `model_dir` has checkpoints, the run resumes from the newest. SIGTERM or SIGHUP
  ends the training after the current call of `RunConfig.steps_per_loop` steps, with a
  checkpoint. With several workers the process dies instead, and the run resumes from
  its last checkpoint. After Tensor2Robot's function.

  Args:
    t2r_model: the model; its network is built here, under the strategy.
    input_generator_train: training batches; None only evaluates and exports.
    input_generator_eval: eval batches; None: callbacks alone evaluate. Several named
      sets (`MultiEvalInputGenerator`) give '<name>/<metric>' each, and their means.
    max_train_steps: the global step to stop at.
    model_dir: folder of checkpoints, event files, gin config and exports.
    eval_steps: maximum batches of each eval set; None for all.
    eval_throttle_secs: minimum seconds between two evaluations. They follow a
      checkpoint; the last step is always evaluated and exported, unless a signal
      stopped the run.
    create_exporters_fn: creates the exporters; None exports nothing.
    callbacks: called at steps, checkpoints, evaluations and exports; see `Callback`.
    use_continuous_eval: whether to evaluate the checkpoints of a concurrent training
      job, up to `max_train_steps`, instead of training; see `continuous_eval`.
    run_config: checkpoints, logs, strategy, seed; None: `RunConfig()`.
  Returns:
    'global_step', 'was_stopped', and unless it was stopped the last evaluation's
    metrics; without metrics, the last training scalars.
  Raises:
    SpecError: an argument is invalid; generator, model and checkpoint do not fit; the
      data is bad; or another process trains in `model_dir`.
    OSError: a checkpoint or an export cannot be written.
    checkpoints.NanLossError: a loss or gradient was not finite; no checkpoint has the
      weights after it.
    KeyboardInterrupt: SIGINT; with one worker a checkpoint is saved before.
  """
  config = run_config or RunConfig()
  generators = input_generator_train, input_generator_eval
  arguments.check(t2r_model, *generators, model_dir, max_train_steps, eval_steps)
  if use_continuous_eval:
    if input_generator_train is not None:
      raise errors.SpecError(
        "train_eval_model: use_continuous_eval evaluates only: remove "
        "input_generator_train. The training is another job."
      )
    return evaluation.continuous_eval(
      t2r_model,
      input_generator_eval,
      model_dir,
      eval_steps=eval_steps,
      max_train_steps=max_train_steps,
      create_exporters_fn=create_exporters_fn,
      strategy=config.strategy,
      callbacks=callbacks,
    )
  trainer = _prepare(t2r_model, generators, model_dir, config)
  is_shared = input_generator_train is None and create_exporters_fn is None
  with (
    workers.own_folder(trainer.strategy, model_dir, is_shared) as write_dir,
    contextlib.ExitStack() as stack,
  ):
    checkpoints = _restore(
      trainer, model_dir, write_dir, input_generator_train, is_shared, config
    )
    is_shown = config.show_progress and workers.is_chief(trainer.strategy)
    screen = Screen(max_train_steps, is_shown)
    stack.callback(screen.clear)
    run = Run(trainer, model_dir, write_dir, [screen, *(callbacks or ())])
    exporters = create_exporters_fn() if create_exporters_fn else []
    exports.check_exportable(t2r_model, exporters)
    pending = None
    if config.async_exports and exporters:
      pending = stack.enter_context(exports.AsyncExports(t2r_model, run.notify))
    evaluated = evaluation.ModelEvaluation(
      run, input_generator_eval, eval_steps, eval_throttle_secs, exporters, pending
    )
    loop = _Training(run, screen, checkpoints, evaluated, max_train_steps, config)
    scalars, was_stopped = loop.run(input_generator_train, stack)
    metrics = {} if was_stopped else evaluated.run()
    if pending is not None and not was_stopped:
      pending.join()
    run.notify("on_end")
    screen.end(trainer.global_step, scalars, was_stopped)
    if not was_stopped:
      _finish(write_dir, trainer.global_step, input_generator_train is not None)
  last = {} if was_stopped else metrics or scalars
  return {**last, "global_step": trainer.global_step, "was_stopped": was_stopped}


def _prepare(
  model: T2RModel,
  generators: tuple[AbstractInputGenerator | None, AbstractInputGenerator | None],
  model_dir: str,
  config: RunConfig,
) -> Trainer:
  exported_feature_specs(model)  # Fails before training if it cannot be exported.
  train, evaluated = generators
  if train is not None:
    arguments.warn_of_invented_steps(model, train)
    # Set before async exports copy the model.
    model.follow_periods(train.control_period, train.value_periods)
  arguments.follow_sources(model, train, evaluated)
  os.makedirs(model_dir, exist_ok=True)
  if config.seed is not None:
    tf.keras.utils.set_random_seed(config.seed)
    if model.is_built:
      logging.warning(
        "train_eval_model: seed: the model is built already, so its weights are not "
        "of this seed. Call tf.keras.utils.set_random_seed before build()."
      )
  strategy = config.strategy or tf.distribute.get_strategy()
  if config.async_exports and workers.is_multi_worker(strategy):
    raise errors.SpecError(
      "train_eval_model: async_exports: expected one process, got several workers, "
      "which export together."
    )
  return Trainer(model, strategy, config.jit_compile)


def _restore(
  trainer: Trainer,
  model_dir: str,
  write_dir: str,
  train: AbstractInputGenerator | None,
  is_shared: bool,
  config: RunConfig,
) -> Checkpoints:
  if not is_shared:
    exports.remove_unfinished_exports(os.path.join(write_dir, "export"))
  keep = config.keep_checkpoint_max
  checkpoints = Checkpoints(trainer, model_dir, keep, write_dir, not is_shared)
  if not checkpoints.restore():
    if train is None:
      raise errors.SpecError(
        "train_eval_model: model_dir: expected a checkpoint to evaluate in "
        f"{model_dir}, got none."
      )
    logging.info("Starting in %s at step 0.", model_dir)
    trainer.model.maybe_init_from_checkpoint()
  return checkpoints


def _finish(write_dir: str, step: int, is_trained: bool) -> None:
  if is_trained:
    mark_finished(write_dir, step)
  else:
    arguments.warn_of_unread_bindings()
  _save_operative_config(write_dir, step)


class _Training:
  """The training loop: batches, steps, logs, checkpoints and evaluations."""

  def __init__(
    self,
    run: Run,
    screen: Screen,
    checkpoints: Checkpoints,
    evaluated: evaluation.ModelEvaluation,
    max_train_steps: int,
    config: RunConfig,
  ) -> None:
    self._run, self._screen, self._checkpoints = run, screen, checkpoints
    self._evaluation, self._config = evaluated, config
    self._last_step = max_train_steps
    self._steps_at_once = config.steps_per_loop or 1
    # Several workers would have to agree on a number of steps.
    is_fixed = workers.is_multi_worker(run.trainer.strategy)
    self._is_adapted = config.steps_per_loop is None and not is_fixed
    self._is_warned = False

  def run(
    self, generator: AbstractInputGenerator | None, at_end: contextlib.ExitStack
  ) -> tuple[dict[str, float], bool]:
    """Runs the remaining steps.

    Args:
      generator: training batches; None trains nothing.
      at_end: closes the event file, which the last evaluation and exports still use.
    Returns:
      (the scalars of the last step, if there was one; whether a signal stopped it).
    """
    run = self._run
    if generator is None:
      self._screen.summary(run, None, self._evaluation.input_generator)
      run.notify("on_begin")
      return {}, False
    mark_finished(run.write_dir, None)
    run.notify("on_begin")
    if run.step >= self._last_step:
      self._screen.say(f"nothing to train: step {run.step} is reached")
      logging.info("Nothing to train: step %d is reached.", run.step)
      return {}, False
    generator.set_specification_from_model(run.model, ModeKeys.TRAIN)
    try:
      with contextlib.ExitStack() as stack:
        scalars = self._train(generator, stack, at_end)
    except stopping.Stopped:
      return {}, True
    if (report := generator.report) is not None:
      is_of_one = isinstance(report, WindowReport) and report.is_of_one_pass
      passes = "each pass" if is_of_one else "all passes together"
      logging.info("Training input, %s: %s.", passes, report)
    return scalars, False

  def _train(
    self,
    generator: AbstractInputGenerator,
    stack: contextlib.ExitStack,
    at_end: contextlib.ExitStack,
  ) -> dict[str, float]:
    run, config, trainer = self._run, self._config, self._run.trainer
    signal = stack.enter_context(workers.stop_signal(trainer.strategy))
    stack.enter_context(generator.explain_failures())
    # Closed after the last checkpoint is saved: closing the input may take long.
    closing = stack.enter_context(contextlib.ExitStack())
    stack.enter_context(self._checkpoints.saved_on_interrupt(signal))
    start = step = trainer.global_step
    start_step = self._start_step(generator)
    with signal.waiting():  # The input may connect to a replay here.
      dataset = trainer.distribute_training(generator, start_step)
    batches = closing.enter_context(stopping.Interruptible(dataset, generator.watch))
    self._screen.summary(run, generator, self._evaluation.input_generator)
    progress = ProgressLog(self._last_step, is_quiet=self._screen.has_bar)
    writer = SummaryWriter(run.write_dir)
    at_end.callback(writer.close)
    trainer.write_summaries(writer, config.log_every_n_steps)
    run.write_to(writer)
    at_end.callback(run.write_to, None)
    scalars: dict[str, float] = {}
    while step < self._last_step and not run.is_stopped:
      batches_of_loop = []
      for _ in range(1 if step == start else self._num_steps()):
        with signal.waiting():
          batch = progress.next_batch(batches)
        # An overridden `create_dataset` may yield pairs instead of joined batches.
        batches_of_loop.append(batch if isinstance(batch, tuple) else (batch,))
      run.notify("before_step")
      result = trainer.train_steps(batches_of_loop)
      step += len(batches_of_loop)
      self._screen.advance(step)
      run.notify("after_step", result)
      is_last = step == self._last_step or run.is_stopped
      if step == start + 1:
        self._show_first(writer, batches_of_loop[0], step)
      if step % config.log_every_n_steps == 0 or is_last:
        self._checkpoints.check_finite()
        scalars = {name: float(value) for name, value in result.items()}
        self._log(scalars, progress, writer, generator)
      is_last = is_last or run.is_stopped
      if step % config.save_checkpoints_steps == 0 or is_last:
        with progress.pause():
          self._save(signal)
          if not is_last:
            # A signal may interrupt the evaluation, as the step is saved already.
            with signal.waiting():
              self._evaluation.run_if_due()
    return scalars

  def _start_step(self, generator: AbstractInputGenerator) -> int:
    strategy = self._run.trainer.strategy
    options = generator.position_options
    if options:
      is_sharded = workers.is_multi_worker(strategy)
      shards = strategy.num_replicas_in_sync if is_sharded else 1
      options = {**options, "shards": shards}
    folder, is_chief = self._checkpoints.folder, workers.is_chief(strategy)
    return resume_batch(folder, self._run.step, options, is_chief)

  def _num_steps(self) -> int:
    """Returns how many steps the next call runs: the maximum, or 1 near a boundary."""
    config = self._config
    intervals = [config.save_checkpoints_steps, config.log_every_n_steps]
    intervals += self._run.step_intervals
    at_once = min(self._steps_at_once, *intervals)
    step = self._run.step if at_once > 1 else 0  # Reading it waits for the device.
    gaps = [self._last_step - step, *(i - step % i for i in intervals)]
    return at_once if min(gaps) >= at_once else 1

  def _show_first(
    self, writer: SummaryWriter, batch: tuple[Any, ...], step: int
  ) -> None:
    """Writes the first batch and gin's config; warns of unread bindings."""
    run = self._run
    local = run.trainer.first_replica(batch)
    features, labels = local if len(local) > 1 else joint.split(local[0])
    spec = run.model.get_feature_specification(ModeKeys.TRAIN)
    leaves = flatten_spec_structure(spec).items()
    offsets = {
      p: getattr(s.time_offsets, "offsets", s.time_offsets)
      for p, s in leaves
      if s.is_stacked
    }
    writer.seen(features, labels, step, offsets)
    # Everything that gin configures has been called by now.
    config = _save_operative_config(run.write_dir, step)
    writer.text("operative_config", config, step)
    arguments.warn_of_unread_bindings()

  def _log(
    self,
    scalars: dict[str, float],
    progress: ProgressLog,
    writer: SummaryWriter,
    generator: AbstractInputGenerator,
  ) -> None:
    step = self._run.step
    speed = progress.log(step, scalars["loss"])
    if self._is_adapted:  # At high rates Python's overhead per call matters.
      is_fast = speed["steps_per_second"] >= _LOOPED_STEPS_PER_SECOND
      self._steps_at_once = _STEPS_PER_LOOP if is_fast else 1
    logged = {**scalars, **speed, **self._run.trainer.learning_rates}
    writer.scalars(logged, step)
    self._run.notify("after_log", logged)
    report = generator.report
    if report is not None and report.too_short and not self._is_warned:
      self._is_warned = True
      logging.warning("Training input so far: %s.", report)

  def _save(self, signal: stopping.StopSignal) -> None:
    run = self._run
    run.notify("before_checkpoint")
    with signal.held():
      self._checkpoints.save()
    path = os.path.join(run.write_dir, f"model.ckpt-{run.step}")
    run.notify("after_checkpoint", path)


def _save_operative_config(folder: str, step: int) -> str:
  """Writes the gin parameters in use beside the checkpoints; returns them."""
  config = gin.operative_config_str()
  filename = os.path.join(folder, f"operative_config-{step}.gin")
  files.replace_file(filename, config.encode())
  return config
