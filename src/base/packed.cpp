#include "base/packed.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "base/rounding.h"

namespace onnxgrad::base {
namespace {

// int64 words: the number of elements, -1 for an empty optional; of each its dtype, rank and
// dimensions, then its bytes up to a multiple of eight, or of each of its texts the length and the
// bytes.
constexpr std::int64_t kWord = sizeof(std::int64_t);
constexpr std::uint64_t kLeastBytes = 256;

std::int64_t padded(std::int64_t bytes) { return round_up(bytes, kWord); }

class Writer {
 public:
  explicit Writer(std::int64_t bytes)
      : tensor_(Tensor::zeros(DataType::kUint8,
                              Dims{static_cast<std::int64_t>(std::bit_ceil(
                                  std::max(kLeastBytes, static_cast<std::uint64_t>(bytes))))})) {}

  void write(std::int64_t word) { write(&word, kWord); }
  void write(const void* from, std::int64_t bytes) {
    if (bytes > 0) std::memcpy(tensor_.mutable_raw() + at_, from, static_cast<std::size_t>(bytes));
    at_ += padded(bytes);
  }
  Tensor finish() { return std::move(tensor_); }

 private:
  Tensor tensor_;
  std::int64_t at_ = 0;
};

class Reader {
 public:
  explicit Reader(const Tensor& packed) : packed_(packed) {}

  std::int64_t word() {
    std::int64_t value = 0;
    read(&value, kWord);
    return value;
  }
  void read(void* to, std::int64_t bytes) {
    if (bytes < 0 || bytes > packed_.size_bytes() - at_) fail();
    if (bytes > 0) std::memcpy(to, packed_.raw() + at_, static_cast<std::size_t>(bytes));
    at_ += padded(bytes);
  }
  void read_text(std::string& text) {
    const std::int64_t length = word();
    if (length < 0 || length > packed_.size_bytes() - at_) fail();
    text.resize(static_cast<std::size_t>(length));
    read(text.data(), length);
  }
  [[noreturn]] static void fail() {
    throw DataError({.what = "these bytes are no sequence",
                     .hint = "Give the list of its tensors, or None for an empty optional."});
  }

 private:
  const Tensor& packed_;
  std::int64_t at_ = 0;
};

}  // namespace

Tensor pack(std::span<const Tensor> elements) {
  std::int64_t bytes = kWord;
  for (const Tensor& element : elements) {
    const auto rank = static_cast<std::int64_t>(element.dims().rank());
    bytes += (2 + rank) * kWord;
    if (element.dtype() != DataType::kString) {
      bytes += padded(element.size_bytes());
      continue;
    }
    for (const std::string& text : element.strings()) bytes += kWord + padded(std::ssize(text));
  }
  Writer writer(bytes);
  writer.write(std::ssize(elements));
  for (const Tensor& element : elements) {
    writer.write(static_cast<std::int64_t>(element.dtype()));
    writer.write(static_cast<std::int64_t>(element.dims().rank()));
    for (const std::int64_t dim : element.dims()) writer.write(dim);
    if (element.dtype() != DataType::kString) {
      writer.write(element.raw(), element.size_bytes());
      continue;
    }
    for (const std::string& text : element.strings()) {
      writer.write(std::ssize(text));
      writer.write(text.data(), std::ssize(text));
    }
  }
  return writer.finish();
}

Tensor pack_nothing() {
  Writer writer(kWord);
  writer.write(-1);
  return writer.finish();
}

std::optional<std::vector<Tensor>> unpack(const Tensor& packed) {
  if (packed.dtype() != DataType::kUint8 || packed.dims().rank() != 1) Reader::fail();
  Reader reader(packed);
  const std::int64_t count = reader.word();
  if (count == -1) return std::nullopt;
  if (count < 0 || count > packed.size_bytes() / kWord) Reader::fail();
  std::vector<Tensor> elements;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t dtype = reader.word();
    const std::int64_t rank = reader.word();
    const bool is_type = dtype > 0 && dtype <= static_cast<std::int64_t>(DataType::kInt2);
    if (!is_type || rank < 0 || rank > static_cast<std::int64_t>(Dims::kMaxRank)) Reader::fail();
    std::vector<std::int64_t> dims;
    for (std::int64_t axis = 0; axis < rank; ++axis) dims.push_back(reader.word());
    if (std::ranges::any_of(dims, [](std::int64_t dim) { return dim < 0; })) Reader::fail();
    const Dims shape{std::move(dims)};
    const auto type = static_cast<DataType>(dtype);
    const bool is_text = type == DataType::kString;
    const std::int64_t least = is_text ? shape.num_elements() * kWord : shape.size_bytes(type);
    if (least > packed.size_bytes()) Reader::fail();
    Tensor element = Tensor::empty(type, shape);
    if (is_text) {
      for (std::string& text : element.mutable_strings()) reader.read_text(text);
    } else {
      reader.read(element.mutable_raw(), element.size_bytes());
    }
    elements.push_back(std::move(element));
  }
  return elements;
}

}  // namespace onnxgrad::base
