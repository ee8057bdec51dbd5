#include "ops/control/iteration_cpu.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/interrupt.h"
#include "base/memory_budget.h"
#include "device/cpu/scratch_layout.h"
#include "opdef/trip_count.h"
#include "ops/kernel_support.h"

namespace onnxgrad::ops {
namespace {

using device::ScratchArray;
using device::ScratchLayout;
using opdef::BodyRun;
using opdef::BodyState;
using opdef::Slice;

constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kFirstCapacity = 16;  // initial capacity if the count is unknown
constexpr std::int64_t kDeviceUnit = 256;    // bytes that arrays on a device are rounded up to

// View [outer, length, inner] of a tensor that is scanned along `axis`.
struct Extent {
  std::int64_t outer = 1;
  std::int64_t length = 0;
  std::int64_t inner_bytes = 0;
};

Extent extent_of(const TensorDesc& desc, std::int64_t axis) {
  const auto at = static_cast<std::size_t>(normalize_axis(axis, desc.dims.rank()));
  Extent extent{.length = desc.dims[at], .inner_bytes = element_bytes(desc.dtype)};
  for (std::size_t i = 0; i < desc.dims.rank(); ++i) {
    if (i < at) extent.outer *= desc.dims[i];
    if (i > at) extent.inner_bytes *= desc.dims[i];
  }
  return extent;
}

TensorDesc without_axis(const TensorDesc& desc, std::int64_t axis) {
  std::vector<std::int64_t> dims(desc.dims.begin(), desc.dims.end());
  dims.erase(dims.begin() + normalize_axis(axis, desc.dims.rank()));
  return {.dtype = desc.dtype, .dims = Dims{std::move(dims)}};
}

TensorDesc with_axis(const TensorDesc& desc, std::int64_t axis, std::int64_t length) {
  std::vector<std::int64_t> dims(desc.dims.begin(), desc.dims.end());
  dims.insert(dims.begin() + normalize_axis(axis, desc.dims.rank() + 1), length);
  return {.dtype = desc.dtype, .dims = Dims{std::move(dims)}};
}

// All operands as one list of arguments (inputs, captured ones included, then outputs, then
// scratch), the slice of each that an iteration reads or writes, and a run's tables in the scratch.
struct IterationKernel {
  struct Moving {
    std::size_t arg = 0;
    std::int64_t start = 0;
    std::int64_t stride = 0;
    bool is_unread = false;  // written to `junk`
    ScratchArray<std::byte> junk = {};
  };

  std::shared_ptr<const opdef::CompiledBody> body = nullptr;
  bool is_loop = false;
  bool has_trip_count = false;
  bool has_condition = false;
  bool stops = false;    // its condition may become false
  bool submits = false;  // the arguments are addresses of a device
  std::size_t first_input = 0;
  std::size_t first_output = 0;  // index among the arguments
  std::size_t num_states = 0;
  std::vector<Moving> inputs = {};  // inputs of the body after iteration number and states
  std::vector<Moving> outputs = {};
  std::int64_t count = kEndless;  // number of iterations, if the shapes determine it
  ScratchArray<BodyState> states_table = {};
  ScratchArray<Slice> inputs_table = {};
  ScratchArray<Slice> outputs_table = {};
  ScratchArray<std::int64_t> iteration = {};  // its number
  ScratchArray<std::byte> workspace = {};
  ScratchLayout scratch = {};
  ScratchLayout on_host = {};  // of the tables, if the scratch is on a device

