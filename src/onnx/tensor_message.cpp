#include "onnx/tensor_message.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <type_traits>

#include "onnx/wire.h"
#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {
namespace {

using Field = onnx::TensorProto;

[[noreturn]] void fail(const TensorMessage& message, std::string what) {
  throw ModelError({.what = std::move(what),
                    .where = {.value = std::string(message.name)},
                    .hint = "Fetch or export the model again, with all of its files."});
}

// Unsigned decimal without sign or space, as in the external data specification.
std::int64_t parse_count(const TensorMessage& message, const std::string& key,
                         const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.front() == '-') {
    fail(message, "external data with " + key + " '" + text.substr(0, 40) + "', expected a number");
  }
  return value;
}

ExternalLocation read_external(const TensorMessage& message,
                               const std::vector<std::string_view>& entries) {
  ExternalLocation external;
  std::vector<std::string> seen;
  for (const std::string_view entry : entries) {
    const auto [key, value] = read_entry(entry);
    if (std::ranges::find(seen, key) != seen.end()) {
      fail(message, "external data with '" + key.substr(0, 40) + "' twice");
    }
    seen.push_back(key);
    if (key == "location") {
      external.location = value;
    } else if (key == "offset") {
      external.offset = value.empty() ? 0 : parse_count(message, key, value);
    } else if (key == "length") {
      external.length = parse_count(message, key, value.empty() ? "-" : value);
    } else if (key != "checksum") {
      fail(message, "external data with the unknown key '" + key.substr(0, 40) + "'");
    }
  }
  if (external.location.empty()) fail(message, "external data without a location");
  return external;
}

DataType read_dtype(const TensorMessage& message, std::int32_t number) {
  if (number < 1 || number > static_cast<std::int32_t>(DataType::kInt2)) {
    fail(message, "element type " + std::to_string(number) + " is unknown");
  }
  return static_cast<DataType>(number);
}

bool is_typed_field(int field) {
  switch (field) {
    case Field::kFloatDataFieldNumber:
    case Field::kInt32DataFieldNumber:
    case Field::kStringDataFieldNumber:
    case Field::kInt64DataFieldNumber:
    case Field::kDoubleDataFieldNumber:
    case Field::kUint64DataFieldNumber:
      return true;
    default:
      return false;
  }
}

// Bools in files may have any byte value; in memory they are 0 or 1.
bool has_only_bools(std::string_view raw) {
  return std::ranges::all_of(raw, [](char c) { return c == 0 || c == 1; });
}

std::size_t element_alignment(DataType dtype) {
  const auto bytes = static_cast<std::size_t>(std::max(size_bits(dtype) / 8, 1));
  const bool is_complex = dtype == DataType::kComplex64 || dtype == DataType::kComplex128;
  return is_complex ? bytes / 2 : bytes;
}

// Elements of int32_data, int64_data or uint64_data: varints that must fit `Stored`, signed or not.
template <class Stored>
void decode_varints(const TensorMessage& message, Tensor& tensor, std::int64_t num_slots) {
  static_assert(std::is_unsigned_v<Stored>);
  auto* out = reinterpret_cast<Stored*>(tensor.mutable_raw());
  std::int64_t count = 0;
  for (const DataChunk& chunk : message.typed) {
    for (std::string_view rest = chunk.bytes; !rest.empty(); ++count) {
      std::uint64_t value = take_varint(rest);
      if (count >= num_slots) continue;
      if (message.typed_field == Field::kInt32DataFieldNumber) {
        value = static_cast<std::uint64_t>(std::int64_t{static_cast<std::int32_t>(value)});
      }
      if constexpr (sizeof(Stored) < sizeof value) {
        constexpr std::int64_t kBits = 8 * sizeof(Stored);
        const auto number = static_cast<std::int64_t>(value);
        if (number < -(std::int64_t{1} << (kBits - 1)) || number >= std::int64_t{1} << kBits) {
          fail(message, "element " + std::to_string(number) + " does not fit into " +
                            std::string(dtype_name(message.dtype)));
        }
      }
      out[count] = static_cast<Stored>(value);
    }
  }
  if (count != num_slots) {
    fail(message, std::to_string(count) + " stored elements for shape " + message.dims.to_string() +
                      ", expected " + std::to_string(num_slots));
  }
}

// Elements of float_data and double_data: the bytes of memory, in one chunk or many.
void decode_fixed(const TensorMessage& message, Tensor& tensor) {
  const auto expected = static_cast<std::size_t>(tensor.size_bytes());
  std::size_t size = 0;
  for (const DataChunk& chunk : message.typed) {
    if (size + chunk.bytes.size() <= expected && !chunk.bytes.empty()) {
      std::memcpy(tensor.mutable_raw() + size, chunk.bytes.data(), chunk.bytes.size());
    }
    size += chunk.bytes.size();
  }
  if (size != expected) {
    fail(message, std::to_string(size) + " bytes of data for shape " + message.dims.to_string() +
                      ", expected " + std::to_string(expected));
  }
}

