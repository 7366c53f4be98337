"""`train_eval_model`: trains, evaluates, checkpoints and exports, as gin configures."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

import gin
import tensorflow as tf
from absl import logging

from t2r_seq import errors, files, windows
from t2r_seq.data import AbstractInputGenerator, joint
from t2r_seq.data.input_generator import InputReport
from t2r_seq.models import T2RModel
from t2r_seq.policies import exported_feature_specs
from t2r_seq.specs import ModeKeys, flatten_spec_structure
from t2r_seq.training import arguments, continuous, exports, stopping, workers
from t2r_seq.training.async_exports import AsyncExports
from t2r_seq.training.callbacks import Callback, Run
from t2r_seq.training.checkpoints import Checkpoints, mark_finished
from t2r_seq.training.evaluation import ModelEvaluation
from t2r_seq.training.input_position import resume_batch
from t2r_seq.training.screen import Screen
from t2r_seq.training.summaries import ProgressLog, SummaryWriter
from t2r_seq.training.trainer import Trainer

# A stop waits 50 ms at most.
_STEPS_PER_LOOP, _LOOPED_STEPS_PER_SECOND = 10, 200.0


@gin.configurable
def train_eval_model(
  t2r_model: T2RModel = gin.REQUIRED,
  input_generator_train: AbstractInputGenerator | None = None,
  input_generator_eval: AbstractInputGenerator | None = None,
  max_train_steps: int = 1000,
  model_dir: str = gin.REQUIRED,
  eval_steps: int | None = 100,
  eval_throttle_secs: float = 600,
  save_checkpoints_steps: int = 1000,
  keep_checkpoint_max: int = 5,
  log_every_n_steps: int = 100,
  create_exporters_fn: Callable[[], list[exports.Exporter]]
  | None = exports.create_default_exporters,
  strategy: tf.distribute.Strategy | None = None,
  seed: int | None = None,
  callbacks: Sequence[Callback] | None = None,
  use_continuous_eval: bool = False,
  async_exports: bool = False,
  steps_per_loop: int | None = None,
  jit_compile: bool = False,
  show_progress: bool = True,
) -> dict[str, float]:
  """Trains a model up to a global step, and evaluates and exports on the way.

  A run in a folder that has checkpoints goes on from the newest. SIGTERM ends the
  training at the next step, with a checkpoint; several workers are ended by it at once.
  After Tensor2Robot's function of that name.

  Args:
    t2r_model: the model; its network is built here, under the strategy.
    input_generator_train: gives training batches; None only evaluates and exports.
    input_generator_eval: gives eval batches; None does not evaluate. Of several named
      sets (`MultiEvalInputGenerator`) there is '<name>/<metric>' for each, and the mean
      over the sets without a name.
    max_train_steps: the global step to stop at.
    model_dir: folder of checkpoints, event files, gin config and exports.
    eval_steps: batches per evaluation at most; None for the whole eval set.
    eval_throttle_secs: seconds between two evaluations at least. They follow a
      checkpoint; the last step is always evaluated and exported.
    save_checkpoints_steps: steps between two checkpoints.
    keep_checkpoint_max: older checkpoints are deleted.
    log_every_n_steps: steps between two progress lines and TensorBoard points.
    create_exporters_fn: gives the exporters; None exports nothing.
    strategy: a `tf.distribute` strategy; by default the current one.
    seed: of the initial weights of a model that is not built, and of dropout; input
      generators have seeds of their own.
    callbacks: are told of steps, checkpoints, evaluations and exports; see `Callback`.
    use_continuous_eval: does not train, but evaluates the checkpoints of a training
      beside it as they come, up to that of `max_train_steps`: see `continuous_eval`,
      whose other options gin has. There is no `input_generator_train` then.
    async_exports: makes exports in a thread, so that the training does not wait for
      them; see `AsyncExports`. They take the memory of a second network.
    steps_per_loop: steps that are run with one call at most. It is always fewer where
      one of them is logged, saved or asked for by a callback, and a stop waits for the
      call in progress. None: 10 where steps take less than 5 ms, otherwise 1.
    jit_compile: compiles train steps by XLA; for one replica.
    show_progress: says on stderr what is trained, on what, how far it is, and what came
      of it: a bar on a terminal, elsewhere lines, unless absl's log shows them.
  Returns:
    The last evaluation's metrics (or the last training scalars where there is no eval
    generator; neither of a run that was stopped), 'global_step' and 'was_stopped'.
  Raises:
    SpecError: generator, model and checkpoint do not fit, or the data is bad.
    NanLossError: a loss or gradient was not finite; the last good checkpoint is kept.
  """
  arguments.check(
    t2r_model=t2r_model,
    input_generator_train=input_generator_train,
    input_generator_eval=input_generator_eval,
    model_dir=model_dir,
    max_train_steps=max_train_steps,
    eval_steps=eval_steps,
    save_checkpoints_steps=save_checkpoints_steps,
    keep_checkpoint_max=keep_checkpoint_max,
    log_every_n_steps=log_every_n_steps,
    steps_per_loop=steps_per_loop,
  )
  if use_continuous_eval:
    if input_generator_train is not None:
      raise errors.SpecError(
        "train_eval_model: use_continuous_eval: expected no input_generator_train, got "
        "one. It is a job of its own, beside the one that trains."
      )
    return continuous.continuous_eval(
      t2r_model,
      input_generator_eval,
      model_dir,
      eval_steps=eval_steps,
      max_train_steps=max_train_steps,
      create_exporters_fn=create_exporters_fn,
      strategy=strategy,
      callbacks=callbacks,
    )
  exported_feature_specs(t2r_model)  # What cannot be exported is not trained.
  if input_generator_train is not None:
    arguments.warn_of_invented_steps(t2r_model, input_generator_train)
    # Before async exports copy the model.
    t2r_model.follow_control_period(input_generator_train.control_period)
  arguments.follow_sources(t2r_model, input_generator_train, input_generator_eval)
  os.makedirs(model_dir, exist_ok=True)
  if seed is not None:
    tf.keras.utils.set_random_seed(seed)
    if t2r_model.is_built:
      logging.warning(
        "train_eval_model: seed: the model is built already, so its weights are not "
        "of this seed. Call tf.keras.utils.set_random_seed before build()."
      )
  strategy = strategy or tf.distribute.get_strategy()
  if async_exports and workers.is_multi_worker(strategy):
    raise errors.SpecError(
      "train_eval_model: async_exports: expected one process, got several workers, "
      "which export together."
    )
  trainer = Trainer(t2r_model, strategy, jit_compile)
  is_shared = input_generator_train is None and create_exporters_fn is None
  with (
    workers.own_folder(trainer.strategy, model_dir, is_shared) as write_dir,
    contextlib.ExitStack() as stack,
  ):
    if not is_shared:
      exports.remove_unfinished_exports(os.path.join(write_dir, "export"))
    checkpoints = Checkpoints(
      trainer, model_dir, keep_checkpoint_max, write_dir, not is_shared
    )
    if not checkpoints.restore():
      if input_generator_train is None:
        raise errors.SpecError(
          f"train_eval_model: model_dir: expected a checkpoint to evaluate in "
          f"{model_dir}, got none."
        )
      logging.info("Starting in %s at step 0.", model_dir)
      t2r_model.maybe_init_from_checkpoint()
    is_shown = show_progress and workers.is_chief(trainer.strategy)
    screen = Screen(max_train_steps, is_shown)
    stack.callback(screen.clear)
    run = Run(trainer, model_dir, write_dir, [screen, *(callbacks or ())])
    exporters = create_exporters_fn() if create_exporters_fn else []
    exports.check_exportable(t2r_model, exporters)
    pending = None
    if async_exports and exporters:
      pending = stack.enter_context(AsyncExports(t2r_model, run.tell))
    evaluation = ModelEvaluation(
      trainer,
      input_generator_eval,
      model_dir,
      eval_steps,
      eval_throttle_secs,
      exporters,
      write_dir,
      run.tell,
      pending,
      run.eval_metric_names,
      run.evaluate,
    )
    names = evaluation.metric_names()
    for exporter in exporters if names else ():
      exporter.check(names)
    scalars: dict[str, float] = {}
    if input_generator_train is not None:
      mark_finished(write_dir, None)
      try:
        scalars = _train(
          run,
          screen,
          input_generator_train,
          max_train_steps,
          checkpoints,
          evaluation,
          write_dir,
          save_checkpoints_steps,
          log_every_n_steps,
          steps_per_loop,
        )
      except stopping.Stopped:
        run.tell("on_end")
        screen.end(trainer.global_step, {}, was_stopped=True)
        return {"global_step": trainer.global_step, "was_stopped": True}
    else:
      screen.summary(run, None, input_generator_eval)
      run.tell("on_begin")
    metrics = evaluation.run()
    if pending is not None:
      pending.join()
    run.tell("on_end")
    screen.end(trainer.global_step, scalars, was_stopped=False)
    if input_generator_train is not None:
      mark_finished(write_dir, trainer.global_step)
    else:
      arguments.warn_of_unread_bindings()
    _save_operative_config(write_dir, trainer.global_step)
  return {
    **(metrics or scalars),
    "global_step": trainer.global_step,
    "was_stopped": False,
  }


def _train(
  run: Run,
  screen: Screen,
  input_generator: AbstractInputGenerator,
  max_train_steps: int,
  checkpoints: Checkpoints,
  evaluation: ModelEvaluation,
  write_dir: str,
  save_checkpoints_steps: int,
  log_every_n_steps: int,
  steps_per_loop: int | None,
) -> dict[str, float]:
  """Runs the steps that are left; returns the scalars of the last one."""
  scalars: dict[str, float] = {}
  trainer = run.trainer
  run.tell("on_begin")
  if trainer.global_step >= max_train_steps:
    screen.say(f"nothing to train: step {trainer.global_step} is reached")
    logging.info("Nothing to train: step %d is reached.", trainer.global_step)
    return scalars
  input_generator.set_specification_from_model(trainer.model, ModeKeys.TRAIN)
  with contextlib.ExitStack() as stack:
    signal = stack.enter_context(workers.stop_signal(trainer.strategy))
    stack.enter_context(input_generator.explain_failures())
    # Closed when the last checkpoint is saved: it may take its time.
    closing = stack.enter_context(contextlib.ExitStack())
    stack.enter_context(checkpoints.saved_on_interrupt(signal))
    start = step = trainer.global_step
    options = input_generator.position_options
    if options:
      is_sharded = workers.is_multi_worker(trainer.strategy)
      shards = trainer.strategy.num_replicas_in_sync if is_sharded else 1
      options = {**options, "shards": shards}
    is_chief = workers.is_chief(trainer.strategy)
    start_step = resume_batch(checkpoints.folder, start, options, is_chief)
    with signal.waiting():  # A replay is connected to only now.
      dataset = trainer.distribute_training(input_generator, start_step)
    batches = closing.enter_context(
      stopping.Interruptible(dataset, input_generator.watch)
    )
    screen.summary(run, input_generator, evaluation.input_generator)
    progress = ProgressLog(max_train_steps, is_quiet=screen.has_bar)
    loop = _Loop(
      run, steps_per_loop, max_train_steps, [save_checkpoints_steps, log_every_n_steps]
    )
    writer, warned = SummaryWriter(write_dir), False
    closing.callback(writer.close)
    trainer.write_summaries(writer, log_every_n_steps)
    run.write_to(writer)
    closing.callback(run.write_to, None)  # Exports after the last step are told, too.
    while step < max_train_steps and not run.is_stopped:
      batches_of_loop = []
      for _ in range(1 if step == start else loop.num_steps()):
        with signal.waiting():
          batch = progress.next_batch(batches)
        # A generator whose `create_dataset` is its own gives pairs that are not joined.
        batches_of_loop.append(batch if isinstance(batch, tuple) else (batch,))
      run.tell("before_step")
      result = trainer.train_steps(batches_of_loop)
      step += len(batches_of_loop)
      screen.advance(step)
      run.tell("after_step", result)
      is_last = step == max_train_steps or run.is_stopped
      if step == start + 1:
        seen = trainer.first_replica(batches_of_loop[0])
        features, labels = seen if len(seen) > 1 else joint.split(seen[0])
        writer.seen(features, labels, step, _stack_offsets(trainer.model))
        # By now everything that gin configures has been called.
        writer.text("operative_config", _save_operative_config(write_dir, step), step)
        arguments.warn_of_unread_bindings()
      if step % log_every_n_steps == 0 or is_last:
        checkpoints.check_finite()
        scalars = {name: float(value) for name, value in result.items()}
        speed = progress.log(step, scalars["loss"])
        loop.adapt(speed["steps_per_second"])
        logged = {**scalars, **speed, **trainer.learning_rates}
        writer.scalars(logged, step)
        run.tell("after_log", logged)
        warned = warned or _warn_of_short_episodes(input_generator)
      is_last = is_last or run.is_stopped
      if step % save_checkpoints_steps == 0 or is_last:
        with progress.paused():
          run.tell("before_checkpoint")
          with signal.held():
            checkpoints.save()
          run.tell("after_checkpoint", os.path.join(write_dir, f"model.ckpt-{step}"))
          if not is_last:
            # Cut short, it is as if it had never been due: the step is saved.
            with signal.waiting():
              evaluation.run_if_due()
  report = input_generator.report
  if report is not None:
    logging.info("Training input, %s: %s.", _passes(report), report)
  return scalars


class _Loop:
  """How many steps to run with one call, so that nobody waits who needs one of them."""

  def __init__(
    self, run: Run, steps_per_loop: int | None, last_step: int, intervals: Sequence[int]
  ) -> None:
    """Creates it.

    Args:
      run: has the step, and callbacks.
      steps_per_loop: at most; None begins with 1, and follows the rate.
      last_step: of the run.
      intervals: steps between two at which something happens.
    """
    self._run, self._last_step, self._intervals = run, last_step, intervals
    self._wanted = steps_per_loop or 1
    # Several processes would have to agree.
    is_fixed = workers.is_multi_worker(run.trainer.strategy)
    self._is_adapted = steps_per_loop is None and not is_fixed

  def num_steps(self) -> int:
    """Returns how many steps to run now: all that may be, or one."""
    intervals = [*self._intervals, *self._run.step_intervals]
    wanted = min(self._wanted, *intervals)
    step = self._run.step if wanted > 1 else 0
    gaps = [self._last_step - step, *(i - step % i for i in intervals)]
    return wanted if min(gaps) >= wanted else 1

  def adapt(self, steps_per_second: float) -> None:
    """Follows the rate: where it is high, Python's part of a step counts."""
    if self._is_adapted:
      is_fast = steps_per_second >= _LOOPED_STEPS_PER_SECOND
      self._wanted = _STEPS_PER_LOOP if is_fast else 1


def _stack_offsets(model: T2RModel) -> dict[str, Sequence[int]]:
  """Returns which steps each stack of the model shows, by path."""
  spec = model.get_feature_specification(ModeKeys.TRAIN)
  return {
    path: leaf.time_offsets
    for path, leaf in flatten_spec_structure(spec).items()
    if isinstance(leaf.time_offsets, tuple)
  }


def _passes(report: InputReport) -> str:
  is_of_one = isinstance(report, windows.WindowReport) and report.is_of_one_pass
  return "each pass" if is_of_one else "all passes together"


def _warn_of_short_episodes(input_generator: AbstractInputGenerator) -> bool:
  report = input_generator.report
  if report is None or not report.too_short:
    return False
  logging.warning("Training input so far: %s.", report)
  return True


def _save_operative_config(folder: str, step: int) -> str:
  """Writes the gin parameters in use beside the checkpoints; returns them."""
  config = gin.operative_config_str()
  filename = os.path.join(folder, f"operative_config-{step}.gin")
  files.replace_file(filename, config.encode())
  return config
