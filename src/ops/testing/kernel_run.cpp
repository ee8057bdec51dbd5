#include "ops/testing/kernel_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <utility>

#include "base/rounding.h"
#include "opdef/packed_constants.h"
#include "ops/builtin.h"
#include "ops/testing/case_runner.h"

namespace onnxgrad::ops_test {
namespace kernel_run_detail {

constexpr std::int64_t kGuardBytes = 256;
constexpr auto kGuard = std::byte{0xFF};  // NaN as floating-point values

const opdef::KernelRegistry& kernels() {
  static const opdef::KernelRegistry registry = [] {
    opdef::KernelRegistry all;
    ops::register_builtin_cpu_kernels(all);
    return all;
  }();
  return registry;
}

// Memory block between two guards.
class GuardedBlock {
 public:
  explicit GuardedBlock(std::int64_t bytes)
      : bytes_(bytes), block_(Tensor::empty(DataType::kUint8, Dims{bytes + 2 * kGuardBytes})) {
    std::fill_n(block_.mutable_raw(), block_.size_bytes(), kGuard);
  }
  std::byte* data() { return block_.mutable_raw() + kGuardBytes; }
  void expect_guards(const std::string& what) const {
    for (std::int64_t i = 0; i < kGuardBytes; ++i) {
      ASSERT_EQ(block_.raw()[i], kGuard) << what << " is written before its start";
      ASSERT_EQ(block_.raw()[kGuardBytes + bytes_ + i], kGuard)
          << what << " is written past its end";
    }
  }

