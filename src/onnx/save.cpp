#include <filesystem>
#include <string>
#include <utility>

#include "base/files.h"
#include "onnx/exporter.h"
#include "onnx/model_io.h"
#include "onnx/wire.h"
#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {
namespace {

// Above that, tensors leave the message; the rest must still fit.
constexpr std::int64_t kMaxInlineBytes = kMaxMessageBytes - (std::int64_t{64} << 20);

void expect_message_size(const std::string& bytes) {
  if (static_cast<std::int64_t>(bytes.size()) <= kMaxMessageBytes) return;
  throw ModelError({.what = "the serialized model would have " + std::to_string(bytes.size()) +
                            " bytes; an ONNX file has at most 2147483647",
                    .hint = "Save it to a path: large tensors then go to a file next to it."});
}

}  // namespace

std::string free_data_path(const std::string& model_path) {
  std::string path = model_path + ".data";
  for (int i = 1; std::filesystem::exists(std::filesystem::symlink_status(path)); ++i) {
    path = model_path + "." + std::to_string(i) + ".data";
  }
  return path;
}

void write_external(const std::string& path, const ExternalTensors& external) {
  base::write_atomically(
      path,
      [&external](const base::ByteSink& sink) {
        std::int64_t position = 0;
        for (const auto& [offset, tensor] : external.tensors) {
          sink(std::string(static_cast<std::size_t>(offset - position), '\0'));
          sink({reinterpret_cast<const char*>(tensor.raw()),
                static_cast<std::size_t>(tensor.size_bytes())});
          position = offset + tensor.size_bytes();
        }
      },
      base::Existing::kRefuse);
}

void save_model(const ir::Model& model, const std::string& path, std::int64_t max_inline_bytes) {
  if (initializer_bytes(model) <= max_inline_bytes) {
    base::write_atomically(path, to_bytes(model));
    return;
  }
  // The data first: once the model's file has its name, the data that it refers to exists.
  const std::string data_path = free_data_path(path);
  ExternalTensors external{.location = std::filesystem::path(data_path).filename().string()};
  const std::string bytes = export_model(model, &external);
  expect_message_size(bytes);
  write_external(data_path, external);
  base::write_atomically(path, bytes);
}

std::string to_bytes(const ir::Model& model) {
  if (initializer_bytes(model) > kMaxMessageBytes) {
    throw ModelError(
        {.what = "the model's weights have more than 2 GiB, the limit for an ONNX file",
         .hint = "Save it to a path: large tensors then go to a file next to it."});
  }
  std::string bytes = export_model(model);
  expect_message_size(bytes);
  return bytes;
}

void save_file(const ir::Model& model, const std::string& path) {
  as_model_error([&] { save_model(model, path, kMaxInlineBytes); });
}

}  // namespace onnxgrad::onnx_io
