#include "train/data/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "onnxgrad/error.h"

// Format: "\x93NUMPY", two bytes of version, the length of the header (two bytes, from 2.0 four),
// and a Python dictionary such as {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }.

namespace onnxgrad::train {
namespace {

constexpr std::int64_t kLongestHeader = 1 << 16;

constexpr const char* kDamagedData = "The data is damaged or truncated: write it again.";
constexpr const char* kTakenTypes = "Save it as a floating, integer, bool or string type.";

struct NpyPlace {
  const std::string& file;
  const std::string& name;
  [[noreturn]] void refuse(const std::string& what, Hint hint) const {
    throw DataError(
        {.what = what, .where = {.file = file, .value = name}, .hint = std::move(hint)});
  }
};

// Reads the single dictionary of a header.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const NpyPlace& place) : rest_(text), place_(place) {}

  void parse(std::string& descr, bool& fortran_order, std::vector<std::int64_t>& shape) {
    bool has_descr = false;
    bool has_order = false;
    bool has_shape = false;
    expect('{');
    while (!takes('}')) {
      const std::string_view key = text();
      expect(':');
      if (key == "descr") {
        if (peek() != '\'')
          place_.refuse("it contains records, not numbers", "Save its fields separately.");
        descr = text();
        has_descr = true;
      } else if (key == "fortran_order") {
        fortran_order = truth();
        has_order = true;
      } else if (key == "shape") {
        shape = numbers();
        has_shape = true;
      } else {
        broken();
      }
      if (!takes(',') && peek() != '}') broken();
    }
    if (!has_descr || !has_order || !has_shape) broken();
  }

 private:
  [[noreturn]] void broken() const {
    place_.refuse("the header of the .npy data is corrupt", kDamagedData);
  }
  char peek() {
    const std::size_t start = rest_.find_first_not_of(" \n");
    rest_.remove_prefix(std::min(start, rest_.size()));
    return rest_.empty() ? '\0' : rest_.front();
  }
  bool takes(char c) {
    if (peek() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!takes(c)) broken();
  }
  std::string_view text() {
    expect('\'');
    const std::size_t end = rest_.find('\'');
    if (end == std::string_view::npos) broken();
    const std::string_view found = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return found;
  }
  bool truth() {
    peek();
    for (const std::string_view word : {"True", "False"}) {
      if (!rest_.starts_with(word)) continue;
      rest_.remove_prefix(word.size());
      return word == "True";
    }
    broken();
  }
  std::vector<std::int64_t> numbers() {
    constexpr std::size_t kMostDims = 64;
    std::vector<std::int64_t> found;
    expect('(');
    while (!takes(')')) {
      std::int64_t number = 0;
      peek();
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
      if (error != std::errc{} || number < 0 || found.size() == kMostDims) broken();
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      if (!rest_.empty() && rest_.front() == 'L') rest_.remove_prefix(1);  // a long of Python 2
      found.push_back(number);
      if (!takes(',') && peek() != ')') broken();
    }
    return found;
  }

