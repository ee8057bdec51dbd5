#include "onnx/shape_checks.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "onnx/functions.h"
#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {
namespace {

// Dimension `axis` of input `i` if it is a number.
std::optional<std::int64_t> dim_of(const ir::Node& node, std::size_t i, std::size_t axis) {
  const ir::Value* value = node.input(i);
  if (value == nullptr || !value->type.shape || value->type.shape->size() <= axis) {
    return std::nullopt;
  }
  const ir::Dim& dim = (*value->type.shape)[axis];
  return dim.is_static() ? std::optional(dim.value()) : std::nullopt;
}

void expect_dim(const ir::Node& node, std::size_t i, std::size_t axis, std::int64_t expected,
                const char* why) {
  const std::optional<std::int64_t> given = dim_of(node, i, axis);
  if (!given || *given == expected) return;
  throw ShapeError(
      {.what = "input '" + node.inputs[i]->name + "' has " + std::to_string(*given) +
               " elements along axis " + std::to_string(axis) + ", expected " +
               std::to_string(expected) + " " + why,
       .hint = "Give it " + std::to_string(expected) + " there, or change what it must match."});
}

void expect_rank(const ir::Node& node, std::size_t i, std::size_t expected) {
  const ir::Value* value = node.input(i);
  if (value == nullptr || !value->type.shape || value->type.shape->size() == expected) return;
  throw ShapeError({.what = "input '" + value->name + "' is " + value->type.to_string() +
                            ", expected rank " + std::to_string(expected),
                    .hint = "Reshape it to " + std::to_string(expected) + " dimensions."});
}

std::optional<std::size_t> rank_of(const ir::Node& node, std::size_t i) {
  const ir::Value* value = node.input(i);
  if (value == nullptr || !value->type.shape) return std::nullopt;
  return value->type.shape->size();
}

// group of Conv and ConvTranspose; W: [M, C/group, ...] and [C, M/group, ...].
void check_convolution(const ir::Node& node, bool is_transposed) {
  if (const auto rank = rank_of(node, 0)) expect_rank(node, 1, *rank);
  expect_rank(node, 2, 1);
  const std::vector<std::int64_t> kernel = node.ints_attribute("kernel_shape");
  for (std::size_t axis = 0; axis < kernel.size(); ++axis) {
    expect_dim(node, 1, axis + 2, kernel[axis], "as in kernel_shape");
  }
  const std::int64_t group = node.int_attribute("group", 1);
  if (group < 1) {
    throw ShapeError(
        {.what = "attribute 'group' is " + std::to_string(group) + ", expected 1 or more",
         .hint = "Omit it for one group."});
  }
  const std::optional<std::int64_t> first = dim_of(node, 1, 0);
  const std::optional<std::int64_t> second = dim_of(node, 1, 1);
  if (first && *first % group != 0) {
    throw ShapeError({.what = "weight '" + node.inputs[1]->name + "' has " +
                              std::to_string(*first) + " channels, which " + std::to_string(group) +
                              " groups cannot share",
                      .hint = "Make the channels a multiple of group."});
  }
  std::int64_t grouped = 0;
  if (second && __builtin_mul_overflow(*second, group, &grouped)) {
    throw ShapeError({.what = "it has too many groups and channels",
                      .hint = "Give attribute 'group' the number of groups of the weight."});
  }
  const auto& channels = is_transposed ? first : second;
  const auto& results = is_transposed ? second : first;
  if (channels) {
    expect_dim(node, 0, 1, is_transposed ? *first : grouped, "as the weight has channels");
  }
  if (results) {
    expect_dim(node, 2, 0, is_transposed ? grouped : *first, "as there are results");
  }
}

// At least one window of Conv and the pools must fit: ONNX's formula rounds none up to one.
void check_windows(const ir::Node& node) {
  const std::string auto_pad = node.string_attribute("auto_pad", "NOTSET");
  const std::optional<std::size_t> rank = rank_of(node, 0);
  if (!rank || *rank < 3 || auto_pad.starts_with("SAME")) return;
  if (node.int_attribute("ceil_mode", 0) != 0) return;  // partial windows count
  const std::size_t spatial = *rank - 2;
  const std::vector<std::int64_t> kernel = node.ints_attribute("kernel_shape");
  const std::vector<std::int64_t> dilations = node.ints_attribute("dilations");
  const std::vector<std::int64_t> pads = node.ints_attribute("pads");
  for (std::size_t axis = 0; axis < spatial; ++axis) {
    const std::optional<std::int64_t> size = dim_of(node, 0, axis + 2);
    const std::optional<std::int64_t> window =
        kernel.size() == spatial ? std::optional(kernel[axis]) : dim_of(node, 1, axis + 2);
    if (!size || !window) continue;
    // Computed in double: attributes may be arbitrarily large.
    const double dilation = axis < dilations.size() ? static_cast<double>(dilations[axis]) : 1;
    const double extent = (static_cast<double>(*window) - 1) * dilation + 1;
    auto room = static_cast<double>(*size);
    if (pads.size() == 2 * spatial && auto_pad == "NOTSET") {
      room += static_cast<double>(pads[axis]) + static_cast<double>(pads[spatial + axis]);
    }
    if (extent <= room) continue;
    throw ShapeError({.what = "no window fits along spatial axis " + std::to_string(axis) + ": " +
                              std::to_string(*size) + " elements, a window of " +
                              std::to_string(*window),
                      .hint = "Use larger inputs, more padding or a smaller kernel."});
  }
}

// Input `i` must be a broadcast of a part of `to`.
void expect_broadcast(const ir::Node& node, std::size_t i, const ir::Type& to) {
  const ir::Value* value = node.input(i);
  if (value == nullptr || !value->type.shape || !to.shape) return;
  const ir::SymbolicShape& from = *value->type.shape;
  bool fits = from.size() <= to.shape->size();
  for (std::size_t k = 0; fits && k < from.size(); ++k) {
    const ir::Dim& given = from[from.size() - 1 - k];
    const ir::Dim& wanted = (*to.shape)[to.shape->size() - 1 - k];
    fits = !given.is_static() || !wanted.is_static() || given.value() == 1 ||
           given.value() == wanted.value();
  }
  if (!fits) {
    throw ShapeError({.what = "input '" + value->name + "' is " + value->type.to_string() +
                              ", which does not broadcast to " + to.to_string(),
                      .hint = "Make its dimensions equal to these, counted from the last, or 1."});
  }
}

void check_reshape(const ir::Node& node, const ir::Type& result) {
  const std::optional<Dims> from = node.inputs.at(0)->type.static_dims();
  const std::optional<Dims> to = result.static_dims();
  if (!from || !to || from->num_elements() == to->num_elements()) return;
  throw ShapeError(
      {.what = "shape " + from->to_string() + " cannot be reshaped to " + to->to_string(),
       .hint = "Reshape to the same number of elements; -1 means the remaining ones."});
}

void check_transpose(const ir::Node& node) {
  const std::optional<std::size_t> rank = rank_of(node, 0);
  if (!rank || node.find_attribute("perm") == nullptr) return;
  std::vector<std::int64_t> perm = node.ints_attribute("perm");
  std::ranges::sort(perm);
  bool fits = perm.size() == *rank;
  for (std::size_t i = 0; fits && i < perm.size(); ++i) {
    fits = perm[i] == static_cast<std::int64_t>(i);
  }
  if (!fits) {
    throw ShapeError({.what = "attribute 'perm' is not a permutation of the " +
                              std::to_string(*rank) + " axes of its input",
                      .hint = "Name each axis from 0 to " + std::to_string(*rank - 1) + " once."});
  }
}

// scores: [N, C, d1, ...], labels: [N, d1, ...], weights: [C].
void check_loss(const ir::Node& node) {
  expect_rank(node, 2, 1);
  const std::optional<std::size_t> rank = rank_of(node, 0);
  if (!rank) return;
  if (*rank < 2) {
    throw ShapeError({.what = "input '" + node.inputs[0]->name + "' is " +
                              node.inputs[0]->type.to_string() + ", expected [N, C, ...]",
                      .hint = "Give scores with a column per class."});
  }
  expect_rank(node, 1, *rank - 1);
  for (std::size_t axis = 0; axis < *rank; ++axis) {
    const std::optional<std::int64_t> dim = dim_of(node, 0, axis);
    if (!dim) continue;
    if (axis == 1) {
      expect_dim(node, 2, 0, *dim, "as there are classes");
    } else {
      expect_dim(node, 1, axis == 0 ? 0 : axis - 1, *dim, "as the scores have");
    }
  }
}

// Bounds of Clip are single numbers, of rank 0 if the data is: the result has the
// shape of the data.
void check_clip(const ir::Node& node) {
  if (rank_of(node, 0) == 0) {
    expect_rank(node, 1, 0);
    expect_rank(node, 2, 0);
  }
  for (std::size_t i = 1; i <= 2; ++i) {
    const ir::Value* bound = node.input(i);
    if (bound == nullptr) continue;
    const std::optional<Dims> dims = bound->type.static_dims();
    if (dims && (dims->rank() > 1 || dims->num_elements() != 1)) {
      throw ShapeError({.what = "input '" + bound->name + "' is " + bound->type.to_string() +
                                ", expected one number",
                        .hint = "Give one bound for all elements, or use Min and Max."});
    }
  }
}

// Shapes, axes, sizes and single numbers among the inputs: ONNX's functions only look at their
// elements, and accept those of a matrix as well.
enum class Form : std::uint8_t {
  kList,           // [n]
  kListOrElement,  // [n] or []: axes
  kElement,        // [] or [1]
};

struct FormRow {
  std::string_view op_type;
  std::size_t first = 0;  // first input that has this form
  std::size_t last = 0;
  Form form = Form::kList;
};

constexpr FormRow kForms[] = {
    {"AffineGrid", 1, 1, Form::kList},
    {"BlackmanWindow", 0, 0, Form::kElement},
    {"CenterCropPad", 1, 1, Form::kList},
    {"Col2Im", 1, 2, Form::kList},
    {"ConstantOfShape", 0, 0, Form::kList},
    {"CumProd", 1, 1, Form::kElement},
    {"CumSum", 1, 1, Form::kElement},
    {"DFT", 1, 2, Form::kElement},
    {"Dropout", 1, 2, Form::kElement},
    {"Expand", 1, 1, Form::kList},
    {"HammingWindow", 0, 0, Form::kElement},
    {"HannWindow", 0, 0, Form::kElement},
    {"Loop", 0, 1, Form::kElement},
    {"If", 0, 0, Form::kElement},
    {"MaxUnpool", 2, 2, Form::kList},
    {"MelWeightMatrix", 0, 4, Form::kElement},
    {"NonMaxSuppression", 2, 4, Form::kElement},
    {"OneHot", 1, 1, Form::kElement},
    {"OneHot", 2, 2, Form::kList},
    {"Pad", 1, 1, Form::kList},
    {"Pad", 2, 2, Form::kElement},
    {"Pad", 3, 3, Form::kListOrElement},
    {"Range", 0, 2, Form::kElement},
    {"ReduceL1", 1, 1, Form::kListOrElement},
    {"ReduceL2", 1, 1, Form::kListOrElement},
    {"ReduceLogSum", 1, 1, Form::kListOrElement},
    {"ReduceLogSumExp", 1, 1, Form::kListOrElement},
    {"ReduceMax", 1, 1, Form::kListOrElement},
    {"ReduceMean", 1, 1, Form::kListOrElement},
    {"ReduceMin", 1, 1, Form::kListOrElement},
    {"ReduceProd", 1, 1, Form::kListOrElement},
    {"ReduceSum", 1, 1, Form::kListOrElement},
    {"ReduceSumSquare", 1, 1, Form::kListOrElement},
    {"Reshape", 1, 1, Form::kList},
    {"Resize", 1, 3, Form::kList},
    {"ReverseSequence", 1, 1, Form::kList},
    {"STFT", 1, 1, Form::kElement},
    {"STFT", 3, 3, Form::kElement},
    {"SequenceAt", 1, 1, Form::kElement},
    {"SequenceErase", 1, 1, Form::kElement},
    {"SequenceInsert", 2, 2, Form::kElement},
    {"Slice", 1, 4, Form::kList},
    {"Split", 1, 1, Form::kList},
    {"SplitToSequence", 1, 1, Form::kListOrElement},
    {"Squeeze", 1, 1, Form::kListOrElement},
    {"Tile", 1, 1, Form::kList},
    {"TensorScatter", 2, 2, Form::kList},
    {"TopK", 1, 1, Form::kElement},
    {"Trilu", 1, 1, Form::kElement},
    {"Unsqueeze", 1, 1, Form::kListOrElement},
};

void check_form(const ir::Node& node, std::size_t i, Form form) {
  const std::optional<std::size_t> rank = rank_of(node, i);
  if (!rank) return;
  const std::optional<std::int64_t> size = dim_of(node, i, 0);
  bool fits = *rank <= 1;
  if (form == Form::kList) fits = *rank == 1;
  if (form == Form::kElement && *rank == 1) fits = !size || *size == 1;
  if (fits) return;
  const char* expected = form == Form::kList      ? "a list: one axis"
                         : form == Form::kElement ? "one number: shape [] or [1]"
                                                  : "a list or one number: at most one axis";
  throw ShapeError({.what = "input '" + node.inputs[i]->name + "' is " +
                            node.inputs[i]->type.to_string() + ", expected " + expected,
                    .hint = "Reshape it, or export the model again."});
}

// updates: the shape of indices, which is that of data except along one axis.
void check_scatter_elements(const ir::Node& node) {
  const std::optional<std::size_t> rank = rank_of(node, 0);
  const std::optional<std::size_t> index_rank = rank_of(node, 1);
  if (rank) expect_rank(node, 1, *rank);
  if (!index_rank) return;
  expect_rank(node, 2, *index_rank);
  for (std::size_t axis = 0; axis < *index_rank; ++axis) {
    if (const auto size = dim_of(node, 1, axis)) {
      expect_dim(node, 2, axis, *size, "as the indices have");
    }
  }
}

// indices: [..., k], updates: [...] with the axes of data after the first k.
void check_scatter_nd(const ir::Node& node) {
  const std::optional<std::size_t> rank = rank_of(node, 0);
  const std::optional<std::size_t> index_rank = rank_of(node, 1);
  if (!rank || !index_rank || *index_rank == 0) return;
  const std::size_t outer = *index_rank - 1;
  const std::optional<std::int64_t> depth = dim_of(node, 1, outer);
  for (std::size_t axis = 0; axis < outer; ++axis) {
    if (const auto size = dim_of(node, 1, axis)) {
      expect_dim(node, 2, axis, *size, "as there are indices");
    }
  }
  if (!depth || *depth < 0 || static_cast<std::size_t>(*depth) > *rank) return;
  const auto first = static_cast<std::size_t>(*depth);
  expect_rank(node, 2, outer + *rank - first);
  for (std::size_t axis = first; axis < *rank; ++axis) {
    if (const auto size = dim_of(node, 0, axis)) {
      expect_dim(node, 2, outer + axis - first, *size, "as the data has");
    }
  }
}

// Every part has its output: neither the sizes nor num_outputs may specify more or fewer.
void check_split(const ir::Node& node) {
  const auto count = static_cast<std::int64_t>(node.outputs.size());
  expect_dim(node, 1, 0, count, "as there are outputs");
  const std::int64_t wanted = node.int_attribute("num_outputs", count);
  if (wanted == count) return;
  throw ModelError({.what = "num_outputs is " + std::to_string(wanted) + ", but there are " +
                            std::to_string(count) + " outputs",
                    .hint = "Give num_outputs the number of outputs."});
}

// Inputs 1 and 2 have an element for each channel of input 0: [N, C, ...].
void check_channels(const ir::Node& node) {
  const std::optional<std::int64_t> channels = dim_of(node, 0, 1);
  for (std::size_t i = 1; i <= 2; ++i) {
    expect_rank(node, i, 1);
    if (channels) expect_dim(node, i, 0, *channels, "as there are channels");
  }
}

}  // namespace

