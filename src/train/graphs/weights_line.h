#ifndef ONNXGRAD_TRAIN_WEIGHTS_LINE_H_
#define ONNXGRAD_TRAIN_WEIGHTS_LINE_H_

#include <span>
#include <string>
#include <vector>

#include "onnxgrad/model.h"
#include "onnxgrad/training_session.h"
#include "train/graphs/training_graph.h"
#include "train/weights/tied_weights.h"

namespace onnxgrad::train {

/// The first line of TrainingSession::weights_line. `step` was written for `working`. `in_file`:
/// the weights as the file has them, for reasons of those that nothing reads in `working` any more.
std::string weights_line(const ir::Model& working, const StepGraph& step,
                         const TrainingOptions& options, std::span<const WeightInfo> in_file = {});

/// A line for each pattern that matches the bias of a layer and not its matrix, which no other of
/// the patterns matches either, unless it is a pattern for biases ("*.bias").
std::vector<std::string> pattern_warnings(const ir::Model& working,
                                          std::span<const std::string> patterns);

/// Text of a list of names: "'a', 'b', 'c' and 4 more".
std::string short_list(std::span<const std::string> names);

/// A line such as "\n'b' of the file is 43 weights, trained separately: 'b', 'b_1', 'b_2' and 40
/// more", one line for all of them; empty if there are none.
std::string separation_line(std::span<const SeparatedWeight> separated);

/// A line such as "\ntrained as one, since the file stores it twice: 'b' is 'a' transposed"; empty
/// if there are none.
std::string tie_line(std::span<const TiedWeight> tied);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_WEIGHTS_LINE_H_
