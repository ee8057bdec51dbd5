#ifndef ONNXGRAD_TRAIN_UNTIE_H_
#define ONNXGRAD_TRAIN_UNTIE_H_

#include <optional>
#include <string>
#include <vector>

#include "onnx/model_io.h"
#include "onnxgrad/model.h"
#include "opdef/registry.h"

// Exporters write tensors of equal numbers once. A network that has not been trained then has one
// bias for all its layers, and would be trained as one that shares it. Such weights are told from
// those that a design shares, and each gets a tensor of its own in the file.

namespace onnxgrad::train {

struct UntiedFile {
  std::string bytes;
  std::vector<SeparatedWeight> weights;
};

/// Whether untie() has anything to do; fast if not.
bool may_untie(const onnx_io::FileModel& file, const ir::Model& working,
               const opdef::OpRegistry& registry);

/// `file` with the weights apart that are one by accident; nullopt if there are none. `working` is
/// its working copy.
/// A weight, or what keeps running statistics, is taken apart if it is trained by default, its
/// numbers are not a sign of one weight (see has_own_values), and several nodes read it. Readers
/// share it further where a design explains it: layers that share another weight, whose numbers are
/// its own, and what stands before or behind such layers in the same way. Readers for which it is a
/// constant share one tensor. The first reader in the file keeps the name; the others' are
/// "<name>_1", "<name>_2", ..., in the order of the file, without names that are taken. A weight in
/// the body of a function is one for all its calls, and stays so.
std::optional<UntiedFile> untie(const onnx_io::FileModel& file, const ir::Model& working,
                                const opdef::OpRegistry& registry);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_UNTIE_H_
