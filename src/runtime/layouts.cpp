#include "runtime/layouts.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/memory_budget.h"
#include "ir/builder.h"
#include "ir/static_size.h"
#include "onnxgrad/error.h"
#include "opdef/convert_layout.h"
#include "opdef/layout_order.h"
#include "runtime/kernel_selection.h"

namespace onnxgrad::runtime {
namespace {

using ir::Node;
using ir::Value;
using opdef::Layout;

Layout asked_of_input(const opdef::KernelRequest& request, const opdef::PreparedKernel& kernel,
                      std::size_t i) {
  return opdef::simplest(kernel.input_layout(i), request.inputs[i].dims);
}

Layout asked_of_output(const opdef::KernelRequest& request, const opdef::PreparedKernel& kernel,
                       std::size_t i) {
  return opdef::simplest(kernel.output_layout(i), request.outputs[i].dims);
}

bool reads_as_given(const opdef::KernelRequest& request, const opdef::PreparedKernel& kernel) {
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    if (request.has_input(i) && asked_of_input(request, kernel, i) != request.inputs[i].layout) {
      return false;
    }
  }
  return true;
}

[[noreturn]] void throw_unstable(const opdef::KernelRequest& request) {
  throw InternalError(fmt::format(
      "an offer for {} node '{}', asked with the layouts of its answer, answers others: it shall "
      "answer by node, types and layouts alone",
      request.node.op_type, request.node.name));
}

// Rewrites a graph; see place_layouts().
class Placement {
 public:
  Placement(ir::Graph& graph, const Engine& engine, int threads, const opdef::BodyCompiler* bodies)
      : graph_(graph), engine_(engine), threads_(threads), bodies_(bodies) {}

  Layouts run() {
    std::vector<Node*> nodes = std::exchange(graph_.nodes, {});
    for (Node* node : nodes) {
      place(*node);
      graph_.nodes.push_back(node);  // after the conversions of its operands
    }
    for (Value*& output : graph_.outputs) output = converted(output, {});
    return std::move(layouts_);
  }

 private:
  void place(Node& node) {
    const opdef::OpDef* def = engine_.ops.find(node);
    if (def != nullptr && def->is_view()) return make_plain(node);
    opdef::KernelRequest request = request_of(node);
    std::optional<SelectedKernel> selected = select_kernel(engine_, request);
    if (!selected || selected->is_on_host) return make_plain(node);
    if (!reads_as_given(request, selected->kernel)) {
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        if (request.has_input(i)) {
          node.inputs[i] = converted(node.inputs[i], asked_of_input(request, selected->kernel, i));
        }
      }
      const opdef::KernelRequest again = request_of(node);
      selected = select_kernel(engine_, again);
      if (!selected || !reads_as_given(again, selected->kernel)) throw_unstable(again);
    }
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      if (request.has_output(i)) {
        layouts_.set(node.outputs[i], asked_of_output(request, selected->kernel, i));
      }
    }
  }

  opdef::KernelRequest request_of(const Node& node) const {
    opdef::KernelRequest request = make_request(engine_, node, threads_, bodies_);
    layouts_.describe(request);
    return request;
  }

  void make_plain(Node& node) {
    for (Value*& input : node.inputs) input = converted(input, {});
  }

  // The value in a layout.
  Value* converted(Value* value, Layout layout) {
    if (value == nullptr || layouts_.of(value) == layout) return value;
    for (const auto& [known, made] : made_[value]) {
      if (known == layout) return made;
    }
    const opdef::ConvertLayout op{.from = layouts_.of(value), .to = layout};
    const std::string name = value->name + "/" + opdef::to_string(layout);
    Value* result = graph_.add_value(graph_.names().unique(name), value->type);
    Node* node = graph_.make_node(opdef::kConvertLayout, {value}, {result}, name, op.attributes(),
                                  ir::kFusedDomain);
    layouts_.set(result, layout);
    if (value->is_constant()) {
      fold(*node);
    } else {
      graph_.nodes.push_back(node);
    }
    made_[value].emplace_back(layout, result);
    return result;
  }

  // Makes the result of the conversion of a constant a constant.
  void fold(const Node& node) {
    const Value* from = node.inputs[0];
    Value* to = node.outputs[0];
    const opdef::KernelRequest request = request_of(node);
    const auto kernel = select_kernel(engine_.on_host(), request);
    if (!kernel) throw_no_kernel(node, "");
    Tensor tensor = Tensor::empty(
        to->dtype(), opdef::stored_dims(request.outputs[0].dims, request.outputs[0].layout));
    const auto scratch = base::allocate_aligned(kernel->scratch_bytes);
    std::byte* const args[] = {const_cast<std::byte*>(from->initializer.raw()),  // only read
                               tensor.mutable_raw(), scratch.get()};
    const opdef::StepCells cells;
    kernel->fn(kernel->data.get(), args, {.stream = nullptr, .cells = &cells});
    to->initializer = std::move(tensor);
    to->producer = nullptr;
    graph_.initializers.push_back(to);
  }

  ir::Graph& graph_;
  const Engine& engine_;
  int threads_;
  const opdef::BodyCompiler* bodies_;
  Layouts layouts_;
  ir::PointerMap<Value, std::vector<std::pair<Layout, Value*>>> made_;  // by what is converted
};

}  // namespace

void Layouts::set(const ir::Value* value, opdef::Layout layout) {
  if (!layout.is_plain() || !of(value).is_plain()) layouts_[value] = layout;
}

std::int64_t Layouts::bytes_of(const ir::Value* value) const {
  const opdef::Layout layout = of(value);
  if (!layout.is_plain()) {
    return opdef::stored_bytes(value->type.fixed_dims(), value->dtype(), layout);
  }
  const auto bytes = ir::static_bytes(*value);
  ONNXGRAD_ASSERT(bytes.has_value());
  return *bytes;
}

void Layouts::describe(opdef::KernelRequest& request) const {
  if (are_all_plain()) return;
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    request.inputs[i].layout = of(request.node.inputs[i]);
    if (!request.inputs[i].layout.is_plain()) request.constants[i] = nullptr;
  }
  for (std::size_t i = 0; i < request.outputs.size(); ++i) {
    request.outputs[i].layout = of(request.node.outputs[i]);
  }
}

void Layouts::check(const opdef::KernelRequest& request, const opdef::PreparedKernel& kernel) {
  if (!reads_as_given(request, kernel)) throw_unstable(request);
  for (std::size_t i = 0; i < request.outputs.size(); ++i) {
    if (request.has_output(i) && asked_of_output(request, kernel, i) != request.outputs[i].layout) {
      throw_unstable(request);
    }
  }
}

Layouts place_layouts(ir::Graph& graph, const Engine& engine, int threads,
                      const opdef::BodyCompiler* bodies) {
  return Placement(graph, engine, threads, bodies).run();
}

Tensor in_plain_order(const Tensor& stored, const Dims& dims, opdef::Layout layout) {
  Tensor plain = Tensor::empty(stored.dtype(), dims);
  const std::int64_t count = dims.num_elements();
  if (count == 0) return plain;
  const auto size = static_cast<std::size_t>(plain.size_bytes() / count);
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(
        plain.mutable_raw() + static_cast<std::size_t>(i) * size,
        stored.raw() + static_cast<std::size_t>(opdef::stored_offset(i, dims, layout)) * size,
        size);
  }
  return plain;
}

}  // namespace onnxgrad::runtime
