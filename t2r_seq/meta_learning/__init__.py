"""Meta-learning: models, input generators and policies that adapt to tasks."""

from t2r_seq.meta_learning import meta_tf_models as _meta_tf_models
from t2r_seq.meta_learning.maml_inner_loop import MAMLInnerLoopGradientDescent
from t2r_seq.meta_learning.maml_model import MAMLModel
from t2r_seq.meta_learning.meta_policies import (
  MAMLRegressionPolicy,
  WatchTryLearnPolicy,
)
from t2r_seq.meta_learning.task_embedding_model import (
  TaskEmbeddingModel,
)
from t2r_seq.meta_learning.task_input_generators import (
  TaskRecordInputGenerator,
  TaskReplayInputGenerator,
  TaskStoreInputGenerator,
)

# Imported so that gin finds the names that these modules define.
_GIN_MODULES = (_meta_tf_models,)

__all__ = [
  "MAMLInnerLoopGradientDescent",
  "MAMLModel",
  "MAMLRegressionPolicy",
  "TaskEmbeddingModel",
  "TaskRecordInputGenerator",
  "TaskReplayInputGenerator",
  "TaskStoreInputGenerator",
  "WatchTryLearnPolicy",
]
