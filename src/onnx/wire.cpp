#include "onnx/wire.h"

#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {
namespace {

[[noreturn]] void fail(std::string what) {
  throw ModelError(
      {.what = std::move(what), .hint = "The file is truncated, damaged or not an ONNX model."});
}

// Tags and lengths, to which protobuf gives at most five bytes.
std::uint64_t take_short_varint(std::string_view& bytes) {
  constexpr std::size_t kMaxBytes = 5;
  const std::size_t before = bytes.size();
  const std::uint64_t value = take_varint(bytes);
  if (before - bytes.size() > kMaxBytes) fail("a tag or length has more than five bytes");
  return value;
}

}  // namespace

std::uint64_t take_varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (bytes.empty()) fail("a number is truncated");
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    value |= static_cast<std::uint64_t>(byte & 0x7fu) << shift;
    if (byte < 0x80) return value;
  }
  fail("a number has more than ten bytes");
}

bool WireReader::next() {
  static_assert(std::endian::native == std::endian::little, "files are little-endian");
  if (rest_.empty()) return false;
  const std::uint64_t tag = take_short_varint(rest_);
  const std::uint64_t field = tag >> 3;
  if (field == 0 || field > 0x1fffffff) fail("a field has the number " + std::to_string(field));
  field_ = static_cast<int>(field);
  const auto take_fixed = [this](std::size_t size) {
    if (rest_.size() < size) fail("a number is truncated");
    number_ = 0;
    std::memcpy(&number_, rest_.data(), size);
    bytes_ = rest_.substr(0, size);
    rest_.remove_prefix(size);
  };
  type_ = static_cast<WireType>(tag & 7);
  switch (type_) {
    case WireType::kVarint: {
      const std::string_view before = rest_;
      number_ = take_varint(rest_);
      bytes_ = before.substr(0, before.size() - rest_.size());
      return true;
    }
    case WireType::kFixed64:
      take_fixed(8);
      return true;
    case WireType::kFixed32:
      take_fixed(4);
      return true;
    case WireType::kBytes: {
      const std::string_view before = rest_;
      const std::uint64_t size = take_short_varint(rest_);
      prefix_ = before.substr(0, before.size() - rest_.size());
      if (size > rest_.size()) {
        fail("field " + std::to_string(field_) + " has " + std::to_string(size) +
             " bytes, but only " + std::to_string(rest_.size()) + " follow");
      }
      bytes_ = rest_.substr(0, size);
      rest_.remove_prefix(size);
      return true;
    }
  }
  fail("field " + std::to_string(field_) + " has the unknown wire type " + std::to_string(tag & 7));
}

void WireReader::expect(WireType type) const {
  if (type_ == type) return;
  fail("field " + std::to_string(field_) + " has wire type " +
       std::to_string(static_cast<int>(type_)) + ", expected " +
       std::to_string(static_cast<int>(type)));
}

std::uint64_t WireReader::varint() const {
  expect(WireType::kVarint);
  return number_;
}

float WireReader::float32() const {
  expect(WireType::kFixed32);
  return std::bit_cast<float>(static_cast<std::uint32_t>(number_));
}

std::string_view WireReader::bytes() const {
  expect(WireType::kBytes);
  return bytes_;
}

std::string_view WireReader::text() const {
  const std::string_view value = bytes();
  if (!is_utf8(value)) fail("a name or string is not UTF-8");
  return value;
}

void WireReader::append_to(std::vector<std::int64_t>& values) const {
  if (type_ != WireType::kBytes) {
    values.push_back(int64());
    return;
  }
  for (std::string_view packed = bytes_; !packed.empty();) {
    values.push_back(static_cast<std::int64_t>(take_varint(packed)));
  }
}

void WireReader::append_to(std::vector<float>& values) const {
  if (type_ != WireType::kBytes) {
    values.push_back(float32());
    return;
  }
  if (bytes_.size() % sizeof(float) != 0) fail("a list of floats is truncated");
  const std::size_t before = values.size();
  values.resize(before + bytes_.size() / sizeof(float));
  if (!bytes_.empty()) std::memcpy(values.data() + before, bytes_.data(), bytes_.size());
}

bool is_utf8(std::string_view text) {
  const auto at = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  for (std::size_t i = 0; i < text.size();) {
    const unsigned char lead = at(i);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || i + length > text.size()) return false;
    for (std::size_t k = 1; k < length; ++k) {
      if ((at(i + k) & 0xc0u) != 0x80u) return false;
    }
    const unsigned char second = at(i + 1);
    const bool is_overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
    const bool is_no_scalar = (lead == 0xed && second > 0x9f) || (lead == 0xf4 && second > 0x8f);
    if (is_overlong || is_no_scalar) return false;
    i += length;
  }
  return true;
}

void WireWriter::append_varint(std::uint64_t value) {
  while (value >= 0x80) {
    out_.push_back(static_cast<char>(value | 0x80u));
    value >>= 7;
  }
  out_.push_back(static_cast<char>(value));
}

std::string WireWriter::encode_varint(std::uint64_t value) {
  std::string bytes;
  WireWriter(bytes).append_varint(value);
  return bytes;
}

}  // namespace onnxgrad::onnx_io
