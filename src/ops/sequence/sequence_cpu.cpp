#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "base/packed.h"
#include "ir/builder.h"
#include "opdef/kernel.h"
#include "opdef/packed_kind.h"
#include "ops/kernel_support.h"

// Kernels of sequences that exist at run time (in a Loop). They are stored as byte tensors, see
// base/packed.h; each operator unpacks its inputs and packs its outputs.

namespace onnxgrad::ops::sequence_cpu {
namespace {

using opdef::PackedKind;
using Tensors = std::vector<Tensor>;

[[noreturn]] void fail(const DynamicCall& call, std::string what, std::string hint) {
  throw DataError({.what = std::move(what),
                   .where = {.node = call.node.name, .op_type = call.node.op_type},
                   .hint = std::move(hint)});
}

Tensors sequence_at(const DynamicCall& call, std::size_t i) {
  auto elements = base::unpack(call.inputs.at(i));
  if (!elements) fail(call, "the optional sequence is empty", "Check OptionalHasElement first.");
  return *std::move(elements);
}

bool has_input(const DynamicCall& call, std::size_t i) {
  return i < call.inputs.size() && call.inputs[i].is_defined();
}

// Returns the only element of input `i`.
std::int64_t number_in(const DynamicCall& call, std::size_t i) {
  const Tensor& given = call.inputs.at(i);
  if (given.num_elements() != 1) {
    throw ShapeError({.what = "input " + std::to_string(i) + " has shape " +
                              given.dims().to_string() + ", expected one number: [] or [1]",
                      .where = {.node = call.node.name, .op_type = call.node.op_type},
                      .hint = "Give one number."});
  }
  return given.to_int64s().front();
}

// Returns input `i` as a position in [0, size), given in [-size, size); with `insert`, `size` is
// valid too.
std::size_t place_in(const DynamicCall& call, std::size_t i, std::size_t size, bool insert) {
  const std::int64_t given = number_in(call, i);
  const auto count = static_cast<std::int64_t>(size);
  if (given < -count || given > count || (given == count && !insert)) {
    fail(call, "position " + std::to_string(given) + " in a sequence of " + std::to_string(size),
         "Give a position within the sequence.");
  }
  return static_cast<std::size_t>(given < 0 ? given + count : given);
}

Tensors run_construct(const DynamicCall& call) { return {base::pack(call.inputs)}; }

Tensors run_empty(const DynamicCall& /*call*/) { return {base::pack({})}; }

Tensors run_at(const DynamicCall& call) {
  const Tensors elements = sequence_at(call, 0);
  return {elements[place_in(call, 1, elements.size(), false)]};
}

Tensors run_insert(const DynamicCall& call) {
  Tensors elements = sequence_at(call, 0);
  const std::size_t place =
      has_input(call, 2) ? place_in(call, 2, elements.size(), true) : elements.size();
  elements.insert(elements.begin() + static_cast<std::ptrdiff_t>(place), call.inputs.at(1));
  return {base::pack(elements)};
}

Tensors run_erase(const DynamicCall& call) {
  Tensors elements = sequence_at(call, 0);
  if (elements.empty()) fail(call, "the sequence is empty", "Check SequenceLength first.");
  const std::size_t place =
      has_input(call, 1) ? place_in(call, 1, elements.size(), false) : elements.size() - 1;
  elements.erase(elements.begin() + static_cast<std::ptrdiff_t>(place));
  return {base::pack(elements)};
}

Tensors run_length(const DynamicCall& call) {
  return {Tensor::scalar(static_cast<std::int64_t>(sequence_at(call, 0).size()))};
}

// Returns the number of elements of one slice: the product of the dimensions from `axis` on.
std::int64_t count_behind(const Tensor& tensor, std::int64_t axis) {
  return std::accumulate(tensor.dims().begin() + axis, tensor.dims().end(), std::int64_t{1},
                         std::multiplies<>());
}

// Copies `count` elements, strings too.
void copy_elements(const DynamicCall& call, const Tensor& from, std::int64_t first, Tensor& to,
                   std::int64_t place, std::int64_t count) {
  if (count == 0) return;
  if (from.dtype() == DataType::kString) {
    const auto texts =
        from.strings().subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
    std::ranges::copy(texts, to.mutable_strings().begin() + place);
    return;
  }
  const std::int64_t bytes = element_bytes(from.dtype());
  if (bytes == 0) {
    fail(call, "no kernel for " + std::string(dtype_name(from.dtype())), "Put a Cast before it.");
  }
  std::memcpy(to.mutable_raw() + place * bytes, from.raw() + first * bytes,
              static_cast<std::size_t>(count * bytes));
}

std::int64_t count_before(const Tensor& tensor, std::int64_t axis) {
  return std::accumulate(tensor.dims().begin(), tensor.dims().begin() + axis, std::int64_t{1},
                         std::multiplies<>());
}

Tensor with_new_axis(const Tensor& tensor, std::int64_t axis) {
  std::vector<std::int64_t> dims(tensor.dims().begin(), tensor.dims().end());
  dims.insert(dims.begin() + normalize_axis(axis, dims.size() + 1), 1);
  return tensor.reshaped(Dims{std::move(dims)});
}

Tensors run_concat(const DynamicCall& call) {
  Tensors parts = sequence_at(call, 0);
  if (parts.empty()) fail(call, "the sequence is empty", "Give at least one tensor.");
  const std::int64_t given = call.node.int_attribute("axis");
  if (call.node.int_attribute("new_axis", 0) == 1) {
    for (Tensor& part : parts) part = with_new_axis(part, given);
  }
  const Dims& first = parts.front().dims();
  const std::int64_t axis = normalize_axis(given, first.rank());
  std::vector<std::int64_t> dims(first.begin(), first.end());
  auto& joined = dims[static_cast<std::size_t>(axis)];
  joined = 0;
  for (const Tensor& part : parts) {
    bool fits = part.dims().rank() == first.rank() && part.dtype() == parts.front().dtype();
    for (std::size_t d = 0; fits && d < dims.size(); ++d) {
      fits = static_cast<std::int64_t>(d) == axis || part.dims()[d] == first[d];
    }
    if (!fits) {
      throw ShapeError({.what = "elements of shapes " + first.to_string() + " and " +
                                part.dims().to_string() + " cannot be joined along axis " +
                                std::to_string(axis),
                        .where = {.node = call.node.name, .op_type = call.node.op_type},
                        .hint = "Give elements that agree along all other axes."});
    }
    joined += part.dims()[static_cast<std::size_t>(axis)];
  }
  Tensor result = Tensor::empty(parts.front().dtype(), Dims{std::move(dims)});
  std::int64_t place = 0;
  for (std::int64_t o = 0; o < count_before(result, axis); ++o) {
    for (const Tensor& part : parts) {
      const std::int64_t count = count_behind(part, axis);
      copy_elements(call, part, o * count, result, place, count);
      place += count;
    }
  }
  return {result};
}

// Returns true if the parts add up to `size`, without computing their sum, which could overflow.
bool adds_up(const std::vector<std::int64_t>& parts, std::int64_t size) {
  for (const std::int64_t part : parts) {
    if (part < 0 || part > size) return false;
    size -= part;
  }
  return size == 0;
}

// Returns the sizes of the parts of `size` rows.
std::vector<std::int64_t> split_sizes(const DynamicCall& call, std::int64_t size) {
  if (has_input(call, 1) && call.inputs[1].dims().rank() == 1) {
    std::vector<std::int64_t> given = call.inputs[1].to_int64s();
    if (!adds_up(given, size)) {
      fail(call, "the parts do not add up to " + std::to_string(size), "Change 'split'.");
    }
    return given;
  }
  constexpr std::int64_t kMaxParts = std::int64_t{1} << 24;
  const std::int64_t part = has_input(call, 1) ? number_in(call, 1) : 1;
  if (part < 1) fail(call, "parts of " + std::to_string(part), "Give a positive size.");
  if (size / part > kMaxParts) {
    fail(call, std::to_string(size) + " rows in parts of " + std::to_string(part),
         "Split into at most 2^24 parts.");
  }
  std::vector<std::int64_t> sizes;
  for (std::int64_t left = size; left > 0; left -= part) sizes.push_back(std::min(part, left));
  return sizes;
}

Tensors run_split(const DynamicCall& call) {
  const Tensor& x = call.inputs.at(0);
  const std::int64_t axis = normalize_axis(call.node.int_attribute("axis", 0), x.dims().rank());
  const auto along = static_cast<std::size_t>(axis);
  const bool drops_axis = !has_input(call, 1) && call.node.int_attribute("keepdims", 1) == 0;
  const std::int64_t row = count_behind(x, axis + 1);
  const std::int64_t outer = count_before(x, axis);
  Tensors parts;
  std::int64_t start = 0;
  for (const std::int64_t size : split_sizes(call, x.dims()[along])) {
    std::vector<std::int64_t> dims(x.dims().begin(), x.dims().end());
    dims[along] = size;
    Tensor part = Tensor::empty(x.dtype(), Dims{dims});
    for (std::int64_t o = 0; o < outer; ++o) {
      copy_elements(call, x, (o * x.dims()[along] + start) * row, part, o * size * row, size * row);
    }
    if (drops_axis) {
      dims.erase(dims.begin() + axis);
      part = part.reshaped(Dims{std::move(dims)});
    }
    parts.push_back(std::move(part));
    start += size;
  }
  return {base::pack(parts)};
}

PackedKind kind_at(const DynamicCall& call, std::size_t i) {
  return static_cast<PackedKind>(call.node.ints_attribute("kinds").at(i));
}

Tensors run_map(const DynamicCall& call) {
  const ir::Graph& body = *std::get<ir::GraphPtr>(*call.node.find_attribute("body"));
  std::vector<Tensors> operands;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    const bool is_sequence = kind_at(call, i) == PackedKind::kSequence;
    operands.push_back(is_sequence ? sequence_at(call, i) : Tensors{});
    if (is_sequence && operands[i].size() != operands[0].size()) {
      fail(call,
           "sequences of " + std::to_string(operands[0].size()) + " and " +
               std::to_string(operands[i].size()) + " elements",
           "Give sequences of the same length.");
    }
  }
  std::vector<Tensors> results(call.node.outputs.size());
  for (std::size_t n = 0; n < operands.at(0).size(); ++n) {
    Tensors formal;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const bool is_sequence = kind_at(call, i) == PackedKind::kSequence;
      formal.push_back(is_sequence ? operands[i][n] : call.inputs[i]);
    }
    const Tensors given = call.run_subgraph(body, std::move(formal));
    for (std::size_t o = 0; o < results.size(); ++o) results[o].push_back(given.at(o));
  }
  Tensors packed;
  for (const Tensors& elements : results) packed.push_back(base::pack(elements));
  return packed;
}

