#ifndef ONNXGRAD_TRAIN_SESSION_SESSION_VALUES_H_
#define ONNXGRAD_TRAIN_SESSION_SESSION_VALUES_H_

#include <string>
#include <vector>

#include "onnxgrad/losses.h"
#include "onnxgrad/model.h"
#include "train/graphs/outputs.h"
#include "train/open_batch/open_batch.h"
#include "train/session/step_runner.h"
#include "train/tools/engine.h"
#include "train/tools/text_codes.h"

namespace onnxgrad::train {

class FileTraining;

/// Inputs and outputs of a session, as users see them.
struct SessionValues {
  std::vector<ValueInfo> inputs = {};  ///< with siblings after them: see Loss::views
  std::vector<ValueInfo> outputs = {};
  std::vector<RunnableOutput> runnable = {};    ///< of `outputs`
  std::vector<std::string> constants = {};      ///< inputs without rows
  std::vector<std::string> unused_inputs = {};  ///< that the loss does not need
};

/// Parts that a session has compiled.
struct CompiledParts {
  const Source& source;
  const ir::Model& given;  ///< the model before texts are numbered
  const StepRunner& step;
  const Loss& loss;
  const BatchForm& batch;
  const FileTraining* training = nullptr;  ///< nullptr: the loss and the optimizer are ours
  const TextCodes* texts = nullptr;        ///< nullptr: the model reads none
};
SessionValues find_session_values(const CompiledParts& parts);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SESSION_SESSION_VALUES_H_
