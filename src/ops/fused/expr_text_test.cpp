#include "opdef/expr_text.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/philox.h"
#include "device/cpu/elementwise.h"
#include "onnx/inference.h"
#include "ops/fused/scalar_expr.h"
#include "ops/testing/case_runner.h"

// The text of every element-wise program that the operators' cases are fused to, compiled by the
// compiler of the tests, beside the tiles of the CPU.

namespace onnxgrad::ops_test::expr_text {

using opdef::Elementwise;
using opdef::ExprOp;
using opdef::ExprProgram;
using opdef::TensorDesc;

// A node that a plan asked for a kernel.
struct Asked {
  Elementwise op;
  std::vector<TensorDesc> inputs;
  std::vector<TensorDesc> outputs;
};

// The nodes asked for, without repetitions: by program, and by types and shapes.
std::map<std::string, Asked>& asked() {
  static std::map<std::string, Asked> nodes;
  return nodes;
}

void remember(Asked node) {
  std::string key = fmt::format("{}", static_cast<int>(node.op.compute));
  const auto add = [&](const std::vector<std::int64_t>& numbers) {
    for (const std::int64_t number : numbers) key += fmt::format(",{}", number);
    key += ';';
  };
  add(node.op.program.to_ints());
  if (node.op.post) add(node.op.post->to_ints());
  for (const opdef::Fold fold : node.op.folds) key += fmt::format("f{}", static_cast<int>(fold));
  add(node.op.reduce_axes);
  for (const auto* list : {&node.inputs, &node.outputs}) {
    for (const TensorDesc& desc : *list) {
      key += fmt::format("{}{}", static_cast<int>(desc.dtype), desc.dims.to_string());
    }
  }
  asked().try_emplace(std::move(key), std::move(node));
}

opdef::KernelOffer remember_elementwise(const opdef::KernelRequest& request) {
  remember({.op = Elementwise::read(request.node),
            .inputs = request.inputs,
            .outputs = request.outputs});
  return opdef::KernelOffer::decline("only remembered");
}

// The epilogue of a product as a node of its own, on numbers of its type.
opdef::KernelOffer remember_epilogue(const opdef::KernelRequest& request) {
  const opdef::Gemm gemm = opdef::Gemm::read(request.node);
  const TensorDesc& product = request.outputs.front();
  const bool is_wide = product.dtype == DataType::kFloat32 || product.dtype == DataType::kFloat64;
  if (gemm.epilogue && is_wide) {
    std::vector<TensorDesc> inputs{product};
    inputs.insert(inputs.end(), request.inputs.begin() + 2, request.inputs.end());
    remember({.op = {.program = *gemm.epilogue, .compute = product.dtype, .stored = 1},
              .inputs = std::move(inputs),
              .outputs = {product}});
  }
  return opdef::KernelOffer::decline("only remembered");
}

void collect() {
  opdef::KernelRegistry kernels = builtin_engine().kernels;
  constexpr int kFirst = 1000;
  kernels.add(ir::kFusedDomain, opdef::kElementwise, kFirst, remember_elementwise);
  kernels.add(ir::kFusedDomain, opdef::kGemm, kFirst, remember_epilogue);
  const runtime::Engine engine{builtin_ops(), kernels, onnx_io::make_type_inferer};
  for (const OpCase& op_case : all_op_cases()) {
    if (op_case.name.find(".absent.") != std::string::npos) continue;
    const BuiltCase built = build_case(op_case, {.dtype = DataType::kFloat32});
    for (const auto& model : {built.forward, built.gradient}) {
      if (model == nullptr) continue;
      runtime::Executor executor(model, engine);
      std::vector<Dims> dims;
      for (const runtime::Port& input : executor.inputs()) {
        if (const auto known = input.type.static_dims()) dims.push_back(*known);
      }
      if (dims.size() == executor.inputs().size()) executor.prepare(dims);
    }
  }
}

// The values of an operand: small numbers, with special ones among them.
Tensor operand(const TensorDesc& desc, std::uint64_t seed) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kSpecial[] = {0, -0.0, 1, -1, 0.5, -2.5, kInfinity, -kInfinity, kNan, 3e4};
  std::vector<double> numbers;
  for (std::int64_t i = 0; i < desc.dims.num_elements(); ++i) {
    const auto words = base::philox4x32({static_cast<std::uint32_t>(i)}, seed);
    const double unit = static_cast<double>(words[0]) / 4294967296.0;
    if (desc.dtype == DataType::kBool) {
      numbers.push_back(unit < 0.5 ? 0 : 1);
    } else if (!is_floating(desc.dtype)) {
      const bool is_signed = desc.dtype != DataType::kUint8 && desc.dtype != DataType::kUint16 &&
                             desc.dtype != DataType::kUint32 && desc.dtype != DataType::kUint64;
      numbers.push_back(std::floor(unit * 9) - (is_signed ? 4 : 0));
    } else {
      const bool is_special = words[1] % 16 == 0;
      numbers.push_back(is_special ? kSpecial[words[2] % std::size(kSpecial)] : unit * 4 - 2);
    }
  }
  return Tensor::from(numbers, desc.dims).cast(desc.dtype);
}

