#include "base/packed.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

namespace onnxgrad::base {
namespace {

// int64 words: the number of elements, -1 for an empty optional; of each its dtype, rank and
// dimensions, then its bytes up to a multiple of eight.
constexpr std::int64_t kWord = sizeof(std::int64_t);
constexpr std::uint64_t kLeastBytes = 256;

std::int64_t padded(std::int64_t bytes) { return (bytes + kWord - 1) / kWord * kWord; }

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
    if (element.dtype() == DataType::kString) {
      throw UnsupportedOperatorError({.what = "a sequence of strings cannot be handled",
                                      .hint = "Use numbers that stand for the strings."});
    }
    const auto rank = static_cast<std::int64_t>(element.dims().rank());
    bytes += (2 + rank) * kWord + padded(element.size_bytes());
  }
  Writer writer(bytes);
  writer.write(std::ssize(elements));
  for (const Tensor& element : elements) {
    writer.write(static_cast<std::int64_t>(element.dtype()));
    writer.write(static_cast<std::int64_t>(element.dims().rank()));
    for (const std::int64_t dim : element.dims()) writer.write(dim);
    writer.write(element.raw(), element.size_bytes());
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
    const bool is_type = dtype > 0 && dtype <= static_cast<std::int64_t>(DataType::kInt2) &&
                         dtype != static_cast<std::int64_t>(DataType::kString);
    if (!is_type || rank < 0 || rank > static_cast<std::int64_t>(Dims::kMaxRank)) Reader::fail();
    std::vector<std::int64_t> dims;
    for (std::int64_t axis = 0; axis < rank; ++axis) dims.push_back(reader.word());
    if (std::ranges::any_of(dims, [](std::int64_t dim) { return dim < 0; })) Reader::fail();
    const Dims shape{std::move(dims)};
    const auto type = static_cast<DataType>(dtype);
    if (shape.size_bytes(type) > packed.size_bytes()) Reader::fail();
    Tensor element = Tensor::empty(type, shape);
    reader.read(element.mutable_raw(), element.size_bytes());
    elements.push_back(std::move(element));
  }
  return elements;
}

}  // namespace onnxgrad::base
