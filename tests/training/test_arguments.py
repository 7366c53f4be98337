"""What is refused, or warned of, before a run starts."""

from __future__ import annotations

import logging

import gin
import pytest
import tensorflow as tf

from t2r_seq import data, errors, models, specs, training, windows
from t2r_seq.training import arguments

_BAD_ARGUMENTS = {
  "no generator": ({}, "input_generator_train and input_generator_eval: .*neither"),
  "steps as text": ({"max_train_steps": "30"}, "max_train_steps: .*got '30'"),
  "no eval step": ({"eval_steps": 0}, "eval_steps: expected an integer of at least 1"),
  "a model's class": (
    {"t2r_model": models.RegressionModel},
    r"t2r_model: expected a T2RModel, got the class .*@RegressionModel\(\) in gin",
  ),
  "a generator's class": (
    {"input_generator_train": data.DefaultRandomInputGenerator},
    r"input_generator_train: .*@DefaultRandomInputGenerator\(\) in gin",
  ),
}


def test_callbacks_may_be_none_in_gin(reach, record_path, tmp_path):
  with gin.unlock_config():
    gin.parse_config("train_eval_model.callbacks = None")
  try:
    result = reach.train(str(tmp_path), record_path, 1, create_exporters_fn=list)
  finally:
    gin.clear_config()
  assert result["global_step"] == 1
  options = {"create_exporters_fn": list, "input_generator_train": None}
  reach.train(str(tmp_path), record_path, 1, use_continuous_eval=True, **options)


@pytest.mark.parametrize("case", _BAD_ARGUMENTS)
def test_wrong_arguments_are_named_before_anything_is_built(case, reach, tmp_path):
  arguments, message = _BAD_ARGUMENTS[case]
  given = {"t2r_model": reach.ReachModel(), "model_dir": str(tmp_path / "new")}
  with pytest.raises(errors.SpecError, match=message):
    training.train_eval_model(**{**given, **arguments})
  assert not (tmp_path / "new").exists()


def test_run_config_names_all_bad_counts():
  message = r"(?s)RunConfig: .*log_every_n_steps: .*got 0.*save_checkpoints_steps: .*0"
  with pytest.raises(errors.SpecError, match=message):
    training.RunConfig(save_checkpoints_steps=0, log_every_n_steps=0)


def test_file_is_no_model_dir(reach, record_path):
  with pytest.raises(errors.SpecError, match="model_dir: expected a folder, got the f"):
    reach.train(record_path, record_path, 1)


def test_labels_ahead_without_a_mask_are_warned_of(reach, caplog):
  ahead = specs.ExtendedTensorSpec((2,), tf.float32, "target", time_offsets=1)

  class Ahead(reach.ReachModel):
    def get_label_specification(self, mode):
      return specs.TensorSpecStruct(target=ahead)

  class Masked(Ahead):
    def get_label_specification(self, mode):
      return windows.add_mask_specs(super().get_label_specification(mode))

  class Critic(reach.ReachModel):
    def get_feature_specification(self, mode):
      given = super().get_feature_specification(mode)
      return specs.TensorSpecStruct({**given, "next": ahead})

  plain = data.StoreInputGenerator("store")
  with caplog.at_level(logging.WARNING, logger="absl"):
    arguments.warn_of_invented_steps(Masked(), plain)
    for padding in ("drop", ("repeat", "drop"), ("zero", "drop")):
      arguments.warn_of_invented_steps(Ahead(padding=padding), plain)
    joined = data.StoreInputGenerator("store", n_step=(3, 0.9))
    arguments.warn_of_invented_steps(Ahead(), joined)
    assert not caplog.messages
    arguments.warn_of_invented_steps(Ahead(), plain)
    arguments.warn_of_invented_steps(Critic(padding=("drop", "zero")), plain)
  want = "['labels/target'] look ahead and are padded ('repeat') at the end"
  assert want in caplog.messages[0]
  assert "['features/next'] look ahead" in caplog.messages[1]


# Of bindings: the names that nothing reads, and one that is read.
_UNREAD = {
  "some": (
    (
      "NUM_STEPS",  # A macro that nothing names.
      "eval/create_adam_optimizer.global_clipnorm",  # A scope that no reference has,
      "tr/create_adam_optimizer.global_clipnorm",  # or that begins like another.
      "train_eval_model.max_train_steps",  # What the caller gives.
    ),
    "train/create_adam_optimizer.global_clipnorm",
  ),
  "none": ((), "create_adam_optimizer.global_clipnorm"),
}


@pytest.mark.parametrize("case", _UNREAD)
def test_gin_bindings_that_nothing_reads_are_listed(case, reach, tmp_path, caplog):
  unread, read = _UNREAD[case]
  bindings = "".join(f"    {name} = 7\n" for name in (*unread, read))
  gin.parse_config(f"""
    RATE = 0.1
    train/create_adam_optimizer.learning_rate_fn = @create_constant_learning_rate
    create_constant_learning_rate.initial_learning_rate = %RATE
{bindings}
  """)

  def create():
    with gin.config_scope("train"):
      return models.create_adam_optimizer()

  with caplog.at_level(logging.WARNING, logger="absl"):
    reach.train(
      *(str(tmp_path), None, 1),
      t2r_model=reach.ReachModel(create_optimizer_fn=create),
      input_generator_eval=None,
      create_exporters_fn=None,
    )
  warned = [m for m in caplog.messages if m.startswith("Nothing reads")]
  assert len(warned) == bool(unread)
  assert all(f"[{', '.join(unread)}]" in message for message in warned)
  assert not (tmp_path / "export").exists()
