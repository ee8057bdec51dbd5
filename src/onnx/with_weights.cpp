#include <onnx/onnx_pb.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "ir/stored_form.h"
#include "onnx/exporter.h"
#include "onnx/file_edit.h"
#include "onnx/model_io.h"
#include "onnx/tensor_message.h"
#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {
namespace {

using Weights = std::span<const std::pair<std::string, Tensor>>;

[[noreturn]] void fail(const std::string& weight, std::string what, std::string detail = {},
                       Hint hint = "Give the weights of a model loaded from this file.") {
  throw ModelError({.what = std::move(what),
                    .where = {.value = weight},
                    .detail = std::move(detail),
                    .hint = std::move(hint)});
}

std::string_view bytes_of(const Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.raw()),
          static_cast<std::size_t>(tensor.size_bytes())};
}

// A TensorProto with its data replaced by what `write_data` appends; other fields unchanged.
template <class WriteData>
std::string rewrite_tensor(std::string_view message, const WriteData& write_data) {
  std::string result;
  std::string_view rest = message;
  for (WireReader in(message); in.next();) {
    const std::size_t size =
        static_cast<std::size_t>(in.raw_value().data() + in.raw_value().size() - rest.data());
    const std::string_view field = rest.substr(0, size);
    rest.remove_prefix(size);
    switch (in.field()) {
      case onnx::TensorProto::kFloatDataFieldNumber:
      case onnx::TensorProto::kInt32DataFieldNumber:
      case onnx::TensorProto::kInt64DataFieldNumber:
      case onnx::TensorProto::kDoubleDataFieldNumber:
      case onnx::TensorProto::kUint64DataFieldNumber:
      case onnx::TensorProto::kRawDataFieldNumber:
      case onnx::TensorProto::kExternalDataFieldNumber:
      case onnx::TensorProto::kDataLocationFieldNumber:
        break;
      default:
        result += field;
    }
  }
  WireWriter out(result);
  write_data(out);
  return result;
}

class Patcher {
 public:
  // `external`, if given, receives the data of weights in external files.
  Patcher(const FileModel& file, const ir::Model& working, ExternalTensors* external)
      : file_(file),
        working_(working),
        bytes_(file.bytes->whole()),
        index_(*bytes_),
        edit_(*bytes_),
        external_(external) {}

  void write(const std::string& name, const Tensor& weight);
  // Moves the external data that no weight has moved: into the bytes, or next to the new file.
  void move_other_external_data();
  // Size of the file with all external data in it, up to a few bytes.
  std::int64_t size_with_external_data() const;
  const FileEdit& edit() const { return edit_; }

 private:
  void write_tensor(const std::string& name, const Tensor& weight, const ir::WeightOrigin& origin,
                    const PlacePath& path);
  void write_attribute(const std::string& name, const Tensor& weight,
                       const ir::WeightOrigin& origin, const PlacePath& path);
  void write_stored(const TensorMessage& message, const Tensor& tensor, const PlacePath& path);
  void write_external(const Tensor& tensor, const PlacePath& path);
  std::size_t offset_of(std::string_view part) const {
    return static_cast<std::size_t>(part.data() - index_.bytes().data());
  }

  const FileModel& file_;
  const ir::Model& working_;
  std::shared_ptr<const std::string_view> bytes_;
  FileIndex index_;
  FileEdit edit_;
  ExternalTensors* external_;
  std::set<std::size_t> moved_;  // offsets of tensors whose external data has moved
  std::vector<Tensor> kept_;     // tensors whose data edit_ refers to
};

