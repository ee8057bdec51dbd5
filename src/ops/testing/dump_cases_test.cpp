#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "onnx/model_io.h"
#include "onnxgrad/error.h"
#include "ops/testing/case_runner.h"

// Writes every case for tests/python/test_op_cases.py, which runs the models through other
// implementations: <dir>/manifest.json, <dir>/data.bin and <dir>/<case>.<dtype>.<what>.onnx with
// `what` model, gradient or symbolic (the gradient with all dimensions symbolic).

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
    const bool has_symbolic = has_gradient && op_case.static_only.empty();
    if (has_symbolic) {
      save(*build_case(op_case, {.dtype = dtype, .symbolic = true}).gradient,
           stem + ".symbolic.onnx");
    }
    manifest_ << fmt::format(
        "{}{{\"name\": \"{}\", \"dtype\": \"{}\", \"tolerance_float32\": {}, \"no_oracle\": {}, "
        "\"gradient\": {}, \"symbolic\": {},\n \"inputs\": {}, \"seeds\": {}, \"outputs\": {}, "
        "\"gradients\": {}}}",
        is_first_ ? "[" : ",\n", op_case.name, dtype_name(dtype), op_case.tolerance_float32,
        op_case.no_oracle.empty() ? "false" : "true", has_gradient ? "true" : "false",
        has_symbolic ? "true" : "false", list(built.inputs), list(result.seeds),
        list(result.outputs), list(result.gradients));
    is_first_ = false;
  }

  void finish() { manifest_ << (is_first_ ? "[]\n" : "]\n"); }

 private:
  void save(const ir::Model& model, const std::string& name) {
    std::ofstream(folder_ / name, std::ios::binary) << onnx_io::to_bytes(model);
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
  bool is_first_ = true;
};

}  // namespace dump

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