  void lay_out() {
    const std::int64_t unit = submits ? kDeviceUnit : 1;
    workspace = scratch.reserve<std::byte>(device::round_up(body->workspace_bytes(), unit));
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].is_unread) continue;
      const TensorDesc& desc = body->outputs()[i];
      outputs[i].junk =
          scratch.reserve<std::byte>(device::round_up(desc.dims.size_bytes(desc.dtype), unit));
    }
    ScratchLayout& tables = submits ? on_host : scratch;
    states_table = tables.reserve<BodyState>(static_cast<std::int64_t>(num_states) + 1);
    inputs_table = tables.reserve<Slice>(std::ssize(inputs) + 1);
    outputs_table = tables.reserve<Slice>(std::ssize(outputs));
    iteration = tables.reserve<std::int64_t>(1);
  }

  std::int64_t trip_count(KernelArgs args, const Launch& launch) const {
    if (!has_trip_count) return count;
    std::int64_t given = 0;
    body->read(reinterpret_cast<std::byte*>(&given), args[0], sizeof given, launch);
    return std::min(count, std::max<std::int64_t>(given, 0));
  }

  std::byte* scratch_of(KernelArgs args) const {
    return args[first_output + num_states + outputs.size()];
  }

  // Writes the tables of a run.
  BodyRun bind(KernelArgs args, std::byte* tables, const Launch& launch) const {
    std::byte* block = scratch_of(args);
    BodyState* states = states_table.in(tables);
    Slice* in = inputs_table.in(tables);
    Slice* out = outputs_table.in(tables);
    std::int64_t* counter = iteration.in(tables);
    std::size_t next = 0;
    if (is_loop) states[next++] = {.initial = has_condition ? args[1] : nullptr, .last = nullptr};
    for (std::size_t s = 0; s < num_states; ++s) {
      states[next++] = {.initial = args[first_input + s], .last = args[first_output + s]};
    }
    next = 0;
    if (is_loop) in[next++] = {.at = reinterpret_cast<std::byte*>(counter), .stride = 0};
    for (const Moving& input : inputs) {
      in[next++] = {.at = args[input.arg] + input.start, .stride = input.stride};
    }
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const Moving& output = outputs[i];
      out[i] = output.is_unread
                   ? Slice{.at = output.junk.in(block), .stride = 0}
                   : Slice{.at = args[output.arg] + output.start, .stride = output.stride};
    }
    return {.states = states,
            .inputs = in,
            .outputs = out,
            .count = trip_count(args, launch),
            .stops = stops,
            .counter = is_loop && !submits ? counter : nullptr,
            .counts = is_loop && submits,
            .workspace = workspace.in(block)};
  }
};

void run_kernel(const IterationKernel& kernel, KernelArgs args, const Launch& launch) {
  kernel.body->run(kernel.bind(args, kernel.scratch_of(args), launch), launch);
}

// Runs on the host; the scratch is on a device.
void submit_kernel(const IterationKernel& kernel, KernelArgs args, const Launch& launch) {
  const auto tables = base::allocate_uncharged(kernel.on_host.size_bytes());
  kernel.body->run(kernel.bind(args, tables.get(), launch), launch);
}

// Operands of a node in its closed form.
struct Operands {
  const ir::Node& node;
  std::vector<TensorDesc> inputs = {};
};

struct Prepared {
  std::optional<IterationKernel> kernel = {};
  std::string reason = {};
};

// Compiles the body and sorts the inputs; stacked outputs have no stride yet.
Prepared prepare(const Operands& operands, const Iteration& roles,
                 const opdef::BodyCompiler& bodies) {
  IterationKernel kernel{.is_loop = roles.is_loop,
                         .stops = roles.is_loop,
                         .submits = bodies.submits(),
                         .first_input = roles.first_input,
                         .first_output = operands.inputs.size(),
                         .num_states = roles.num_states};
  kernel.has_trip_count = roles.is_loop && operands.inputs[0].is_present();
  kernel.has_condition = roles.is_loop && operands.inputs[1].is_present();
  std::vector<TensorDesc> formal;
  if (roles.is_loop) {
    formal.push_back({.dtype = DataType::kInt64, .dims = {}});
    formal.push_back({.dtype = DataType::kBool, .dims = {}});
  }
  for (std::size_t i = roles.first_input; i < operands.inputs.size(); ++i) {
    const TensorDesc& desc = operands.inputs[i];
    const std::size_t k = i - roles.first_input;
    if (k < roles.num_states) {
      formal.push_back(desc);
      continue;
    }
    if (k - roles.num_states >= roles.scanned.size()) {
      kernel.inputs.push_back({.arg = i});
      formal.push_back(desc);
      continue;
    }
    const ScannedOperand& scanned = roles.scanned[k - roles.num_states];
    const Extent extent = extent_of(desc, scanned.axis);
    if (element_bytes(desc.dtype) == 0) return {.reason = "elements are smaller than a byte"};
    if (extent.outer > 1) return {.reason = "an axis other than the first is scanned"};
    kernel.count = std::min(kernel.count, extent.length);
    const std::int64_t last = std::max<std::int64_t>(extent.length - 1, 0) * extent.inner_bytes;
    kernel.inputs.push_back(
        {.arg = i,
         .start = scanned.backward ? last : 0,
         .stride = scanned.backward ? -extent.inner_bytes : extent.inner_bytes});
    formal.push_back(without_axis(desc, scanned.axis));
  }
  const opdef::BodyForm form{.first_state = roles.is_loop ? 1U : 0U,
                             .num_states = roles.num_states + (roles.is_loop ? 1 : 0)};
  std::string reason;
  kernel.body = bodies.compile(*roles.body, formal, form, reason);
  if (kernel.body == nullptr) return {.reason = std::move(reason)};
  ONNXGRAD_ASSERT(kernel.body->outputs().size() == roles.stacked.size());
  for (std::size_t i = 0; i < roles.stacked.size(); ++i) {
    const TensorDesc& desc = kernel.body->outputs()[i];
    if (element_bytes(desc.dtype) == 0) return {.reason = "elements are smaller than a byte"};
    kernel.outputs.push_back({.arg = kernel.first_output + roles.num_states + i});
  }
  return {.kernel = std::move(kernel)};
}