Tensor decode_strings(const TensorMessage& message) {
  const auto count = static_cast<std::int64_t>(message.typed.size());
  if (count != message.dims.num_elements()) {
    fail(message, std::to_string(count) + " strings for shape " + message.dims.to_string());
  }
  std::vector<std::string> values;
  values.reserve(message.typed.size());
  for (const DataChunk& chunk : message.typed) values.emplace_back(chunk.bytes);
  return Tensor::from_strings(std::move(values), message.dims);
}

// No tensor is made before this has shown that the message contains (or may contain) its elements:
// a shape alone must not make us allocate memory.
void expect_plausible(const TensorMessage& message) {
  std::uint64_t stored = 0;
  for (const DataChunk& chunk : message.typed) stored += chunk.bytes.size();
  const auto needed = static_cast<std::uint64_t>(message.dims.size_bytes(message.dtype));
  // A varint has at least one byte for at most eight bytes in memory.
  if (needed / 8 > stored) {
    fail(message, std::to_string(stored) + " bytes of data for shape " + message.dims.to_string());
  }
}

Tensor decode_typed(const TensorMessage& message) {
  if (message.dtype == DataType::kString) return decode_strings(message);
  expect_plausible(message);
  Tensor tensor = Tensor::empty(message.dtype, message.dims);
  if (message.typed_field == Field::kFloatDataFieldNumber ||
      message.typed_field == Field::kDoubleDataFieldNumber) {
    decode_fixed(message, tensor);
    return tensor;
  }
  const int bits = size_bits(message.dtype);
  const std::int64_t num_slots = bits < 8 ? tensor.size_bytes() : tensor.num_elements();
  if (bits <= 8) {
    decode_varints<std::uint8_t>(message, tensor, num_slots);
  } else if (bits == 16) {
    decode_varints<std::uint16_t>(message, tensor, num_slots);
  } else if (bits == 32) {
    decode_varints<std::uint32_t>(message, tensor, num_slots);
  } else {
    decode_varints<std::uint64_t>(message, tensor, num_slots);
  }
  return tensor;
}

void normalise_bools(Tensor& tensor) {
  std::byte* bytes = tensor.mutable_raw();
  for (std::int64_t i = 0; i < tensor.size_bytes(); ++i) {
    bytes[i] = bytes[i] == std::byte{0} ? std::byte{0} : std::byte{1};
  }
}

}  // namespace

std::pair<std::string, std::string> read_entry(std::string_view bytes) {
  std::pair<std::string, std::string> entry;
  for (WireReader in(bytes); in.next();) {
    if (in.field() == onnx::StringStringEntryProto::kKeyFieldNumber) entry.first = in.text();
    if (in.field() == onnx::StringStringEntryProto::kValueFieldNumber) entry.second = in.text();
  }
  return entry;
}

int typed_field_of(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat32:
    case DataType::kComplex64:
      return Field::kFloatDataFieldNumber;
    case DataType::kFloat64:
    case DataType::kComplex128:
      return Field::kDoubleDataFieldNumber;
    case DataType::kInt64:
      return Field::kInt64DataFieldNumber;
    case DataType::kUint32:
    case DataType::kUint64:
      return Field::kUint64DataFieldNumber;
    case DataType::kString:
      return Field::kStringDataFieldNumber;
    default:
      return Field::kInt32DataFieldNumber;
  }
}