  std::string_view rest_;
  const NpyPlace& place_;
};

std::optional<DataType> number_type(std::string_view kind) {
  static constexpr std::pair<std::string_view, DataType> kTypes[] = {
      {"b1", DataType::kBool},    {"i1", DataType::kInt8},    {"i2", DataType::kInt16},
      {"i4", DataType::kInt32},   {"i8", DataType::kInt64},   {"u1", DataType::kUint8},
      {"u2", DataType::kUint16},  {"u4", DataType::kUint32},  {"u8", DataType::kUint64},
      {"f2", DataType::kFloat16}, {"f4", DataType::kFloat32}, {"f8", DataType::kFloat64}};
  const auto* const found =
      std::ranges::find(kTypes, kind, &std::pair<std::string_view, DataType>::first);
  return found == std::end(kTypes) ? std::nullopt : std::optional(found->second);
}

// "<f4", "|b1", ">i8", "<U10", "|S3".
void read_descr(std::string_view descr, const NpyPlace& place, NpyHeader& header) {
  if (descr.size() < 3 || std::string_view("<>|=").find(descr.front()) == std::string_view::npos) {
    place.refuse("an array of type '" + std::string(descr.substr(0, 40)) + "' cannot be read",
                 kTakenTypes);
  }
  header.is_big_endian = descr.front() == '>';
  const std::string_view kind = descr.substr(1);
  if (kind.front() == 'O') {
    place.refuse("it contains Python objects (a pickle)", "Save an array of numbers or strings.");
  }
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(kind.data() + 1, kind.data() + kind.size(), count);
  const bool has_count = error == std::errc{} && end == kind.data() + kind.size();
  constexpr std::int64_t kLongestText = 1 << 20;
  if (has_count && (kind.front() == 'U' || kind.front() == 'S') && count <= kLongestText) {
    header.dtype = DataType::kString;
    header.is_unicode = kind.front() == 'U';
    header.item_bytes = header.is_unicode ? 4 * count : count;
    return;
  }
  const auto dtype = number_type(kind);
  if (!dtype) {
    place.refuse("an array of type '" + std::string(descr.substr(0, 40)) + "' cannot be read",
                 kTakenTypes);
  }
  header.dtype = *dtype;
  header.item_bytes = count;
}

// Invalid code points become U+FFFD.
void append_utf8(std::uint32_t point, std::string& text) {
  if (point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) point = 0xFFFD;
  const auto tail = [&](unsigned shift) {
    text.push_back(static_cast<char>(0x80U | ((point >> shift) & 0x3FU)));
  };
  if (point < 0x80) {
    text.push_back(static_cast<char>(point));
  } else if (point < 0x800) {
    text.push_back(static_cast<char>(0xC0U | (point >> 6)));
    tail(0);
  } else if (point < 0x10000) {
    text.push_back(static_cast<char>(0xE0U | (point >> 12)));
    tail(6);
    tail(0);
  } else {
    text.push_back(static_cast<char>(0xF0U | ((point >> 18) & 0x07U)));
    tail(12);
    tail(6);
    tail(0);
  }
}

void swap_bytes(std::span<std::byte> bytes, std::size_t item_bytes) {
  for (std::size_t i = 0; i + item_bytes <= bytes.size(); i += item_bytes) {
    std::ranges::reverse(bytes.subspan(i, item_bytes));
  }
}

}  // namespace

NpyHeader read_npy_header(ByteStream& bytes, const std::string& file, const std::string& name) {
  const NpyPlace place{file, name};
  std::byte start[12] = {};
  const auto start_bytes = static_cast<std::size_t>(std::min<std::int64_t>(bytes.size_bytes(), 12));
  bytes.read(0, std::span(start).first(start_bytes));
  if (start_bytes < 12 || std::memcmp(start, "\x93NUMPY", 6) != 0) {
    place.refuse("this is not .npy data, or it is truncated", "Write it with numpy.save.");
  }
  const auto at = [&](std::size_t i) { return std::to_integer<std::int64_t>(start[i]); };
  const std::int64_t version = at(6);
  if (version < 1 || version > 3) {
    place.refuse(fmt::format("version {}.{} of the .npy format is not supported", version, at(7)),
                 "Write it with numpy.save.");
  }
  const std::int64_t begin = version == 1 ? 10 : 12;
  const std::int64_t length = at(8) | at(9) << 8 | (version == 1 ? 0 : at(10) << 16 | at(11) << 24);
  if (length > kLongestHeader || length > bytes.size_bytes() - begin) {
    place.refuse("the header of the .npy data is corrupt", kDamagedData);
  }
  std::string text(static_cast<std::size_t>(length), '\0');
  bytes.read(begin, std::as_writable_bytes(std::span(text)));

  NpyHeader header{.dims = {}, .data_offset = begin + length};
  std::string descr;
  bool is_fortran = false;
  HeaderParser(text, place).parse(descr, is_fortran, header.dims);
  read_descr(descr, place, header);
  header.is_one_number = header.dims.empty();
  if (header.is_one_number) header.dims = {1};
  const std::int64_t available = bytes.size_bytes() - header.data_offset;
  header.row_bytes = header.item_bytes;
  std::int64_t total = 1;
  bool fits = true;
  const auto times = [&](std::int64_t& product, std::int64_t factor) {
    fits = fits && !__builtin_mul_overflow(product, factor, &product);
  };
  for (std::size_t i = 1; i < header.dims.size(); ++i) times(header.row_bytes, header.dims[i]);
  total = header.row_bytes;
  times(total, header.dims.front());
  if (!fits || total > available) {
    place.refuse(fmt::format("the header has shape ({}), but there are {} bytes of data",
                             fmt::join(header.dims, ", "), available),
                 kDamagedData);
  }
  if (header.row_bytes == 0 && header.dims.front() > 0) {
    place.refuse("its rows are empty", "Save rows with at least one number.");
  }
  header.is_by_columns =
      is_fortran && header.dims.size() > 1 && header.row_bytes > header.item_bytes;
  return header;
}