// Places the stacked outputs; returns "" or the reason why they cannot be written in place.
std::string place_outputs(IterationKernel& kernel, const Iteration& roles,
                          const std::vector<TensorDesc>& outputs) {
  for (std::size_t i = 0; i < roles.stacked.size(); ++i) {
    IterationKernel::Moving& place = kernel.outputs[i];
    const TensorDesc& whole = outputs[roles.num_states + i];
    if (!whole.is_present()) {
      place.is_unread = true;
      continue;
    }
    const ScannedOperand& stacked = roles.stacked[i];
    const Extent extent = extent_of(whole, stacked.axis);
    const TensorDesc& part = kernel.body->outputs()[i];
    if (extent.outer > 1) return "an axis other than the first is stacked";
    if (without_axis(whole, stacked.axis).dims != part.dims || whole.dtype != part.dtype) {
      return "what the body gives has shape " + part.dims.to_string();
    }
    if (roles.is_loop) kernel.count = std::min(kernel.count, extent.length);
    place.start =
        stacked.backward ? std::max<std::int64_t>(extent.length - 1, 0) * extent.inner_bytes : 0;
    place.stride = stacked.backward ? -extent.inner_bytes : extent.inner_bytes;
  }
  return "";
}

// Returns the length of the scanned operands. Throws: ShapeError if they differ.
std::int64_t scan_length(const ir::Node& node, const std::vector<TensorDesc>& inputs,
                         const Iteration& roles) {
  std::int64_t length = -1;
  for (std::size_t i = 0; i < roles.scanned.size(); ++i) {
    const TensorDesc& desc = inputs[roles.first_input + roles.num_states + i];
    if (desc.dims.rank() == 0) {
      throw ShapeError({.what = "scan input " + std::to_string(i) + " has no axis",
                        .where = {.node = node.name, .op_type = node.op_type},
                        .hint = "Give a tensor with an axis to scan."});
    }
    const std::int64_t own = extent_of(desc, roles.scanned[i].axis).length;
    if (length >= 0 && own != length) {
      throw ShapeError({.what = "scan input " + std::to_string(i) + " has " + std::to_string(own) +
                                " steps, the others have " + std::to_string(length),
                        .where = {.node = node.name, .op_type = node.op_type},
                        .hint = "Give all scan inputs the same length along their axes."});
    }
    length = own;
  }
  return length;
}

// Run of a node with a compiled body whose outputs are allocated during the run.
class CompiledRun {
 public:
  CompiledRun(const DynamicCall& call, const Iteration& roles, IterationKernel kernel)
      : call_(call), roles_(roles), kernel_(std::move(kernel)) {}

