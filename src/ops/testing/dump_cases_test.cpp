#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "onnx/model_io.h"
#include "onnxgrad/error.h"
#include "ops/older_bodies.h"
#include "ops/testing/case_runner.h"

// Writes every case for tests/python/test_op_cases.py, which runs the models through other
// implementations: <dir>/manifest.json, <dir>/data.bin and <dir>/<case>.<dtype>.<what>.onnx with
// `what` one of model, gradient, symbolic (the gradient with all dimensions symbolic) or older
// (gradient, or model if there is none, in the older opset that `older` in the manifest names), all
// as they are written for users.

namespace onnxgrad::ops_test {
namespace dump {

class Writer {
 public:
  explicit Writer(std::filesystem::path folder)
      : folder_(std::move(folder)),
        manifest_(folder_ / "manifest.json"),
        data_(folder_ / "data.bin", std::ios::binary) {}

  void add(const OpCase& op_case, DataType dtype) {
    const BuiltCase built = build_case(op_case, {.dtype = dtype});
    const CaseResult result = run_case(op_case, built);
    const std::string stem = fmt::format("{}.{}", op_case.name, dtype_name(dtype));
    save(*built.forward, stem + ".model.onnx");
    const bool has_gradient = built.gradient != nullptr;
    if (has_gradient) save(*built.gradient, stem + ".gradient.onnx");
    const std::int64_t older = save_older(has_gradient ? *built.gradient : *built.forward, stem);
    const bool has_symbolic = has_gradient && op_case.static_only.empty();
    if (has_symbolic) {
      save(*build_case(op_case, {.dtype = dtype, .symbolic = true}).gradient,
           stem + ".symbolic.onnx");
    }
    manifest_ << fmt::format(
        "{}{{\"name\": \"{}\", \"dtype\": \"{}\", \"tolerance_float32\": {}, \"no_oracle\": {}, "
        "\"gradient\": {}, \"symbolic\": {}, \"older\": {},\n \"inputs\": {}, \"seeds\": {}, "
        "\"outputs\": {}, "
        "\"gradients\": {}}}",
        is_first_ ? "[" : ",\n", op_case.name, dtype_name(dtype), op_case.tolerance_float32,
        op_case.no_oracle.empty() ? "false" : "true", has_gradient ? "true" : "false",
        has_symbolic ? "true" : "false", older, list(built.inputs), list(result.seeds),
        list(result.outputs), list(result.gradients));
    is_first_ = false;
  }

  void finish() { manifest_ << (is_first_ ? "[]\n" : "]\n"); }

 private:
  static constexpr std::int64_t kOldest = 9;
  static constexpr std::int64_t kFirstWithFunctions = 15;

  void save(const ir::Model& model, const std::string& name,
            std::int64_t opset = ir::kInternalOpset) {
    const ir::Model written =
        onnx_io::to_target_opset(model, opset, opset < kFirstWithFunctions, ops::older_body);
    std::ofstream(folder_ / name, std::ios::binary) << onnx_io::to_bytes(written);
  }

  // Saves each case in another opset, all opsets in turn. Returns 0 if that opset cannot express
  // it.
  std::int64_t save_older(const ir::Model& model, const std::string& stem) {
    const std::int64_t opset = kOldest + num_added_++ % (ir::kInternalOpset - kOldest);
    try {
      save(model, stem + ".older.onnx", opset);
    } catch (const ModelError&) {
      return 0;
    }
    return opset;
  }

  std::string list(const std::vector<Tensor>& tensors) {
    std::vector<std::string> entries;
    for (const Tensor& tensor : tensors) {
      entries.push_back(fmt::format("{{\"dtype\": \"{}\", \"dims\": [{}], \"offset\": {}}}",
                                    dtype_name(tensor.dtype()), fmt::join(tensor.dims(), ", "),
                                    offset_));
      data_.write(reinterpret_cast<const char*>(tensor.raw()), tensor.size_bytes());
      offset_ += tensor.size_bytes();
    }
    return fmt::format("[{}]", fmt::join(entries, ", "));
  }

  std::filesystem::path folder_;
  std::ofstream manifest_;
  std::ofstream data_;
  std::int64_t offset_ = 0;
  std::int64_t num_added_ = 0;
  bool is_first_ = true;
};

// Returns the case in float32 with a trainable weight: its first floating input x is fed as x_fed,
// and x = x_fed + case_weight.
OpCase with_weight(const OpCase& op_case) {
  OpCase changed = op_case;
  const std::vector<std::string> names = input_names(op_case);
  changed.outputs = output_names(op_case);
  bool has_weight = false;
  for (std::size_t i = 0; i < names.size(); ++i) {
    CaseInput& input = changed.inputs[i];
    input = input.named(names[i]);
    if (has_weight || input.is_constant || input.dtype != DataType::kUndefined) continue;
    input = input.named(names[i] + "_fed");
    changed.model =
        fmt::format("{} = Add ({}_fed, case_weight)\n{}", names[i], names[i], changed.model);
    has_weight = true;
    changed.inputs.push_back(uniform(input.dims, -0.01, 0.01).named("case_weight").constant());
  }
  return changed;
}

}  // namespace dump

// Writes seeds for tests/fuzz: <dir>/<case>.onnx as it would be in a file.
TEST(DumpCases, WritesTheirModels) {
  const char* folder = std::getenv("ONNXGRAD_CASE_MODELS");
  if (folder == nullptr) GTEST_SKIP() << "ONNXGRAD_CASE_MODELS names no folder";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  for (const OpCase& op_case : all_op_cases()) {
    const OpCase with_weight = dump::with_weight(op_case);
    const auto file = onnx_io::load_text(model_text(with_weight, {.dtype = DataType::kFloat32}));
    std::ofstream(std::filesystem::path(folder) / (op_case.name + ".onnx"), std::ios::binary)
        << *file.bytes->whole();
  }
}

TEST(DumpCases, WritesThemWhereAskedTo) {
  const char* folder = std::getenv("ONNXGRAD_DUMP_CASES");
  if (folder == nullptr) GTEST_SKIP() << "ONNXGRAD_DUMP_CASES names no folder";
  dump::Writer writer(folder);
  for (const OpCase& op_case : all_op_cases()) {
    for (const DataType dtype : {DataType::kFloat64, DataType::kFloat32}) {
      try {
        writer.add(op_case, dtype);
      } catch (const Error& error) {  // the others are worth a look all the same
        ADD_FAILURE() << op_case.name << ": " << error.what();
      }
    }
  }
  writer.finish();
}

}  // namespace onnxgrad::ops_test
