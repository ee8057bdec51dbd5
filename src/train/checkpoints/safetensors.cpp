#include "train/checkpoints/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "base/check.h"

namespace onnxgrad::train {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are written in memory order");

constexpr std::size_t kLengthBytes = 8;
constexpr std::int64_t kMaxHeaderBytes = 100'000'000;
constexpr const char* kMetadata = "__metadata__";

constexpr std::array<std::pair<std::string_view, DataType>, 14> kTypes{{
    {"F64", DataType::kFloat64},
    {"F32", DataType::kFloat32},
    {"F16", DataType::kFloat16},
    {"BF16", DataType::kBfloat16},
    {"F8_E4M3", DataType::kFloat8E4M3FN},
    {"F8_E5M2", DataType::kFloat8E5M2},
    {"I64", DataType::kInt64},
    {"I32", DataType::kInt32},
    {"I16", DataType::kInt16},
    {"I8", DataType::kInt8},
    {"U64", DataType::kUint64},
    {"U32", DataType::kUint32},
    {"U16", DataType::kUint16},
    {"U8", DataType::kUint8},
}};
constexpr std::string_view kBool = "BOOL";

std::optional<DataType> type_from_text(std::string_view text) {
  if (text == kBool) return DataType::kBool;
  for (const auto& [name, dtype] : kTypes) {
    if (name == text) return dtype;
  }
  return std::nullopt;
}

std::optional<std::string_view> text_of_type(DataType dtype) {
  if (dtype == DataType::kBool) return kBool;
  for (const auto& [name, known] : kTypes) {
    if (known == dtype) return name;
  }
  return std::nullopt;
}

/// One tensor as described in the header.
struct RawEntry {
  std::string name;
  std::optional<DataType> dtype = {};
  std::optional<std::vector<std::int64_t>> shape = {};
  std::optional<std::vector<std::int64_t>> offsets = {};
};

/// Receives the header piece by piece from the parser, so that nothing malformed is ever
/// stored. An event in the wrong place stops the parser.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<RawEntry> entries;
  SafetensorsMetadata metadata;
  std::string problem;