  std::vector<Tensor> run() {
    std::vector<Tensor> inputs = call_.inputs;
    inputs.insert(inputs.end(), call_.captured.begin(), call_.captured.end());
    for (const Tensor& input : inputs) {
      args_.push_back(const_cast<std::byte*>(input.raw()));  // kernels only read their inputs
    }
    for (std::size_t s = 0; s < roles_.num_states; ++s) {
      const Tensor& initial = inputs[roles_.first_input + s];
      results_.push_back(Tensor::empty(initial.dtype(), initial.dims()));
      args_.push_back(results_.back().mutable_raw());
    }
    const Launch launch{.stream = nullptr, .cells = call_.cells};
    const std::int64_t most = kernel_.trip_count(args_.data(), launch);
    std::int64_t capacity = std::min(most, roles_.is_loop ? kFirstCapacity : most);
    results_.resize(roles_.num_states + roles_.stacked.size());
    args_.resize(kernel_.first_output + results_.size() + 1, nullptr);
    make_room(0, capacity);
    kernel_.lay_out();
    const auto scratch = base::allocate_aligned(kernel_.scratch.size_bytes());
    args_.back() = scratch.get();
    BodyRun body_run = kernel_.bind(args_.data(), scratch.get(), launch);
    const std::function<std::int64_t(std::int64_t)> grow = [&](std::int64_t done) {
      capacity = std::min(most, 2 * capacity);
      make_room(done, capacity);
      kernel_.bind(args_.data(), scratch.get(), launch);
      return capacity;
    };
    body_run.capacity = capacity;
    body_run.grow = &grow;
    const std::int64_t done = kernel_.body->run(body_run, launch);
    for (std::size_t i = 0; i < roles_.stacked.size(); ++i)
      shorten(results_[roles_.num_states + i], i, done);
    return std::move(results_);
  }

 private:
  // Resizes the stacked outputs to `length` rows and keeps the first `done` rows.
  void make_room(std::int64_t done, std::int64_t length) {
    for (std::size_t i = 0; i < roles_.stacked.size(); ++i) {
      const TensorDesc whole =
          with_axis(kernel_.body->outputs()[i], roles_.stacked[i].axis, length);
      Tensor grown = Tensor::empty(whole.dtype, whole.dims);
      const Extent extent = extent_of(whole, roles_.stacked[i].axis);
      Tensor& result = results_[roles_.num_states + i];
      if (done > 0 && extent.inner_bytes > 0) {
        std::memcpy(grown.mutable_raw(), result.raw(),
                    static_cast<std::size_t>(done * extent.inner_bytes));
      }
      result = std::move(grown);
      IterationKernel::Moving& place = kernel_.outputs[i];
      args_[place.arg] = result.mutable_raw();
      const bool backward = roles_.stacked[i].backward;
      place.start = backward ? std::max<std::int64_t>(length - 1, 0) * extent.inner_bytes : 0;
      place.stride = backward ? -extent.inner_bytes : extent.inner_bytes;
    }
  }

  // Only a Loop may stop before the allocated length; it stacks along the first axis.
  void shorten(Tensor& result, std::size_t i, std::int64_t done) const {
    const TensorDesc whole = with_axis(kernel_.body->outputs()[i], roles_.stacked[i].axis, done);
    if (whole.dims == result.dims()) return;
    const auto owner = std::make_shared<const Tensor>(result);
    result = Tensor::view(whole.dtype, whole.dims, result.mutable_raw(), owner);
  }

  const DynamicCall& call_;
  const Iteration& roles_;
  IterationKernel kernel_;
  std::vector<Tensor> results_;
  std::vector<std::byte*> args_;
};

// Run of a node whose body is compiled for the shapes that the states have in each iteration.
class SlowRun {
 public:
  SlowRun(const DynamicCall& call, const Iteration& roles, std::int64_t count)
      : call_(call), roles_(roles), count_(count) {
    for (std::size_t s = 0; s < roles.num_states; ++s) {
      states_.push_back(call.inputs[roles.first_input + s].clone());
    }
    parts_.resize(roles.stacked.size());
    for (std::size_t k = 0; k < roles.scanned.size(); ++k) {
      check_movable(call.inputs[roles.first_input + roles.num_states + k].dtype());
    }
  }

  std::vector<Tensor> run() {
    Tensor condition = roles_.is_loop && call_.inputs[1].is_defined()
                           ? call_.inputs[1].reshaped(Dims{})
                           : Tensor::scalar(true);
    const std::size_t first = roles_.is_loop ? 1 : 0;
    std::int64_t i = 0;
    for (; i < count_ && condition.raw()[0] != std::byte{0}; ++i) {
      base::poll_interrupt();  // a Loop may be endless
      std::vector<Tensor> formal;
      if (roles_.is_loop) formal = {Tensor::scalar(i), condition};
      formal.insert(formal.end(), states_.begin(), states_.end());
      for (std::size_t k = 0; k < roles_.scanned.size(); ++k) formal.push_back(row(k, i));
      std::vector<Tensor> given = call_.run_subgraph(*roles_.body, std::move(formal));
      if (roles_.is_loop) condition = given[0].reshaped(Dims{});
      for (std::size_t s = 0; s < roles_.num_states; ++s) states_[s] = given[first + s];
      for (std::size_t k = 0; k < parts_.size(); ++k) {
        add_part(k, given[first + roles_.num_states + k]);
      }
    }
    std::vector<Tensor> results = std::move(states_);
    for (std::size_t k = 0; k < parts_.size(); ++k) results.push_back(stack(k));
    return results;
  }

