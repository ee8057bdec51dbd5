#include "limits.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "feeder.h"
#include "moves.h"
#include "onnxgrad/interrupt.h"

namespace onnxgrad::fuzz {
namespace {

constexpr int kSteps = 20;  // questions of a run whether to stop: a Loop may have no end
int steps_left = 0;

// The tensor with all dimensions open, its numbers as a feed; the others keep theirs.
struct Opened {
  std::string bytes;
  std::string name;
  Dims dims;  // in the file, 2 where they are open
};

std::vector<Opened> opened(const Seed& seed) {
  onnx::ModelProto model;
  std::vector<Opened> all;
  if (!model.ParseFromString(seed.bytes)) return all;
  const auto open_dims = [](onnx::ValueInfoProto& info, int rank) {
    auto& shape = *info.mutable_type()->mutable_tensor_type()->mutable_shape();
    shape.clear_dim();
    for (int i = 0; i < rank; ++i) shape.add_dim();
  };
  const onnx::GraphProto& graph = model.graph();
  for (int i = 0; i < graph.input_size(); ++i) {
    const auto& type = graph.input(i).type().tensor_type();
    if (integer_bytes(type.elem_type()) == 0 || !type.has_shape()) continue;
    onnx::ModelProto changed = model;
    open_dims(*changed.mutable_graph()->mutable_input(i), type.shape().dim_size());
    std::vector<std::int64_t> dims;
    for (const auto& dim : type.shape().dim()) {
      dims.push_back(dim.has_dim_value() ? dim.dim_value() : 2);
    }
    all.push_back({changed.SerializeAsString(), graph.input(i).name(), Dims(std::move(dims))});
  }
  for (int i = 0; i < graph.initializer_size(); ++i) {
    const onnx::TensorProto& tensor = graph.initializer(i);
    if (integer_bytes(tensor.data_type()) == 0) continue;
    onnx::ModelProto changed = model;
    onnx::GraphProto& own = *changed.mutable_graph();
    own.mutable_initializer()->DeleteSubrange(i, 1);
    onnx::ValueInfoProto& info = *own.add_input();
    info.set_name(tensor.name());
    info.mutable_type()->mutable_tensor_type()->set_elem_type(tensor.data_type());
    open_dims(info, tensor.dims_size());
    const std::vector<std::int64_t> dims(tensor.dims().begin(), tensor.dims().end());
    all.push_back({changed.SerializeAsString(), tensor.name(), Dims(dims)});
  }
  return all;
}

bool has_sign(DataType dtype) {
  return dtype != DataType::kBool && !dtype_name(dtype).starts_with("uint");
}

std::vector<Tensor> hostile_values(DataType dtype, const Dims& like) {
  const std::size_t bytes = integer_bytes(static_cast<int>(dtype));
  const auto bits = static_cast<unsigned>(8 * bytes);
  const std::uint64_t all = bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
  const std::uint64_t highest = has_sign(dtype) ? all >> 1 : all;
  const std::uint64_t lowest = has_sign(dtype) ? highest + 1 : 0;
  std::vector<Tensor> values;
  for (const std::uint64_t number : {lowest, lowest + 1, all, highest - 1, highest}) {
    Tensor tensor = Tensor::zeros(dtype, like);
    for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
      std::memcpy(tensor.mutable_raw() + static_cast<std::size_t>(i) * bytes, &number, bytes);
    }
    values.push_back(std::move(tensor));
  }
  if (like.rank() > 0) {
    std::vector<std::int64_t> none(like.begin(), like.end());
    none.back() = 0;
    values.push_back(Tensor::zeros(dtype, Dims(std::move(none))));
  }
  return values;
}

void call(ForwardBackward& passes, const NamedTensors& feeds) {
  steps_left = kSteps;
  const InterruptScope scope([] { return --steps_left < 0; });
  const auto result = passes.forward(feeds);
  std::vector<Tensor> seeds;
  for (const Tensor& output : result.outputs) {
    const bool takes_one = is_floating(output.dtype());
    seeds.push_back(takes_one ? Tensor::zeros(output.dtype(), output.dims()) : Tensor());
  }
  (void)passes.backward(seeds);
}

// Expects a result, an error of ours that is no bug, or a run that had to be stopped.
template <class Body>
void expect_our_error(const std::string& what, const Body& body) {
  try {
    body();
  } catch (const Interrupted&) {  // NOLINT(bugprone-empty-catch): a Loop of 2^63 iterations
  } catch (const Error& error) {
    if (error.kind() == "InternalError") throw std::runtime_error(what + ": " + error.what());
  } catch (const std::exception& error) {
    throw std::runtime_error(what + ": foreign exception: " + error.what());
  }
}

// Bit masks: every set of few things, else those of one or two.
std::vector<std::uint32_t> sets_of(std::size_t count) {
  constexpr std::size_t kFew = 6;
  const std::size_t used = std::min<std::size_t>(count, 32);
  std::vector<std::uint32_t> sets;
  if (used <= kFew) {
    for (std::uint32_t set = 1; set < std::uint32_t{1} << used; ++set) sets.push_back(set);
    return sets;
  }
  for (std::size_t i = 0; i < used; ++i) {
    for (std::size_t k = i; k < used; ++k) sets.push_back(1U << i | 1U << k);
  }
  return sets;
}

}  // namespace

std::size_t feed_limits(const Seed& seed) {
  std::size_t tried = 0;
  const EngineOptions engine{.threads = 1, .memory_limit_bytes = kBudgetBytes};
  for (const Opened& one : opened(seed)) {
    std::optional<ForwardBackward> passes;
    expect_our_error(one.name, [&] {
      passes.emplace(Model::from_bytes(one.bytes), ForwardBackwardOptions{.engine = engine});
    });
    if (!passes) continue;
    Random random(1);
    Feeder feeder(seed, random, /*odd=*/false);
    NamedTensors feeds = feeder.feeds(passes->inputs());
    const auto fed = std::ranges::find(feeds, one.name, &NamedTensor::name);
    if (fed == feeds.end()) continue;
    for (Tensor& value : hostile_values(fed->tensor.dtype(), one.dims)) {
      fed->tensor = std::move(value);
      expect_our_error(one.name, [&] { call(*passes, feeds); });
      ++tried;
    }
  }
  return tried;
}

std::size_t change_inputs(const Seed& seed) {
  onnx::ModelProto model;
  if (!model.ParseFromString(seed.bytes)) return 0;
  std::size_t tried = 0;
  for (onnx::NodeProto& node : *model.mutable_graph()->mutable_node()) {
    const std::vector<std::string> inputs(node.input().begin(), node.input().end());
    const auto load_with = [&](const std::vector<std::string>& changed) {
      std::ranges::copy(changed, node.mutable_input()->begin());
      expect_our_error(node.op_type() + " with other inputs", [&] {
        (void)Model::from_bytes(model.SerializeAsString(), {.memory_limit_bytes = kBudgetBytes})
            .weights();
      });
      ++tried;
    };
    for (const std::uint32_t left_out : sets_of(inputs.size())) {
      std::vector<std::string> changed = inputs;
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        if ((left_out >> i & 1) != 0) changed[i].clear();
      }
      load_with(changed);
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      for (const std::string& other : inputs) {
        std::vector<std::string> changed = inputs;
        if (other != std::exchange(changed[i], other)) load_with(changed);
      }
    }
    std::ranges::copy(inputs, node.mutable_input()->begin());
  }
  return tried;
}

}  // namespace onnxgrad::fuzz
