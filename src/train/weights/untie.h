#ifndef ONNXGRAD_TRAIN_UNTIE_H_
#define ONNXGRAD_TRAIN_UNTIE_H_

#include <optional>
#include <string>
#include <vector>

#include "onnx/model_io.h"
#include "onnxgrad/model.h"
#include "opdef/registry.h"

// Separation of weights that share a tensor by accident: exporters write equal tensors once. An
// untrained network then has one bias for all its layers, and would be trained with a shared bias.
// Such weights are distinguished from those shared by design, and each gets a separate tensor in
// the file.

namespace onnxgrad::train {

struct UntiedFile {
  std::string bytes;
  std::vector<SeparatedWeight> weights;
};

/// Whether untie() has anything to do; fast if not.
bool may_untie(const onnx_io::FileModel& file, const ir::Model& working,
               const opdef::OpRegistry& registry);

/// `file` with weights separated that share a tensor by accident; nullopt if there are none.
/// `working` is its working copy. A weight, or a running statistic, is separated if it is trained
/// by default, its elements do not identify one weight (see has_own_values), and several nodes read
/// it. Names that torch's exporters leave in a file decide which readers share it: of the
/// parameters in a call, of parameters written as Identity nodes, and of modules; they also
/// separate layers of a stack that have copies of each other's elements. Where they are silent,
/// readers continue to share it if a design explains it: layers that share another weight with
/// elements of its own, and nodes that precede or follow such layers in the same way. Readers for
/// which it is a constant share one tensor. The first reader in the file keeps the name; the
/// others' are "<name>_1", "<name>_2", ..., in the order of the file, skipping used names. A weight
/// in the body of a function is one for all its calls, and remains so.
std::optional<UntiedFile> untie(const onnx_io::FileModel& file, const ir::Model& working,
                                const opdef::OpRegistry& registry,
                                const onnx_io::RegisteredOperators& operators = {});

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_UNTIE_H_