  bool start_object(std::size_t /*elements*/) override {
    if (place_ == Place::kStart) return go(Place::kTop);
    if (place_ == Place::kTopValue) return go(is_metadata_ ? Place::kMetadata : Place::kEntry);
    return refuse_safetensors("an object where none belongs");
  }
  bool end_object() override {
    if (place_ == Place::kTop) return go(Place::kEnd);
    if (place_ == Place::kEntry) {
      const RawEntry& entry = entries.back();
      if (!entry.dtype || !entry.shape || !entry.offsets) {
        return refuse_safetensors("tensor '" + entry.name + "' lacks dtype, shape or data_offsets");
      }
    }
    return go(Place::kTop);
  }
  bool key(string_t& text) override {
    if (place_ == Place::kTop) {
      if (!names_.insert(text).second)
        return refuse_safetensors("the name '" + text + "' occurs twice");
      is_metadata_ = text == kMetadata;
      if (!is_metadata_) entries.push_back({.name = text});
      return go(Place::kTopValue);
    }
    if (place_ == Place::kMetadata) {
      if (metadata.contains(text))
        return refuse_safetensors("the metadata '" + text + "' occur twice");
      key_ = text;
      return go(Place::kMetadataValue);
    }
    key_ = text;
    return go(Place::kEntryValue);
  }
  bool string(string_t& text) override {
    if (place_ == Place::kMetadataValue) {
      metadata.emplace(key_, text);
      return go(Place::kMetadata);
    }
    if (place_ != Place::kEntryValue || key_ != "dtype" || entries.back().dtype) {
      return refuse_safetensors("a string where none belongs");
    }
    entries.back().dtype = type_from_text(text);
    if (!entries.back().dtype) {
      return refuse_safetensors("tensor '" + entries.back().name + "' has the unknown type '" +
                                text + "'");
    }
    return go(Place::kEntry);
  }
  bool start_array(std::size_t /*elements*/) override {
    if (place_ != Place::kEntryValue) return refuse_safetensors("a list where none belongs");
    RawEntry& entry = entries.back();
    const bool is_shape = key_ == "shape";
    if (!is_shape && key_ != "data_offsets")
      return refuse_safetensors("an unknown list '" + key_ + "'");
    auto& list = is_shape ? entry.shape : entry.offsets;
    if (list) return refuse_safetensors("tensor '" + entry.name + "' has '" + key_ + "' twice");
    list.emplace();
    list_ = &*list;
    return go(Place::kList);
  }
  bool end_array() override { return go(Place::kEntry); }
  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kList) return refuse_safetensors("a number where none belongs");
    if (list_->size() >= Dims::kMaxRank)
      return refuse_safetensors("a shape with more than 64 dimensions");
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
      return refuse_safetensors("a number above 2^63");
    }
    list_->push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool null() override { return refuse_safetensors("a null"); }
  bool boolean(bool /*value*/) override { return refuse_safetensors("a true or false"); }
  bool number_integer(number_integer_t /*value*/) override {
    return refuse_safetensors("a negative number");
  }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override {
    return refuse_safetensors("a number that is not an integer");
  }
  bool binary(binary_t& /*value*/) override { return refuse_safetensors("binary data"); }
  bool parse_error(std::size_t position, const std::string& /*last_token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return refuse_safetensors(fmt::format("invalid JSON at byte {}", position));
  }

 private:
  enum class Place : std::uint8_t {
    kStart,
    kTop,
    kTopValue,
    kMetadata,
    kMetadataValue,
    kEntry,
    kEntryValue,
    kList,
    kEnd,
  };
  bool go(Place place) {
    place_ = place;
    return true;
  }
  bool refuse_safetensors(const std::string& what) {
    if (problem.empty()) problem = what.substr(0, 300);
    return false;
  }

  Place place_ = Place::kStart;
  bool is_metadata_ = false;
  std::string key_;
  std::vector<std::int64_t>* list_ = nullptr;
  std::unordered_set<std::string> names_;
};

[[noreturn]] void refuse_safetensors(const std::string& path, const std::string& what,
                                     const std::string& tensor = {}) {
  throw CheckpointError({.what = "this is not a complete safetensors file: " + what,
                         .where = {.file = path, .value = tensor},
                         .hint = "The file was truncated or modified, or has another format."});
}

/// Dims and number of bytes; the header's numbers are not trusted.
std::pair<Dims, std::int64_t> checked_size(const RawEntry& entry, const std::string& path) {
  try {
    Dims dims(*entry.shape);
    const std::int64_t bytes = dims.size_bytes(*entry.dtype);
    return {std::move(dims), bytes};
  } catch (const ShapeError& error) {
    refuse_safetensors(path, "tensor '" + entry.name + "': " + error.problem().what, entry.name);
  }
}

}  // namespace

void rethrow_as_checkpoint_error(const Error& error) { throw CheckpointError(error.problem()); }

SafetensorsFile SafetensorsFile::open(const std::string& path, base::PathOf origin) {
  try {
    SafetensorsFile result(base::ReadableFile::open(path, origin));
    result.read_head();
    return result;
  } catch (const CheckpointError&) {
    throw;
  } catch (const Error& error) {
    rethrow_as_checkpoint_error(error);
  }
}

void SafetensorsFile::read_head() {
  const std::int64_t size = file_.size_bytes();
  if (size < static_cast<std::int64_t>(kLengthBytes))
    refuse_safetensors(path(), "it has less than 8 bytes");
  std::uint64_t length = 0;
  file_.read(0, std::as_writable_bytes(std::span(&length, 1)));
  const std::int64_t most =
      std::min(kMaxHeaderBytes, size - static_cast<std::int64_t>(kLengthBytes));
  if (length > static_cast<std::uint64_t>(most)) {
    refuse_safetensors(path(),
                       fmt::format("its header has {} bytes, but there are {}", length, most));
  }
  head_.resize(kLengthBytes + static_cast<std::size_t>(length));
  file_.read(0, std::as_writable_bytes(std::span(head_)));
  HeaderReader reader;
  const std::string_view text = std::string_view(head_).substr(kLengthBytes);
  const bool is_whole = nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  if (!is_whole) refuse_safetensors(path(), "its header has " + reader.problem);
  metadata_ = std::move(reader.metadata);

  const auto data_begin = static_cast<std::int64_t>(head_.size());
  for (const RawEntry& raw : reader.entries) {
    auto [dims, bytes] = checked_size(raw, path());
    const auto& offsets = *raw.offsets;
    if (offsets.size() != 2 || offsets[1] < offsets[0] || offsets[1] - offsets[0] != bytes) {
      refuse_safetensors(path(),
                         fmt::format("tensor '{}' does not have the {} bytes of {}{}", raw.name,
                                     bytes, dtype_name(*raw.dtype), dims.to_string()),
                         raw.name);
    }
    if (offsets[1] > size - data_begin) {
      refuse_safetensors(path(), "tensor '" + raw.name + "' ends past the end of the file",
                         raw.name);
    }
    entries_.push_back({.name = raw.name,
                        .dtype = *raw.dtype,
                        .dims = std::move(dims),
                        .offset = data_begin + offsets[0]});
  }
  place_entries();
}

// Sorts by position; every byte after the header must belong to exactly one tensor.
void SafetensorsFile::place_entries() {
  const auto end_of = [](const SafetensorsEntry& entry) {
    return entry.offset + entry.dims.size_bytes(entry.dtype);
  };
  std::sort(entries_.begin(), entries_.end(), [&](const auto& a, const auto& b) {
    return std::tuple(a.offset, end_of(a), a.name) < std::tuple(b.offset, end_of(b), b.name);
  });
  auto expected = static_cast<std::int64_t>(head_.size());
  for (const SafetensorsEntry& entry : entries_) {
    if (entry.offset != expected) {
      refuse_safetensors(path(), "there is a gap or an overlap before tensor '" + entry.name + "'",
                         entry.name);
    }
    expected = end_of(entry);
  }
  if (expected != file_.size_bytes()) {
    refuse_safetensors(path(), fmt::format("it has {} bytes, but its tensors end at {}",
                                           file_.size_bytes(), expected));
  }
}

Tensor SafetensorsFile::read(const SafetensorsEntry& entry) const {
  Tensor tensor = Tensor::empty(entry.dtype, entry.dims);
  const auto size = static_cast<std::size_t>(tensor.size_bytes());
  try {
    file_.read(entry.offset, std::span(tensor.mutable_raw(), size));
  } catch (const Error& error) {
    rethrow_as_checkpoint_error(error);
  }
  if (entry.dtype == DataType::kBool) {
    const std::span<const std::byte> bytes(tensor.raw(), size);
    if (std::ranges::any_of(bytes, [](std::byte b) { return b > std::byte{1}; })) {
      refuse_safetensors(path(), "tensor '" + entry.name + "' has a bool that is neither 0 nor 1",
                         entry.name);
    }
  }
  return tensor;
}

void sort_for_safetensors(NamedTensors& tensors) {
  NamedTensors sorted;
  for (const int bits : {128, 64, 32, 16, 8, 4, 2, 0}) {
    for (const NamedTensor& entry : tensors) {
      if (size_bits(entry.tensor.dtype()) == bits) sorted.push_back(entry);
    }
  }
  tensors = std::move(sorted);
}

std::string safetensors_head(const NamedTensors& tensors, const SafetensorsMetadata& metadata) {
  nlohmann::ordered_json header;
  header[kMetadata] = metadata;
  std::unordered_set<std::string> names{kMetadata};
  std::int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto type = text_of_type(tensor.dtype());
    if (!type) {
      throw CheckpointError(
          {.what = fmt::format("'{}' is {}, which a safetensors file cannot contain", name,
                               dtype_name(tensor.dtype())),
           .where = {.value = name},
           .hint = "Omit it, or convert it to a numeric type."});
    }
    if (!names.insert(name).second) {
      throw CheckpointError({.what = "two tensors have the name '" + name + "'",
                             .where = {.value = name},
                             .hint = "Give each weight of the model a different name."});
    }
    nlohmann::ordered_json& entry = header[name];
    const std::span<const std::int64_t> dims = tensor.dims().values();
    entry["dtype"] = std::string(*type);
    entry["shape"] = std::vector<std::int64_t>(dims.begin(), dims.end());
    entry["data_offsets"] = {offset, offset + tensor.size_bytes()};
    offset += tensor.size_bytes();
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError({.what = "a name or string of a checkpoint is not UTF-8",
                           .hint = "Name the weights of the model in UTF-8."});
  }
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  if (text.size() > static_cast<std::size_t>(kMaxHeaderBytes)) {
    throw CheckpointError({.what = fmt::format("a header of {} bytes is too long", text.size()),
                           .hint = "Give the weights shorter names."});
  }
  const std::uint64_t length = text.size();
  std::string head(kLengthBytes, '\0');
  std::memcpy(head.data(), &length, kLengthBytes);
  return head + text;
}

void write_safetensors(const std::string& path, const std::string& head,
                       const NamedTensors& tensors, base::Existing existing) {
  try {
    base::write_atomically(
        path,
        [&](const base::ByteSink& sink) {
          sink(head);
          for (const NamedTensor& entry : tensors) {
            sink({reinterpret_cast<const char*>(entry.tensor.raw()),
                  static_cast<std::size_t>(entry.tensor.size_bytes())});
          }
        },
        existing);
  } catch (const Error& error) {
    rethrow_as_checkpoint_error(error);
  }
}

}  // namespace onnxgrad::train
