#ifndef ONNXGRAD_TRAIN_WEIGHTS_LINE_H_
#define ONNXGRAD_TRAIN_WEIGHTS_LINE_H_

#include <span>
#include <string>

#include "onnxgrad/model.h"
#include "onnxgrad/training_session.h"
#include "train/training_graph.h"

namespace onnxgrad::train {

/// See TrainingSession::weights_line; its first line. `step` was written for `working`.
std::string weights_line(const ir::Model& working, const StepGraph& step,
                         const TrainingOptions& options);

/// "'a', 'b', 'c' and 4 more".
std::string short_list(std::span<const std::string> names);

/// "\n'b' of the file is 43 weights, trained separately: 'b', 'b_1', 'b_2' and 40 more", one line
/// for all of them; empty if there are none.
std::string separation_line(std::span<const SeparatedWeight> separated);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_WEIGHTS_LINE_H_