 private:
  void check_movable(DataType dtype) const {
    if (element_bytes(dtype) != 0) return;
    throw UnsupportedOperatorError(
        {.what = "no kernel scans or stacks " + std::string(dtype_name(dtype)),
         .where = {.node = call_.node.name, .op_type = call_.node.op_type},
         .hint = "Scan indices of these values, and look them up after the node."});
  }

  Tensor row(std::size_t k, std::int64_t iteration) const {
    const Tensor& whole = call_.inputs[roles_.first_input + roles_.num_states + k];
    const TensorDesc desc{.dtype = whole.dtype(), .dims = whole.dims()};
    const Extent extent = extent_of(desc, roles_.scanned[k].axis);
    const TensorDesc part = without_axis(desc, roles_.scanned[k].axis);
    Tensor result = Tensor::empty(part.dtype, part.dims);
    const std::int64_t at = roles_.scanned[k].backward ? extent.length - 1 - iteration : iteration;
    for (std::int64_t o = 0; o < extent.outer; ++o) {
      std::memcpy(result.mutable_raw() + o * extent.inner_bytes,
                  whole.raw() + (o * extent.length + at) * extent.inner_bytes,
                  static_cast<std::size_t>(extent.inner_bytes));
    }
    return result;
  }

  void add_part(std::size_t k, Tensor part) {
    check_movable(part.dtype());
    std::vector<Tensor>& parts = parts_[k];
    if (!parts.empty() &&
        (parts.front().dims() != part.dims() || parts.front().dtype() != part.dtype())) {
      throw ShapeError({.what = "scan output " + std::to_string(k) + " has shape " +
                                part.dims().to_string() + " in iteration " +
                                std::to_string(parts.size()) + ", and " +
                                parts.front().dims().to_string() + " in the first",
                        .where = {.node = call_.node.name, .op_type = call_.node.op_type},
                        .hint = "Give it one shape, or collect the parts in a sequence."});
    }
    parts.push_back(std::move(part));
  }

  Tensor stack(std::size_t k) const {
    const std::vector<Tensor>& parts = parts_[k];
    const ScannedOperand& place = roles_.stacked[k];
    const TensorDesc part =
        parts.empty() ? part_of_nothing(k)
                      : TensorDesc{.dtype = parts.front().dtype(), .dims = parts.front().dims()};
    const TensorDesc whole = with_axis(part, place.axis, std::ssize(parts));
    Tensor result = Tensor::empty(whole.dtype, whole.dims);
    const Extent extent = extent_of(whole, place.axis);
    for (std::int64_t i = 0; i < extent.length; ++i) {
      const Tensor& from = parts[static_cast<std::size_t>(i)];
      const std::int64_t at = place.backward ? extent.length - 1 - i : i;
      for (std::int64_t o = 0; o < extent.outer; ++o) {
        std::memcpy(result.mutable_raw() + (o * extent.length + at) * extent.inner_bytes,
                    from.raw() + o * extent.inner_bytes,
                    static_cast<std::size_t>(extent.inner_bytes));
      }
    }
    return result;
  }

  // Describes one part of a stacked output without iterations: the static dimensions of its type, 0
  // for the others.
  TensorDesc part_of_nothing(std::size_t k) const {
    const ir::Graph& body = *roles_.body;
    const ir::Value* output = body.outputs[(roles_.is_loop ? 1 : 0) + roles_.num_states + k];
    std::vector<std::int64_t> dims;
    if (output->type.shape) {
      for (const ir::Dim& dim : *output->type.shape)
        dims.push_back(dim.is_static() ? dim.value() : 0);
    }
    return {.dtype = output->dtype(), .dims = Dims{std::move(dims)}};
  }

  const DynamicCall& call_;
  const Iteration& roles_;
  std::int64_t count_;
  std::vector<Tensor> states_;
  std::vector<std::vector<Tensor>> parts_;
};

