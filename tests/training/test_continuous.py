"""Continuous evaluation beside a training: each checkpoint once, and an end."""

from __future__ import annotations

import json
import os
import threading

import pytest

from t2r_seq import data, errors, training


class Counting(training.Callback):
  """Counts evaluations."""

  def __init__(self):
    self.steps = []

  def after_evaluation(self, run, metrics):
    self.steps.append(run.step)


@pytest.fixture(scope="module")
def evaluated(reach, record_path, tmp_path_factory):
  """A training in a thread, evaluated beside it while each link is taken away."""
  model_dir, counting = tmp_path_factory.mktemp("run"), Counting()
  trainer = threading.Thread(
    target=reach.train,
    args=(str(model_dir), record_path, 30),
    kwargs={"input_generator_eval": None, "create_exporters_fn": None},
  )
  trainer.start()
  link = os.link

  def link_and_lose(source, copy):
    link(source, copy)
    if "model.ckpt-20." in source:  # As the training deletes it.
      os.remove(source)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(os, "link", link_and_lose)
    result = evaluate(reach, record_path, model_dir, callbacks=[counting])
  trainer.join()
  return model_dir, result, counting.steps


def evaluate(reach, record_path, model_dir, **kwargs):
  return training.continuous_eval(
    reach.ReachModel(),
    data.DefaultRecordInputGenerator(record_path, batch_size=8),
    str(model_dir),
    poll_secs=0.02,
    **{"timeout_secs": 900.0, **kwargs},
  )


def test_each_checkpoint_is_evaluated_once_and_the_end_of_training_ends_it(
  evaluated, reach, record_path, read_events
):
  model_dir, result, steps = evaluated
  assert steps == [10, 20, 30]
  assert result["global_step"] == 30 and not result["was_stopped"]
  folder = model_dir / "continuous_eval"
  told = json.loads((folder / "evaluated.json").read_text())
  assert told["10"]["metrics"]["loss"] != told["30"]["metrics"]["loss"]
  events = read_events(folder / "eval")
  assert events["loss"][0] == 30
  assert events["loss"][2] == pytest.approx(result["loss"])
  # It is what an evaluation of that checkpoint gives.
  alone = reach.train(
    *(str(model_dir), record_path, 30),
    input_generator_train=None,
    create_exporters_fn=None,
  )
  assert alone["loss"] == pytest.approx(result["loss"], rel=1e-5)


def test_restarted_job_skips_evaluated_checkpoints(evaluated, reach, record_path):
  model_dir, result, _ = evaluated
  counting = Counting()
  again = evaluate(reach, record_path, model_dir, callbacks=[counting])
  assert counting.steps == [] and again == result
  (model_dir / "train.finished").unlink()  # A training that was stopped.
  with pytest.raises(
    errors.SpecError, match="use_continuous_eval evaluates only: remove input_g"
  ):
    reach.train(str(model_dir), record_path, 40, use_continuous_eval=True)
  late = evaluate(reach, record_path, model_dir, timeout_secs=0.0)
  assert late == result
  generator = data.DefaultRecordInputGenerator(record_path, batch_size=8)
  by_option = reach.train(
    *(str(model_dir), record_path, 30),
    input_generator_train=None,
    input_generator_eval=generator,
    use_continuous_eval=True,
  )
  assert by_option == result