void Patcher::write(const std::string& name, const Tensor& weight) {
  const ir::Value* value = working_.graph->find(name);
  if (value == nullptr || !value->is_initializer()) {
    std::vector<std::string> names;
    for (const ir::Value* known : working_.graph->initializers) names.push_back(known->name);
    fail(name, "there is no weight with this name", "There are " + base::quote_list(names) + ".",
         base::nearest_or(name, names));
  }
  const Tensor& old = value->initializer;
  if (weight.dtype() != old.dtype() || weight.dims() != old.dims()) {
    fail(name,
         std::string(dtype_name(weight.dtype())) + weight.dims().to_string() + ", expected " +
             std::string(dtype_name(old.dtype())) + old.dims().to_string(),
         "New weights must have the type and shape of the old ones.");
  }
  const ir::WeightOrigin own{.name = name};
  const ir::WeightOrigin& origin = value->origin == nullptr ? own : *value->origin;
  const std::string scope = FileIndex::scope_of(origin.function, origin.path);
  const bool is_initializer = origin.kind == ir::WeightOrigin::Kind::kInitializer;
  const PlacePath* path = is_initializer ? index_.initializer(scope, origin.name)
                                         : index_.attribute(scope, origin.name, origin.attribute);
  if (path == nullptr) {
    fail(name, "the file has no such weight",
         "It was expected as '" + origin.name + "'" +
             (origin.attribute.empty() ? "." : ", attribute '" + origin.attribute + "'."));
  }
  if (is_initializer) {
    write_tensor(name, weight, origin, *path);
  } else {
    write_attribute(name, weight, origin, *path);
  }
}

void Patcher::write_tensor(const std::string& name, const Tensor& weight,
                           const ir::WeightOrigin& origin, const PlacePath& path) {
  const TensorMessage message = read_tensor_message(index_.text_at(path.back()));
  const Tensor tensor = ir::stored_form(weight, origin, message.dims);
  if (message.dtype != tensor.dtype() || message.dims != tensor.dims()) {
    fail(name, "the file stores " + std::string(dtype_name(message.dtype)) +
                   message.dims.to_string() + ", the weight is " +
                   std::string(dtype_name(tensor.dtype())) + tensor.dims().to_string());
  }
  if (message.external) {
    write_external(tensor, path);
  } else {
    write_stored(message, tensor, path);
  }
}

void Patcher::write_stored(const TensorMessage& message, const Tensor& tensor,
                           const PlacePath& path) {
  const std::string_view data = bytes_of(tensor);
  if (message.raw && message.raw->size() == data.size()) {
    kept_.push_back(tensor);
    return edit_.replace_by_view(path, offset_of(*message.raw), data.size(), data);
  }
  const bool is_fixed = message.typed_field == onnx::TensorProto::kFloatDataFieldNumber ||
                        message.typed_field == onnx::TensorProto::kDoubleDataFieldNumber;
  if (is_fixed) {
    kept_.push_back(tensor);
    std::size_t position = 0;
    for (const DataChunk& chunk : message.typed) {
      edit_.replace_by_view(path, offset_of(chunk.bytes), chunk.bytes.size(),
                            data.substr(position, chunk.bytes.size()));
      position += chunk.bytes.size();
    }
    return;
  }
  // The size of varints depends on their value: these tensors become raw data.
  edit_.replace(path, path.back().offset, path.back().size,
                rewrite_tensor(message.whole, [&](WireWriter& out) {
                  out.bytes(onnx::TensorProto::kRawDataFieldNumber, data);
                }));
}

void Patcher::write_external(const Tensor& tensor, const PlacePath& path) {
  moved_.insert(path.back().offset);
  edit_.replace(path, path.back().offset, path.back().size,
                rewrite_tensor(index_.text_at(path.back()), [&](WireWriter& out) {
                  if (external_ == nullptr) {
                    out.bytes(onnx::TensorProto::kRawDataFieldNumber, bytes_of(tensor));
                  } else {
                    write_external_fields(out, *external_, tensor);
                  }
                }));
}

void Patcher::move_other_external_data() {
  TensorDecoder decoder(nullptr, file_.external_root);
  for (const PlacePath& path : index_.external_tensors()) {
    if (moved_.contains(path.back().offset)) continue;
    write_external(decoder.decode(read_tensor_message(index_.text_at(path.back()))), path);
  }
}

std::int64_t Patcher::size_with_external_data() const {
  auto size = std::ssize(index_.bytes());
  for (const PlacePath& path : index_.external_tensors()) {
    const TensorMessage message = read_tensor_message(index_.text_at(path.back()));
    size += message.dims.size_bytes(message.dtype);
  }
  return size;
}

