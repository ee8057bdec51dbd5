#include <algorithm>
#include <cstring>

#include "ir/builder.h"
#include "ops/image/resize_table.h"
#include "ops/index_walk_cuda.h"

// Resize and its gradient: a pass for each axis whose size changes, with the axis's table in memory
// of the card.

namespace onnxgrad::ops::resize_cuda {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;

// The elements that one of the result reads; none: it is outside. Words: x, y; elements of y,
// sizes of the axis in x and y, elements behind it; the first entry of each place and the end, the
// index of each entry.
constexpr const char* kEntries = R"(
struct og_entries {
  const og_T* line;  // along the axis
  const og_i32* indices;
  og_i64 step;
  og_i32 begin, end;
  OG_FUNCTION_MEMBER og_T at(og_i32 entry) const { return line[indices[entry] * step]; }
};
template <int n>
OG_FUNCTION og_entries og_entries_of(const og_words<n>& a, og_i64 i) {
  const og_i64 out = a.integer(4), inner = a.integer(5);
  const og_i64 row = i / inner, place = row % out;
  const og_i32* const starts = a.template pointer<const og_i32>(6);
  og_entries all;
  all.line = a.template pointer<const og_T>(0) + row / out * a.integer(3) * inner + i % inner;
  all.indices = a.template pointer<const og_i32>(7);
  all.step = inner;
  all.begin = starts[place];
  all.end = starts[place + 1];
  return all;
}
)";

constexpr const char* kResize = R"(
OG_KERNEL(og_resize, 10) {
  const double* const weights = a.pointer<const double>(8);
  for (og_i64 i = og_first(); i < a.integer(2); i += og_stride()) {
    const og_entries all = og_entries_of(a, i);
    og_T sum = 0;
    for (og_i32 t = all.begin; t < all.end; ++t) sum += (og_T)weights[t] * all.at(t);
    a.pointer<og_T>(1)[i] = all.begin == all.end ? (og_T)a.real(9) : sum;
  }
}
)";

// Every element is a copy of one, or outside; of a type with as many bytes.
constexpr const char* kSelect = R"(
OG_KERNEL(og_select, 9) {
  for (og_i64 i = og_first(); i < a.integer(2); i += og_stride()) {
    const og_entries all = og_entries_of(a, i);
    a.pointer<og_T>(1)[i] = all.begin == all.end ? (og_T)a.integer(8) : all.at(all.begin);
  }
}
)";

// The bytes of an element of this value, as an integer.
std::int64_t bits_of(DataType dtype, float value) {
  std::int64_t bits = 0;
  if (value == 0) return bits;
  const Tensor element = Tensor::scalar(value).cast(dtype);
  std::memcpy(&bits, element.raw(), static_cast<std::size_t>(element_bytes(dtype)));
  return bits;
}

KernelOffer offer_passes(const KernelRequest& request, const std::vector<ResizeTable>& tables,
                         float outside) {
  const DataType dtype = request.inputs[0].dtype;
  const bool selects =
      std::ranges::all_of(tables, [](const ResizeTable& table) { return table.is_selection(); });
  const std::int64_t bytes = element_bytes(dtype);
  const bool is_number = dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
  if (selects ? bytes == 0 || bytes > 8 : !is_number) return decline_dtype(request, dtype);
  const auto output = static_cast<std::int64_t>(request.inputs.size());
  const std::string text = (selects ? move_text(bytes) : typed_text(walk_type(dtype))) + kEntries +
                           (selects ? kSelect : kResize);
  std::vector<std::size_t> passes;
  for (std::size_t axis = tables.size(); axis-- > 0;) {
    if (!tables[axis].is_identity()) passes.push_back(axis);
  }
  std::vector<std::int64_t> sizes;
  for (const ResizeTable& table : tables) sizes.push_back(table.input);
  const auto product = [&sizes](std::size_t begin, std::size_t end) {
    std::int64_t all = 1;
    for (std::size_t i = begin; i < end; ++i) all *= sizes[i];
    return all;
  };
  KernelOffer offer;
  std::vector<TextKernel> kernels;
  if (passes.empty()) {
    kernels.push_back(bytes_kernel(request, product(0, sizes.size()) * bytes, 0, output));
  }
  std::int64_t scratch = 0;
  Word from = Word::argument(0);
  for (const std::size_t axis : passes) {
    const ResizeTable& table = tables[axis];
    sizes[axis] = table.output;
    const std::int64_t count = product(0, sizes.size());
    Word to = Word::argument(output);
    if (axis != passes.back()) {
      to = Word::argument(output + 1, scratch);
      scratch += round_up(count * bytes, std::int64_t{256});
    }
    auto kept = std::make_shared<std::vector<device::Buffer>>();
    kept->push_back(upload(request, table.starts));
    kept->push_back(upload(request, table.indices));
    if (!selects) kept->push_back(upload(request, table.weights));
    std::vector<Word> words{from,
                            to,
                            Word::of(count),
                            Word::of(table.input),
                            Word::of(table.output),
                            Word::of(product(axis + 1, sizes.size()))};
    for (const device::Buffer& buffer : *kept) {
      words.push_back(Word::of(static_cast<std::int64_t>(buffer.address)));
    }
    words.push_back(selects ? Word::of(bits_of(dtype, outside))
                            : Word::of(static_cast<double>(outside)));
    kernels.push_back(text_kernel_over(request, count, text, selects ? "og_select" : "og_resize",
                                       std::move(words)));
    kernels.back().keeps = std::move(kept);
    from = to;
  }
  offer.kernel = prepared(std::move(kernels), selects ? "selection" : "weighted sums");
  offer.kernel.scratch_bytes = scratch;
  return offer;
}

KernelOffer nothing() {
  KernelOffer offer;
  offer.kernel = prepared(std::vector<TextKernel>(), "nothing to compute");
  return offer;
}

KernelOffer offer_resize(const KernelRequest& request) {
  const auto inputs = resize_inputs(request);
  const ResizeAttrs attrs = ResizeAttrs::read(request.node);
  const auto axes =
      resolve_resize(request.node, request.inputs[0].dims, request.outputs[0].dims, inputs);
  if (request.outputs[0].dims.num_elements() == 0) return nothing();
  std::vector<ResizeTable> tables;
  for (const ResizeAxis& axis : axes) tables.push_back(make_resize_table(attrs, axis));
  return offer_passes(request, tables, request.node.float_attribute("extrapolation_value"));
}

KernelOffer offer_resize_grad(const KernelRequest& request) {
  const auto inputs = resize_grad_inputs(request);
  if (!inputs.scales && !inputs.sizes) {
    return KernelOffer::decline("scales or sizes are not known before the step runs");
  }
  if (request.outputs[0].dims.num_elements() == 0) return nothing();
  const ResizeAttrs attrs = ResizeAttrs::read(request.node);
  std::vector<ResizeTable> tables;
  for (const ResizeAxis& axis :
       resolve_resize(request.node, request.inputs[1].dims, request.inputs[0].dims, inputs)) {
    tables.push_back(make_resize_table(attrs, axis).transposed());
  }
  return offer_passes(request, tables, 0);
}

}  // namespace

void register_resize_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "Resize", 0, offer_resize);
  registry.add(ir::kFunctionDomain, "ResizeGrad", 0, offer_resize_grad);
}

}  // namespace onnxgrad::ops::resize_cuda