NpyArray::NpyArray(std::unique_ptr<ByteStream> bytes, const std::string& file, std::string name,
                   NpyUse use)
    : bytes_(std::move(bytes)),
      name_(std::move(name)),
      header_(read_npy_header(*bytes_, file, name_)) {
  if (header_.is_one_number && use == NpyUse::kRows) {
    NpyPlace{file, name_}.refuse("it is one number, not rows",
                                 "Save an array whose first dimension counts rows.");
  }
  if (header_.is_by_columns && use == NpyUse::kRows) {
    NpyPlace{file, name_}.refuse("it is stored column by column (Fortran order)",
                                 "Save numpy.ascontiguousarray(array).");
  }
}

namespace {

// From the order in which the first index changes fastest to that in which the last one does.
void to_row_order(std::span<std::byte> items, const std::vector<std::int64_t>& dims,
                  std::size_t item_bytes) {
  const std::vector<std::byte> source(items.begin(), items.end());
  std::vector<std::size_t> strides(dims.size(), item_bytes);
  for (std::size_t i = 1; i < dims.size(); ++i) {
    strides[i] = strides[i - 1] * static_cast<std::size_t>(dims[i - 1]);
  }
  std::vector<std::int64_t> index(dims.size(), 0);
  std::size_t from = 0;
  for (std::size_t to = 0; to + item_bytes <= items.size(); to += item_bytes) {
    std::memcpy(items.data() + to, source.data() + from, item_bytes);
    for (std::size_t axis = dims.size(); axis-- > 0;) {
      from += strides[axis];
      if (++index[axis] < dims[axis]) break;
      from -= strides[axis] * static_cast<std::size_t>(dims[axis]);
      index[axis] = 0;
    }
  }
}

}  // namespace

void NpyArray::read_rows(std::int64_t first, std::int64_t count, std::span<std::byte> out) {
  bytes_->read(header_.data_offset + first * header_.row_bytes, out);
  if (!header_.is_by_columns) return;
  ONNXGRAD_ASSERT(first == 0 && count == rows());
  to_row_order(out, header_.dims, static_cast<std::size_t>(header_.item_bytes));
}

Dims NpyArray::dims_of(std::int64_t count) const {
  if (header_.is_one_number) return Dims{};
  std::vector<std::int64_t> dims = header_.dims;
  dims[0] = count;
  return Dims(std::move(dims));
}

Tensor NpyArray::read(std::int64_t first, std::int64_t count) {
  if (header_.dtype == DataType::kString) return texts(first, count);
  Tensor rows = Tensor::empty(header_.dtype, dims_of(count));
  const std::span out(rows.mutable_raw(), static_cast<std::size_t>(count * header_.row_bytes));
  read_rows(first, count, out);
  if (header_.is_big_endian) swap_bytes(out, static_cast<std::size_t>(header_.item_bytes));
  if (header_.dtype == DataType::kBool) {
    for (std::byte& value : out) value = value == std::byte{0} ? std::byte{0} : std::byte{1};
  }
  return rows;
}

Tensor NpyArray::texts(std::int64_t first, std::int64_t count) {
  std::vector<std::byte> raw(static_cast<std::size_t>(count * header_.row_bytes));
  read_rows(first, count, raw);
  if (header_.is_big_endian && header_.is_unicode) swap_bytes(raw, 4);
  Tensor rows = Tensor::empty(DataType::kString, dims_of(count));
  const auto item_bytes = static_cast<std::size_t>(header_.item_bytes);
  std::size_t item = 0;
  for (std::string& text : rows.mutable_strings()) {
    const std::byte* const begin = raw.data() + item_bytes * item++;
    if (!header_.is_unicode) {
      text.assign(reinterpret_cast<const char*>(begin), item_bytes);
      text.resize(text.find_last_not_of('\0') + 1);
      continue;
    }
    std::size_t length = item_bytes;
    std::uint32_t point = 0;
    const auto at = [&](std::size_t i) {
      std::memcpy(&point, begin + i, 4);
      return point;
    };
    while (length > 0 && at(length - 4) == 0) length -= 4;
    for (std::size_t i = 0; i < length; i += 4) append_utf8(at(i), text);
  }
  return rows;
}

}  // namespace onnxgrad::train