TensorMessage read_tensor_message(std::string_view bytes) {
  TensorMessage message;
  message.whole = bytes;
  std::vector<std::int64_t> dims;
  std::vector<std::string_view> external;
  std::int32_t dtype = 0;
  std::int32_t location = onnx::TensorProto::DEFAULT;
  for (WireReader in(bytes); in.next();) {
    switch (in.field()) {
      case Field::kDimsFieldNumber:
        in.append_to(dims);
        break;
      case Field::kDataTypeFieldNumber:
        dtype = in.int32();
        break;
      case Field::kNameFieldNumber:
        message.name = in.text();
        break;
      case Field::kDocStringFieldNumber:
        message.doc_string = in.text();
        break;
      case Field::kRawDataFieldNumber:
        message.raw = in.bytes();
        break;
      case Field::kExternalDataFieldNumber:
        external.push_back(in.bytes());
        break;
      case Field::kDataLocationFieldNumber:
        location = in.int32();
        break;
      case Field::kMetadataPropsFieldNumber:
        message.metadata.push_back(read_entry(in.bytes()));
        break;
      case Field::kSegmentFieldNumber:
        fail(message, "tensors in segments cannot be read");
      default:
        if (!is_typed_field(in.field())) break;
        if (message.typed_field != 0 && message.typed_field != in.field()) {
          fail(message, "data in two forms");
        }
        message.typed_field = in.field();
        message.typed.push_back({.is_packed = in.type() == WireType::kBytes &&
                                              in.field() != Field::kStringDataFieldNumber,
                                 .bytes = in.raw_value()});
        break;
    }
  }
  message.dtype = read_dtype(message, dtype);
  message.dims = Dims(std::move(dims));
  if (location == onnx::TensorProto::EXTERNAL) {
    message.external = read_external(message, external);
  } else if (location != onnx::TensorProto::DEFAULT || !external.empty()) {
    fail(message, "external data that its data location does not declare");
  }
  const bool has_raw = message.raw && !message.raw->empty();
  if ((message.external ? 1 : 0) + (has_raw ? 1 : 0) + (message.typed_field != 0 ? 1 : 0) > 1) {
    fail(message, "data in two forms");
  }
  if (message.typed_field != 0 && message.typed_field != typed_field_of(message.dtype)) {
    fail(message, "data in a field that is not for " + std::string(dtype_name(message.dtype)));
  }
  return message;
}

Tensor TensorDecoder::decode(const TensorMessage& message) {
  if (message.external) return decode_external(message, *message.external);
  if (message.typed_field != 0) return decode_typed(message);
  if (message.dtype == DataType::kString) {
    if (message.raw && !message.raw->empty()) fail(message, "strings cannot be raw data");
    return decode_strings(message);
  }
  return decode_raw(message, message.raw.value_or(std::string_view()));
}

Tensor TensorDecoder::decode_raw(const TensorMessage& message, std::string_view raw) const {
  const std::int64_t expected = message.dims.size_bytes(message.dtype);
  if (static_cast<std::int64_t>(raw.size()) != expected) {
    fail(message, std::to_string(raw.size()) + " bytes of data for " +
                      std::string(dtype_name(message.dtype)) + message.dims.to_string() +
                      ", expected " + std::to_string(expected));
  }
  const std::size_t alignment = element_alignment(message.dtype);
  if (expected > 0 && (message.dtype != DataType::kBool || has_only_bools(raw))) {
    auto* data = const_cast<char*>(raw.data());  // NOLINT: views of files are never written
    if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0) {
      data = file_ == nullptr ? nullptr : file_->align(raw, alignment);
    }
    if (data != nullptr) return Tensor::view(message.dtype, message.dims, data, owner_);
  }
  Tensor tensor = Tensor::empty(message.dtype, message.dims);
  if (expected > 0) std::memcpy(tensor.mutable_raw(), raw.data(), raw.size());
  if (message.dtype == DataType::kBool) normalise_bools(tensor);
  return tensor;
}

const base::ReadableFile& TensorDecoder::open_external(const TensorMessage& message,
                                                       const std::string& location) {
  const auto known = files_.find(location);
  if (known != files_.end()) return known->second;
  try {
    return files_.emplace(location, base::ReadableFile::open_beneath(external_root_, location))
        .first->second;
  } catch (const Error& error) {
    Problem problem = error.problem();
    problem.where.value = message.name;
    throw ModelError(std::move(problem));
  }
}

Tensor TensorDecoder::decode_external(const TensorMessage& message,
                                      const ExternalLocation& external) {
  if (message.dtype == DataType::kString) fail(message, "strings cannot be external data");
  if (external_root_.empty()) {
    throw ModelError({.what = "its data is in the file '" + external.location.substr(0, 200) +
                              "', but the model did not come from a folder",
                      .where = {.value = std::string(message.name)},
                      .hint = "Load the model by its path, or give the external root."});
  }
  const base::ReadableFile& file = open_external(message, external.location);
  const std::int64_t expected = message.dims.size_bytes(message.dtype);
  if (external.length && *external.length != expected) {
    fail(message, "external data of " + std::to_string(*external.length) + " bytes for " +
                      std::string(dtype_name(message.dtype)) + message.dims.to_string() +
                      ", expected " + std::to_string(expected));
  }
  const std::int64_t size = file.size_bytes();
  if (external.offset > size || expected > size - external.offset) {
    fail(message, "external data at bytes " + std::to_string(external.offset) + " to " +
                      std::to_string(external.offset) + " + " + std::to_string(expected) + " of '" +
                      external.location.substr(0, 200) + "', which has " + std::to_string(size));
  }
  Tensor tensor = Tensor::empty(message.dtype, message.dims);
  file.read(external.offset, {tensor.mutable_raw(), static_cast<std::size_t>(expected)});
  if (message.dtype == DataType::kBool) normalise_bools(tensor);
  return tensor;
}

}  // namespace onnxgrad::onnx_io