std::vector<Tensor> empty_outputs(const Asked& node) {
  std::vector<Tensor> outputs;
  for (const TensorDesc& desc : node.outputs) {
    outputs.push_back(desc.is_present() ? Tensor::zeros(desc.dtype, desc.dims) : Tensor());
  }
  return outputs;
}

std::byte* address(Tensor& tensor) { return tensor.is_defined() ? tensor.mutable_raw() : nullptr; }

// nullopt: no kernel computes it.
std::optional<std::vector<Tensor>> by_tiles(const Asked& node, std::vector<Tensor>& inputs) {
  std::vector<device::Fold> folds;
  for (const opdef::Fold fold : node.op.folds) folds.push_back(static_cast<device::Fold>(fold));
  const auto offer = device::prepare_elementwise({.program = node.op.program,
                                                  .compute = node.op.compute,
                                                  .inputs = node.inputs,
                                                  .outputs = node.outputs,
                                                  .stored = node.op.stored,
                                                  .folds = folds,
                                                  .reduce_axes = node.op.reduce_axes,
                                                  .post = node.op.post});
  if (offer.kernel.fn == nullptr) return std::nullopt;
  std::vector<Tensor> outputs = empty_outputs(node);
  Tensor scratch = Tensor::zeros(DataType::kUint8, {offer.kernel.scratch_bytes + 64});
  std::vector<std::byte*> arguments;
  for (Tensor& input : inputs) arguments.push_back(address(input));
  for (Tensor& output : outputs) arguments.push_back(address(output));
  arguments.push_back(scratch.mutable_raw());
  const opdef::StepCells cells;
  offer.kernel.fn(offer.kernel.data.get(), arguments.data(), {.stream = nullptr, .cells = &cells});
  return outputs;
}

// The texts as a library, with a loop over all elements around each.
class Library {
 public:
  /// `name` differs from that of every library before it: they stay loaded.
  Library(const std::string& name, const std::string& text) {
    const std::filesystem::path folder =
        std::filesystem::path(testing::TempDir()) / fmt::format("{}_{}", name, ::getpid());
    std::filesystem::create_directories(folder);
    const std::filesystem::path source = folder / "texts.cpp";
    std::ofstream(source) << text;
    const std::filesystem::path library = folder / "texts.so";
    const std::string command =
        fmt::format("{} -std=c++17 -O0 -ffp-contract=off -mfma -shared -fPIC -w -o {} {} -lm",
                    ONNXGRAD_TEST_COMPILER, library.string(), source.string());
    if (std::system(command.c_str()) == 0) handle_ = ::dlopen(library.c_str(), RTLD_NOW);
    std::filesystem::remove_all(folder);
  }
  using Fn = void (*)(const void* const*, void* const*, long long);
  bool is_loaded() const { return handle_ != nullptr; }
  Fn find(const std::string& name) const {
    return reinterpret_cast<Fn>(::dlsym(handle_, name.c_str()));
  }

 private:
  void* handle_ = nullptr;
};

std::vector<Tensor> by_text(const Asked& node, std::vector<Tensor>& inputs, Library::Fn fn) {
  std::vector<Tensor> outputs = empty_outputs(node);
  std::vector<const void*> in;
  std::vector<void*> out;
  for (Tensor& input : inputs) in.push_back(address(input));
  for (Tensor& output : outputs) out.push_back(address(output));
  fn(in.data(), out.data(), opdef::elementwise_calls(node.op, node.inputs));
  return outputs;
}

// Tiles round the sum of a product and a number once.
bool is_inexact(const ExprProgram& program) {
  const auto is_product = [&](std::int32_t i) {
    return program.instructions[static_cast<std::size_t>(i)].op == ExprOp::kMul;
  };
  return std::ranges::any_of(program.instructions, [&](const opdef::ExprInstruction& in) {
    const bool is_sum = in.op == ExprOp::kAdd || in.op == ExprOp::kSub;
    if (is_sum && (is_product(in.a) || is_product(in.b))) return true;
    return (in.op >= ExprOp::kExp && in.op <= ExprOp::kSoftplus && in.op != ExprOp::kSqrt &&
            in.op != ExprOp::kReciprocal) ||
           in.op == ExprOp::kPow;
  });
}

// Quotients of small differences magnify what tiles round once.
bool divides_by_difference(const ExprProgram& program) {
  return std::ranges::any_of(program.instructions, [&](const opdef::ExprInstruction& in) {
    return in.op == ExprOp::kDiv &&
           program.instructions[static_cast<std::size_t>(in.b)].op == ExprOp::kSub;
  });
}