// Numbers in a FLOAT or FLOATS attribute, in place; a tensor attribute like an initializer.
void Patcher::write_attribute(const std::string& name, const Tensor& weight,
                              const ir::WeightOrigin& origin, const PlacePath& path) {
  using Attr = onnx::AttributeProto;
  std::vector<std::string_view> floats;  // four bytes each
  for (WireReader in(index_.text_at(path.back())); in.next();) {
    if (in.field() == Attr::kTFieldNumber) {
      PlacePath tensor = path;
      tensor.push_back({.prefix_offset = offset_of(in.length_prefix()),
                        .offset = offset_of(in.bytes()),
                        .size = in.bytes().size()});
      return write_tensor(name, weight, origin, tensor);
    }
    if (in.field() == Attr::kFFieldNumber || in.field() == Attr::kFloatsFieldNumber) {
      const std::string_view chunk = in.raw_value();
      for (std::size_t i = 0; i + sizeof(float) <= chunk.size(); i += sizeof(float)) {
        floats.push_back(chunk.substr(i, sizeof(float)));
      }
    }
  }
  const std::vector<double> values = weight.to_doubles();
  const std::size_t count = origin.index.empty() ? values.size() : origin.index.size();
  const bool has_factors = !origin.factor.empty();
  if (count != floats.size() || (has_factors && origin.factor.size() != count)) {
    fail(name, "attribute '" + origin.attribute + "' has " + std::to_string(floats.size()) +
                   " numbers, the weight has " + std::to_string(count));
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t from = origin.index.empty() ? static_cast<std::int64_t>(i) : origin.index[i];
    if (from < 0) continue;  // another weight's, or no one's
    if (from >= static_cast<std::int64_t>(values.size())) fail(name, "its origin is out of range");
    const double factor = has_factors ? static_cast<double>(origin.factor[i]) : 1.0;
    const auto number = static_cast<float>(factor * values[static_cast<std::size_t>(from)]);
    edit_.replace(path, offset_of(floats[i]), sizeof number,
                  std::string(reinterpret_cast<const char*>(&number), sizeof number));
  }
}

void expect_size(std::int64_t size, std::int64_t max_bytes) {
  if (size <= max_bytes) return;
  throw ModelError({.what = "the model with its weights would have " + std::to_string(size) +
                            " bytes; an ONNX model in memory has at most " +
                            std::to_string(max_bytes),
                    .hint = "Save it to a path (in Python Trainer(session).save(path)): large "
                            "tensors then go to a file next to it."});
}

}  // namespace

std::string with_weights(const FileModel& file, const ir::Model& working, Weights weights,
                         std::string_view note) {
  return with_weights_up_to(file, working, weights, kMaxMessageBytes, note);
}

std::string with_weights_up_to(const FileModel& file, const ir::Model& working, Weights weights,
                               std::int64_t max_bytes, std::string_view note) {
  Patcher patcher(file, working, nullptr);
  expect_size(patcher.size_with_external_data(), max_bytes);
  for (const auto& [name, tensor] : weights) patcher.write(name, tensor);
  patcher.move_other_external_data();
  std::string bytes = patcher.edit().apply();
  bytes += note;
  expect_size(std::ssize(bytes), max_bytes);
  return bytes;
}

bool has_external_data(const FileModel& file) {
  if (file.bytes == nullptr) return false;
  const auto bytes = file.bytes->whole();
  return !FileIndex(*bytes).external_tensors().empty();
}

void save_with_weights(const FileModel& file, const ir::Model& working, Weights weights,
                       const std::string& path, std::string_view note) {
  namespace fs = std::filesystem;
  as_model_error([&] {
    const std::string data_path = free_data_path(path);
    ExternalTensors external{.location = fs::path(data_path).filename().string()};
    Patcher patcher(file, working, &external);
    for (const auto& [name, tensor] : weights) patcher.write(name, tensor);
    const fs::path parent = fs::path(path).parent_path();
    std::error_code error;
    const bool is_same_folder =
        !file.external_root.empty() &&
        fs::equivalent(file.external_root, parent.empty() ? fs::path(".") : parent, error);
    if (!is_same_folder) patcher.move_other_external_data();
    expect_size(patcher.edit().result_size() + std::ssize(note), kMaxMessageBytes);
    // The data first: once the model's file has its name, the data that it refers to exists.
    if (!external.tensors.empty()) write_external(data_path, external);
    base::write_atomically(path, [&](const base::ByteSink& sink) {
      patcher.edit().write(sink);
      sink(note);
    });
  });
}

}  // namespace onnxgrad::onnx_io
