#include "train/data/row_copy.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace onnxgrad::train {
namespace {

// Rows of a size known to the compiler are copied without a call.
template <std::size_t kBytes>
void copy_small_rows(const std::byte* from, std::span<const std::int64_t> rows, std::byte* to) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(to + i * kBytes, from + rows[i] * static_cast<std::int64_t>(kBytes), kBytes);
  }
}

bool has_texts(const Column& column) { return column.values.dtype() == DataType::kString; }

std::span<const std::string> texts_of(const Column& column, std::int64_t first,
                                      std::int64_t count) {
  const auto each = column.row_bytes / static_cast<std::int64_t>(sizeof(std::string));
  return column.values.strings().subspan(static_cast<std::size_t>(first * each),
                                         static_cast<std::size_t>(count * each));
}

std::span<const std::byte> bytes_of(const Column& column, std::int64_t first, std::int64_t count) {
  return {column.row(first), static_cast<std::size_t>(count * column.row_bytes)};
}

// Lengths keep ("a", "bc") and ("ab", "c") apart.
template <class Add>
void add_texts(std::span<const std::string> texts, const Add& add) {
  for (const std::string& text : texts) {
    const std::size_t length = text.size();
    add(std::as_bytes(std::span(&length, 1)));
    add(std::as_bytes(std::span(text)));
  }
}

}  // namespace

void gather_rows(const Column& from, std::span<const std::int64_t> rows, std::byte* to) {
  if (has_texts(from)) {
    auto* out = reinterpret_cast<std::string*>(to);
    for (const std::int64_t row : rows) out = std::ranges::copy(texts_of(from, row, 1), out).out;
    return;
  }
  const std::byte* const first = from.values.raw();
  switch (from.row_bytes) {
    case 4:
      copy_small_rows<4>(first, rows, to);
      return;
    case 8:
      copy_small_rows<8>(first, rows, to);
      return;
    case 16:
      copy_small_rows<16>(first, rows, to);
      return;
    default:
      break;
  }
  const auto bytes = static_cast<std::size_t>(from.row_bytes);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(to + i * bytes, from.row(rows[i]), bytes);
  }
}

void copy_rows(const Column& from, std::int64_t first, std::int64_t count, Column& to,
               std::int64_t place) {
  if (to.row_bytes != from.row_bytes || to.values.dtype() != from.values.dtype()) {
    throw DataError({.what = "'" + to.name + "' has rows of different shapes, from chunk to chunk",
                     .where = {.value = to.name},
                     .hint = "Give batches of one shape, or omit batch_size to train on them as "
                             "they come."});
  }
  std::byte* const out = to.values.mutable_raw() + place * to.row_bytes;
  if (has_texts(from)) {
    std::ranges::copy(texts_of(from, first, count), reinterpret_cast<std::string*>(out));
  } else if (const auto bytes = bytes_of(from, first, count); !bytes.empty()) {
    std::memcpy(out, bytes.data(), bytes.size());
  }
}

void add_rows(base::Checksum& checksum, const Column& column, std::int64_t first,
              std::int64_t count) {
  if (has_texts(column)) {
    add_texts(texts_of(column, first, count), [&](auto bytes) { checksum.update(bytes); });
  } else {
    checksum.update(bytes_of(column, first, count));
  }
}

std::uint64_t hash_row(const Column& column, std::int64_t row, std::uint64_t seed) {
  if (!has_texts(column)) return base::hash64(bytes_of(column, row, 1), seed);
  add_texts(texts_of(column, row, 1), [&](auto bytes) { seed = base::hash64(bytes, seed); });
  return seed;
}

}  // namespace onnxgrad::train