void check_counts(const ir::Node& node) {
  if (node.op_type == "Split") check_split(node);
}

void check_shapes(const ir::Node& node, const std::vector<ir::Type>& outputs) {
  if (!is_standard_domain(node.domain) || outputs.empty() || node.input(0) == nullptr) return;
  const std::string& op = node.op_type;
  for (const FormRow& row : kForms) {
    if (row.op_type != op) continue;
    for (std::size_t i = row.first; i <= row.last; ++i) check_form(node, i, row.form);
  }
  if (op == "ScatterElements") check_scatter_elements(node);
  if (op == "ScatterND") check_scatter_nd(node);
  if (op == "Conv" || op == "ConvTranspose") check_convolution(node, op == "ConvTranspose");
  if (op == "Conv" || op == "MaxPool" || op == "AveragePool" || op == "LpPool") {
    check_windows(node);
  }
  if (op == "Transpose") check_transpose(node);
  if (op == "SoftmaxCrossEntropyLoss" || op == "NegativeLogLikelihoodLoss") check_loss(node);
  if (op == "Gemm") expect_broadcast(node, 2, outputs[0]);
  if (op == "PRelu") expect_broadcast(node, 1, outputs[0]);
  if (op == "Clip") check_clip(node);
  if (op == "LayerNormalization") {
    expect_broadcast(node, 1, node.inputs[0]->type);
    expect_broadcast(node, 2, node.inputs[0]->type);
  }
  if (op == "InstanceNormalization") check_channels(node);
  if (const auto rank = rank_of(node, 0); rank && op == "RMSNormalization") {
    (void)normalize_axis(node.int_attribute("axis", -1), *rank);
  }
  if (op == "Reshape") check_reshape(node, outputs[0]);
}

}  // namespace onnxgrad::onnx_io