 private:
  std::int64_t bytes_;
  Tensor block_;
};

using Function = std::function<void(opdef::KernelArgs args, const opdef::Launch& launch)>;

// Calls the kernel for blocks that cover all results, in any order.
void run_by_blocks(const KernelCall& call, const opdef::PreparedKernel& kernel,
                   opdef::KernelArgs args, const opdef::Launch& launch) {
  const opdef::BlockWork& work = kernel.by_blocks;
  const auto present = std::ranges::find_if(call.outputs, &opdef::TensorDesc::is_present);
  if (present == call.outputs.end()) return;
  const Dims& dims = present->dims;
  const std::int64_t size = dims.num_elements();
  if (size == 0) return;
  const std::int64_t last = dims.rank() == 0 ? 1 : dims[dims.rank() - 1];
  const std::int64_t width = work.width > 0 ? work.width : last;
  std::mt19937 random(static_cast<unsigned>(size));
  const auto cut = [&](std::int64_t total) {
    std::vector<std::int64_t> ends{0};
    while (ends.back() < total) {
      const auto step = static_cast<std::int64_t>(random() % 40) + 1;
      ends.push_back(std::min(ends.back() + step * base::ceil_div(total, 100), total));
    }
    return ends;
  };
  const std::vector<std::int64_t> rows = cut(size / width);
  const bool needs_rows = work.cut == opdef::BlockCut::kRows;
  const std::vector<std::int64_t> columns =
      needs_rows ? std::vector{std::int64_t{0}, width} : cut(width);
  std::vector<opdef::Block> blocks;
  for (std::size_t r = 0; r + 1 < rows.size(); ++r) {
    for (std::size_t c = 0; c + 1 < columns.size(); ++c) {
      blocks.push_back({.row = rows[r],
                        .rows = rows[r + 1] - rows[r],
                        .column = columns[c],
                        .columns = columns[c + 1] - columns[c],
                        .width = width,
                        .thread = static_cast<std::int64_t>(random() % 8) % work.most_threads});
    }
  }
  std::ranges::shuffle(blocks, random);
  for (const opdef::Block& block : blocks) {
    work.fn(kernel.data.get(), args, launch, block);
  }
}

KernelRun run_one(const KernelCall& call, const opdef::PreparedKernel& kernel, int rank,
                  const Function& function) {
  std::vector<std::byte*> args;
  for (const Tensor& input : call.inputs) {
    args.push_back(input.is_defined() ? const_cast<std::byte*>(input.raw()) : nullptr);  // NOLINT
  }
  std::vector<GuardedBlock> blocks;
  for (const opdef::TensorDesc& output : call.outputs) {
    blocks.emplace_back(output.is_present() ? output.dims.size_bytes(output.dtype) : 0);
    args.push_back(output.is_present() ? blocks.back().data() : nullptr);
  }
  GuardedBlock scratch(kernel.scratch_bytes);
  args.push_back(scratch.data());
  opdef::Launch launch;
  launch.cells = &call.cells;
  function(args.data(), launch);
  scratch.expect_guards("the scratch of " + kernel.label);

  KernelRun run{.rank = rank, .label = kernel.label, .outputs = {}};
  for (std::size_t i = 0; i < call.outputs.size(); ++i) {
    blocks[i].expect_guards("output " + std::to_string(i) + " of " + kernel.label);
    const opdef::TensorDesc& desc = call.outputs[i];
    Tensor copy;
    if (desc.is_present()) {
      copy = Tensor::empty(desc.dtype, desc.dims);
      std::memcpy(copy.mutable_raw(), blocks[i].data(),
                  static_cast<std::size_t>(copy.size_bytes()));
    }
    run.outputs.push_back(std::move(copy));
  }
  return run;
}

KernelRun run_one(const KernelCall& call, const opdef::PreparedKernel& kernel, int rank) {
  KernelRun run =
      run_one(call, kernel, rank, [&](opdef::KernelArgs args, const opdef::Launch& launch) {
        kernel.fn(kernel.data.get(), args, launch);
      });
  if (kernel.by_blocks.fn == nullptr) return run;
  const KernelRun apart =
      run_one(call, kernel, rank, [&](opdef::KernelArgs args, const opdef::Launch& launch) {
        run_by_blocks(call, kernel, args, launch);
      });
  for (std::size_t i = 0; i < run.outputs.size(); ++i) {
    if (!run.outputs[i].is_defined()) continue;
    EXPECT_TRUE(run.outputs[i].equals(apart.outputs[i]))
        << "output " << i << " of " << kernel.label << " differs by blocks";
  }
  return run;
}

double largest(const std::vector<double>& numbers) {
  double most = 1;
  for (const double number : numbers) most = std::max(most, std::abs(number));
  return most;
}

}  // namespace kernel_run_detail

std::vector<KernelRun> run_offers(const KernelCall& call) {
  using namespace kernel_run_detail;  // NOLINT(google-build-using-namespace): this file's own
  ir::Graph graph;
  std::vector<ir::Value*> values;
  std::vector<opdef::TensorDesc> inputs;
  std::vector<const Tensor*> constants(call.inputs.size(), nullptr);
  for (const Tensor& input : call.inputs) {
    values.push_back(input.is_defined()
                         ? graph.add_input("x", ir::Type::tensor(input.dtype(), input.dims()))
                         : nullptr);
    inputs.push_back({.dtype = input.dtype(), .dims = input.dims()});
  }
  for (const std::size_t index : call.constants) constants[index] = &call.inputs[index];
  ir::Node* node = graph.add_node(call.op_type, values, call.outputs.size(), call.attributes,
                                  call.domain, "node_under_test");
  if (const opdef::OpDef* def = builtin_ops().find(*node)) opdef::complete_attributes(*node, *def);
  opdef::PackedConstants packed;
  const opdef::KernelRequest request{.node = *node,
                                     .inputs = inputs,
                                     .outputs = call.outputs,
                                     .constants = constants,
                                     .threads = call.threads,
                                     .keeps_constants = true,
                                     .packed = &packed,
                                     .cpu = call.cpu};
  std::vector<KernelRun> runs;
  for (const auto& entry : kernels().offers(call.domain, call.op_type)) {
    const opdef::KernelOffer offer = entry.offer(request);
    if (offer.kernel.fn == nullptr) {
      EXPECT_NE(offer.declined, "") << "an offer of " << call.op_type << " has no reason";
      continue;
    }
    runs.push_back(run_one(call, offer.kernel, entry.rank));
  }
  return runs;
}

std::vector<Tensor> run_plain(const KernelCall& call) {
  std::vector<KernelRun> runs = run_offers(call);
  if (runs.empty() || runs.back().rank != 0) {
    ADD_FAILURE() << call.op_type << ": the plain kernel declines";
    return {};
  }
  return std::move(runs.back().outputs);
}

std::size_t compare_offers(const KernelCall& call, double tolerance) {
  const std::vector<KernelRun> runs = run_offers(call);
  if (runs.empty() || runs.back().rank != 0) {
    ADD_FAILURE() << call.op_type << ": the plain kernel declines";
    return 0;
  }
  for (std::size_t k = 0; k + 1 < runs.size(); ++k) {
    for (std::size_t i = 0; i < call.outputs.size(); ++i) {
      if (!call.outputs[i].is_present()) continue;
      const std::vector<double> expected = runs.back().outputs[i].to_doubles();
      const std::vector<double> given = runs[k].outputs[i].to_doubles();
      const double allowed = tolerance * kernel_run_detail::largest(expected);
      for (std::size_t j = 0; j < expected.size(); ++j) {
        if (std::abs(given[j] - expected[j]) <= allowed || given[j] == expected[j]) continue;
        if (std::isnan(given[j]) && std::isnan(expected[j])) continue;
        ADD_FAILURE() << call.op_type << " by " << runs[k].label << ", output " << i << ", element "
                      << j << ": " << given[j] << ", plain: " << expected[j];
        break;
      }
    }
  }
  return runs.size() - 1;
}

Tensor random_tensor(DataType dtype, Dims dims, std::uint64_t seed, double low, double high) {
  std::mt19937_64 engine(seed);
  Tensor numbers = Tensor::empty(DataType::kFloat64, std::move(dims));
  for (double& number : numbers.mutable_data<double>()) {
    number = low + (high - low) * static_cast<double>(engine() >> 11) * 0x1p-53;
  }
  return numbers.cast(dtype);
}

}  // namespace onnxgrad::ops_test
