"""Meta-learning: models, data and policies of tasks."""

from t2r_seq.meta_learning.maml_inner_loop import MAMLInnerLoopGradientDescent
from t2r_seq.meta_learning.maml_model import MAMLModel
from t2r_seq.meta_learning.meta_policies import (
  FixedLengthSequentialRegressionPolicy,
  MAMLCEMPolicy,
  MAMLRegressionPolicy,
  MetaLearningPolicy,
  ScheduledExplorationMAMLRegressionPolicy,
  WatchTryLearnPolicy,
  pack_condition,
)
from t2r_seq.meta_learning.meta_tf_models import MetalearningModel, MetaPreprocessor
from t2r_seq.meta_learning.preprocessors import (
  FixedLenMetaExamplePreprocessor,
  MAMLPreprocessorV2,
  make_meta_example,
)
from t2r_seq.meta_learning.task_embedding_model import (
  TaskEmbeddingModel,
)
from t2r_seq.meta_learning.task_input_generators import (
  TaskRecordInputGenerator,
  TaskReplayInputGenerator,
  TaskStoreInputGenerator,
)

__all__ = [
  "FixedLenMetaExamplePreprocessor",
  "FixedLengthSequentialRegressionPolicy",
  "MAMLCEMPolicy",
  "MAMLInnerLoopGradientDescent",
  "MAMLModel",
  "MAMLPreprocessorV2",
  "MAMLRegressionPolicy",
  "MetaLearningPolicy",
  "MetaPreprocessor",
  "MetalearningModel",
  "ScheduledExplorationMAMLRegressionPolicy",
  "TaskEmbeddingModel",
  "TaskRecordInputGenerator",
  "TaskReplayInputGenerator",
  "TaskStoreInputGenerator",
  "WatchTryLearnPolicy",
  "make_meta_example",
  "pack_condition",
]