TensorDesc desc_of(const Tensor& tensor) {
  return {.dtype = tensor.dtype(), .dims = tensor.dims()};
}

}  // namespace

namespace {

// Why a device cannot record the iterations as one piece of work.
std::string reason_of(const IterationKernel& kernel) {
  if (kernel.stops) return "its condition is computed by the body";
  if (kernel.has_trip_count) return "the host reads its trip count";
  return "its body is submitted for each iteration";
}

}  // namespace

KernelOffer offer_iteration(const KernelRequest& request, const Iteration& roles) {
  if (request.bodies == nullptr) return KernelOffer::decline("no body can be compiled here");
  if (!roles.is_loop) scan_length(request.node, request.inputs, roles);
  const Operands operands{.node = request.node, .inputs = request.inputs};
  Prepared prepared_body = prepare(operands, roles, *request.bodies);
  if (!prepared_body.kernel) return KernelOffer::decline(std::move(prepared_body.reason));
  IterationKernel& kernel = *prepared_body.kernel;
  const auto fixed = roles.is_loop ? opdef::fixed_trip_count(request.node) : std::nullopt;
  const bool has_length = !roles.is_loop || roles.stacked.empty() || fixed.has_value();
  if (!has_length) return KernelOffer::decline("the number of iterations depends on values");
  std::string misfit = place_outputs(kernel, roles, request.outputs);
  if (!misfit.empty()) return KernelOffer::decline(std::move(misfit));
  if (kernel.submits && fixed) {  // nothing depends on values of the device
    kernel.count = std::min(kernel.count, *fixed);
    kernel.has_trip_count = false;
    kernel.stops = false;
  }
  kernel.lay_out();
  const std::int64_t scratch = kernel.scratch.size_bytes();
  std::string not_recordable = kernel.submits ? reason_of(kernel) : "";
  const bool submits = kernel.submits;
  const bool is_counted = kernel.count != kEndless;
  const double flops = kernel.body->flops() * static_cast<double>(is_counted ? kernel.count : 1);
  // A run with many iterations can be interrupted.
  const bool may_throw =
      kernel.body->may_throw() || !is_counted || kernel.count >= opdef::kMostWithoutPoll;
  std::string label =
      is_counted ? "iterations " + std::to_string(kernel.count) : std::string("iterations");
  KernelOffer offer = submits ? prepared<submit_kernel>(std::move(kernel), std::move(label))
                              : prepared<run_kernel>(std::move(kernel), std::move(label));
  offer.kernel.scratch_bytes = scratch;
  offer.kernel.flops = flops;
  offer.kernel.not_recordable = std::move(not_recordable);
  if (may_throw) offer.kernel.checks.emplace_back();
  for (std::size_t s = 0; s < roles.num_states; ++s) {
    offer.kernel.in_place.emplace_back(static_cast<int>(roles.first_input + s),
                                       static_cast<int>(s));
  }
  return offer;
}

std::vector<Tensor> run_iteration(const DynamicCall& call, const Iteration& roles) {
  Operands operands{.node = call.node};
  for (const Tensor& input : call.inputs) operands.inputs.push_back(desc_of(input));
  std::int64_t count = kEndless;
  if (!roles.is_loop) {
    count = scan_length(call.node, operands.inputs, roles);
  } else if (call.inputs[0].is_defined()) {
    if (call.inputs[0].num_elements() != 1) {
      throw ShapeError({.what = "the trip count has shape " + call.inputs[0].dims().to_string() +
                                ", expected one number: [] or [1]",
                        .where = {.node = call.node.name, .op_type = call.node.op_type},
                        .hint = "Give one number, or leave it out."});
    }
    count = call.inputs[0].to_int64s().front();
  }
  for (const Tensor& captured : call.captured) operands.inputs.push_back(desc_of(captured));
  if (call.closed != nullptr) {
    Iteration closed = roles;
    const ir::AttributeValue* body = call.closed->find_attribute("body");
    closed.body = std::get<ir::GraphPtr>(*body).get();
    if (auto prepared_body = prepare(operands, closed, *call.bodies); prepared_body.kernel) {
      const bool is_first = std::ranges::all_of(
          roles.stacked, [](const ScannedOperand& stacked) { return stacked.axis == 0; });
      if (is_first) return CompiledRun(call, closed, *std::move(prepared_body.kernel)).run();
    }
  }
  return SlowRun(call, roles, count).run();
}

}  // namespace onnxgrad::ops