// Exact programs have the same numbers, others nearly.
double tolerance_of(const Asked& node) {
  const bool sums = std::ranges::find(node.op.folds, opdef::Fold::kSum) != node.op.folds.end();
  if (!is_floating(node.op.compute)) return 0;
  if (!sums && !is_inexact(node.op.program) && !(node.op.post && is_inexact(*node.op.post)))
    return 0;
  constexpr double kUnits = 64;
  if (node.op.compute == DataType::kFloat32) return kUnits * 0x1p-24;
  return divides_by_difference(node.op.program) ? 0x1p-33 : kUnits * 0x1p-53;
}

std::string difference(const Tensor& text, const Tensor& tiles, double tolerance) {
  const auto a = text.to_doubles();
  const auto b = tiles.to_doubles();
  double largest = 1;
  for (const double value : b) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool same = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i])) ||
                      std::abs(a[i] - b[i]) <= tolerance * largest;
    if (!same) return fmt::format("element {}: {} by the text, {} by the tiles", i, a[i], b[i]);
  }
  return "";
}

TEST(ExprText, HasTheNumbersOfTheTiles) {
  collect();
  ASSERT_GT(asked().size(), 500U);
  std::string text(opdef::text_prelude());
  std::vector<std::pair<const Asked*, std::string>> named;
  for (const auto& [key, node] : asked()) {
    const std::string name = fmt::format("node{}", named.size());
    const std::string one = opdef::elementwise_text(node.op, node.inputs, node.outputs, name);
    named.emplace_back(&node, one.empty() ? "" : name);
    if (one.empty()) continue;
    text += one;
    text += fmt::format(
        "extern \"C\" void run_{0}(const void* const* in, void* const* out, long long n) {{\n"
        "  for (long long i = 0; i < n; ++i) {0}(in, out, i);\n}}\n",
        name);
  }
  const Library library("nodes", text);
  ASSERT_TRUE(library.is_loaded());
  std::size_t compared = 0;
  for (const auto& [node, name] : named) {
    std::vector<Tensor> inputs;
    for (const TensorDesc& desc : node->inputs) inputs.push_back(operand(desc, inputs.size() + 1));
    const auto tiles = by_tiles(*node, inputs);
    if (!tiles) continue;
    ASSERT_FALSE(name.empty()) << node->op.program.to_string();
    const auto texts = by_text(*node, inputs, library.find("run_" + name));
    for (std::size_t i = 0; i < texts.size(); ++i) {
      if (!texts[i].is_defined()) continue;
      const std::string found = difference(texts[i], (*tiles)[i], tolerance_of(*node));
      EXPECT_EQ(found, "") << "output " << i << " of " << node->op.program.to_string() << "\n"
                           << opdef::elementwise_text(node->op, node->inputs, node->outputs, name);
      ++compared;
    }
  }
  EXPECT_GT(compared, 500U);
}

// One instruction for all numbers of a list.
TEST(ExprText, FunctionsAreWithinFourUnits) {
  std::string text(opdef::text_prelude());
  std::vector<std::pair<ExprOp, std::string>> names;
  for (int i = static_cast<int>(ExprOp::kExp); i <= static_cast<int>(ExprOp::kRound); ++i) {
    const auto op = static_cast<ExprOp>(i);
    ExprProgram program{.num_inputs = 1};
    program.results = {program.emit(op, program.input(0))};
    const std::string name = opdef::expr_op_name(op);
    text += opdef::program_text(program, DataType::kFloat32, "og_test_" + name);
    text += fmt::format(
        "extern \"C\" void run_{0}(const void* const* in, void* const* out, long long n) {{\n"
        "  for (long long i = 0; i < n; ++i) og_test_{0}((const float*)in[0] + i, (float*)out[0] + "
        "i);\n}}\n",
        name);
    names.emplace_back(op, opdef::expr_op_name(op));
  }
  const Library library("functions", text);
  ASSERT_TRUE(library.is_loaded());
  std::vector<double> numbers;
  for (int i = -400; i <= 400; ++i) numbers.push_back(i / 37.0);
  for (const double one : {0.0, 1e-30, -1e-30, 80.0, -80.0, 1e4}) numbers.push_back(one);
  for (const auto& [op, name] : names) {
    std::vector<float> given(numbers.begin(), numbers.end());
    std::vector<float> found(given.size());
    const void* in[] = {given.data()};
    void* out[] = {found.data()};
    library.find("run_" + name)(in, out, std::ssize(given));
    for (std::size_t i = 0; i < given.size(); ++i) {
      const auto truth = static_cast<float>(ops::apply_function<double>(op, given[i]));
      const float unit =
          std::nextafter(std::abs(truth), std::numeric_limits<float>::infinity()) - std::abs(truth);
      const bool fits = found[i] == truth || (std::isnan(found[i]) && std::isnan(truth)) ||
                        std::abs(found[i] - truth) <= 4 * unit;
      EXPECT_TRUE(fits) << name << " of " << given[i] << ": " << found[i] << ", expected " << truth;
    }
  }
}

}  // namespace onnxgrad::ops_test::expr_text