Tensors run_optional(const DynamicCall& call) {
  if (!has_input(call, 0)) return {base::pack_nothing()};
  if (kind_at(call, 0) != PackedKind::kTensor) return {call.inputs[0]};
  return {base::pack({call.inputs.data(), 1})};
}

Tensors run_get_element(const DynamicCall& call) {
  if (kind_at(call, 0) != PackedKind::kOptionalTensor) {
    if (kind_at(call, 0) == PackedKind::kOptionalSequence)
      sequence_at(call, 0);  // throws if absent
    return {call.inputs.at(0)};
  }
  auto elements = base::unpack(call.inputs.at(0));
  if (!elements || elements->size() != 1) {
    fail(call, "the optional value is empty",
         "Check OptionalHasElement first, in the condition of an If.");
  }
  return *std::move(elements);
}

Tensors run_has_element(const DynamicCall& call) {
  if (!has_input(call, 0)) return {Tensor::scalar(false)};
  const PackedKind kind = kind_at(call, 0);
  const bool is_optional =
      kind == PackedKind::kOptionalTensor || kind == PackedKind::kOptionalSequence;
  return {Tensor::scalar(!is_optional || base::unpack(call.inputs[0]).has_value())};
}

}  // namespace

void register_sequence_cpu(opdef::KernelRegistry& registry) {
  const std::pair<const char*, opdef::DynamicFn> kernels[] = {
      {"SequenceConstruct", run_construct},
      {"SequenceEmpty", run_empty},
      {"SequenceAt", run_at},
      {"SequenceInsert", run_insert},
      {"SequenceErase", run_erase},
      {"SequenceLength", run_length},
      {"ConcatFromSequence", run_concat},
      {"SplitToSequence", run_split},
      {"SequenceMap", run_map},
      {"Optional", run_optional},
      {"OptionalGetElement", run_get_element},
      {"OptionalHasElement", run_has_element},
  };
  for (const auto& [op_type, kernel] : kernels) {
    registry.add_dynamic(ir::kFusedDomain, op_type, kernel);
  }
}

}  // namespace onnxgrad::ops::sequence_cpu
