#ifndef ONNXGRAD_TRAIN_WEIGHTS_LINE_H_
#define ONNXGRAD_TRAIN_WEIGHTS_LINE_H_

#include <span>
#include <string>

#include "onnxgrad/model.h"

namespace onnxgrad::train {

/// "'a', 'b', 'c' and 4 more".
std::string short_list(std::span<const std::string> names);

/// "\n'b' of the file is 43 weights, trained apart: 'b', 'b_1', 'b_2' and 40 more", one line for
/// all of them; empty if there are none.
std::string separation_line(std::span<const SeparatedWeight> separated);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_WEIGHTS_LINE_H_
