// Tables of Arrow (pyarrow, pandas, polars, ...) as columns, through the C data interface: none of
// these libraries is imported. Columns of one batch without nulls are shared, others are copied.
#include "arrow.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings.h"
#include "onnxgrad/error.h"
#include "tensor_caster.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnxgrad::python {
namespace {

/// Owns a structure of the interface, and calls its release function.
template <class T>
std::shared_ptr<T> owned(const T& structure) {
  return {new T(structure), [](T* held) {
            if (held->release != nullptr) held->release(held);
            delete held;
          }};
}

/// Moves the structure out of a capsule: its own destructor then has nothing to release.
template <class T>
std::shared_ptr<T> take(nb::handle capsule, const char* name) {
  auto* const inside = static_cast<T*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (inside == nullptr) throw nb::python_error();
  if (inside->release == nullptr) {
    throw DataError({.what = "an Arrow capsule that was used already",
                     .hint = "Give the table itself: a capsule can be read once."});
  }
  const T moved = *inside;
  inside->release = nullptr;
  return owned(moved);
}

using Batch = std::shared_ptr<ArrowArray>;

constexpr const char* kBrokenTable =
    "The library that made the table broke Arrow's rules: write it to a file and read it again.";

/// One column of one batch.
class Column {
 public:
  /// `parent_offset`, `length`: the rows of the batch.
  Column(std::string name, const ArrowSchema& schema, const ArrowArray& array,
         std::int64_t parent_offset, std::int64_t length, Batch owner)
      : name_(std::move(name)),
        schema_(schema),
        array_(array),
        offset_(array.offset + parent_offset),
        length_(length),
        owner_(std::move(owner)) {
    if (length < 0 || parent_offset < 0 || array.offset < 0 ||
        array.length < parent_offset + length) {
      refuse("has fewer values than the table has rows");
    }
  }

  Tensor read() const;

 private:
  [[noreturn]] void refuse(const std::string& what, Hint hint = kBrokenTable) const {
    throw DataError(
        {.what = "column '" + name_ + "' " + what, .where = {}, .hint = std::move(hint)});
  }
  std::string_view format() const { return schema_.format; }
  const void* buffer(std::int64_t i) const {
    if (i >= array_.n_buffers) refuse("lacks a buffer");
    return array_.buffers[i];
  }
  bool is_set(const void* bits, std::int64_t row) const {
    const auto place = static_cast<std::uint64_t>(offset_ + row);
    return ((static_cast<const std::uint8_t*>(bits)[place / 8] >> (place % 8)) & 1U) != 0;
  }
  bool is_null(std::int64_t row) const {
    const void* const valid = array_.n_buffers > 0 ? array_.buffers[0] : nullptr;
    return valid != nullptr && !is_set(valid, row);
  }
  std::optional<std::int64_t> first_null() const {
    if (array_.null_count == 0) return std::nullopt;
    for (std::int64_t row = 0; row < length_; ++row) {
      if (is_null(row)) return row;
    }
    return std::nullopt;
  }

  Tensor numbers(DataType dtype) const;
  Tensor with_nan(const Tensor& values) const;
  Tensor bools() const;
  Tensor texts() const;
  std::string_view text(std::int64_t row) const;
  std::string_view viewed_text(std::int64_t row) const;
  Tensor decoded() const;
  Tensor lists() const;

  std::string name_;
  const ArrowSchema& schema_;
  const ArrowArray& array_;
  std::int64_t offset_;
  std::int64_t length_;
  Batch owner_;
};

std::optional<DataType> number_type(std::string_view format) {
  static constexpr std::pair<char, DataType> kTypes[] = {
      {'c', DataType::kInt8},    {'C', DataType::kUint8},   {'s', DataType::kInt16},
      {'S', DataType::kUint16},  {'i', DataType::kInt32},   {'I', DataType::kUint32},
      {'l', DataType::kInt64},   {'L', DataType::kUint64},  {'e', DataType::kFloat16},
      {'f', DataType::kFloat32}, {'g', DataType::kFloat64},
  };
  if (format.size() != 1) return std::nullopt;
  for (const auto& [code, dtype] : kTypes) {
    if (format.front() == code) return dtype;
  }
  return std::nullopt;
}

bool is_text(std::string_view format) { return format == "u" || format == "U" || format == "vu"; }

Tensor Column::read() const {
  if (schema_.dictionary != nullptr) return decoded();
  if (const auto dtype = number_type(format())) return numbers(*dtype);
  if (format() == "b") return bools();
  if (is_text(format())) return texts();
  if (format().starts_with("+w:")) return lists();
  if (format() == "n") {
    return Tensor::from(std::vector<double>(static_cast<std::size_t>(length_),
                                            std::numeric_limits<double>::quiet_NaN()),
                        Dims{length_});
  }
  refuse("has Arrow type '" + std::string(format()) + "', which cannot be used",
         "Convert it to numbers, bool or text, or leave it out.");
}

Tensor Column::numbers(DataType dtype) const {
  const auto item_bytes = static_cast<std::int64_t>(size_bits(dtype)) / 8;
  auto* const data = static_cast<std::byte*>(const_cast<void*>(buffer(1)));
  if (data == nullptr && length_ > 0) refuse("lacks its numbers");
  const Tensor shared = Tensor::view(dtype, Dims{length_}, data + offset_ * item_bytes, owner_);
  return first_null() ? with_nan(shared) : shared;
}

// Nulls are NaN; integers become float64.
Tensor Column::with_nan(const Tensor& values) const {
  Tensor copy =
      values.cast(values.dtype() == DataType::kFloat32 ? DataType::kFloat32 : DataType::kFloat64);
  copy = copy.clone();
  for (std::int64_t row = 0; row < length_; ++row) {
    if (!is_null(row)) continue;
    const auto place = static_cast<std::size_t>(row);
    if (copy.dtype() == DataType::kFloat32) {
      copy.mutable_data<float>()[place] = std::numeric_limits<float>::quiet_NaN();
    } else {
      copy.mutable_data<double>()[place] = std::numeric_limits<double>::quiet_NaN();
    }
  }
  return copy;
}

Tensor Column::bools() const {
  Tensor values = Tensor::empty(DataType::kUint8, Dims{length_});
  const void* const bits = buffer(1);
  for (std::int64_t row = 0; row < length_; ++row) {
    values.mutable_data<std::uint8_t>()[static_cast<std::size_t>(row)] = is_set(bits, row) ? 1 : 0;
  }
  return first_null() ? with_nan(values) : values.cast(DataType::kBool);
}

std::string_view Column::viewed_text(std::int64_t row) const {
  constexpr std::int32_t kInline = 12;
  const auto* const view = static_cast<const std::byte*>(buffer(1)) + 16 * (offset_ + row);
  std::int32_t parts[4];
  std::memcpy(parts, view, sizeof parts);
  if (parts[0] < 0) refuse("has a text of negative length");
  const auto length = static_cast<std::size_t>(parts[0]);
  if (parts[0] <= kInline) return {reinterpret_cast<const char*>(view) + 4, length};
  const auto* const data = static_cast<const char*>(buffer(2 + std::int64_t{parts[2]}));
  return {data + parts[3], length};
}

std::string_view Column::text(std::int64_t row) const {
  if (format() == "vu") return viewed_text(row);
  std::int64_t begin = 0;
  std::int64_t end = 0;
  const auto place = static_cast<std::size_t>(offset_ + row);
  if (format() == "u") {
    const auto* const offsets = static_cast<const std::int32_t*>(buffer(1));
    begin = offsets[place];
    end = offsets[place + 1];
  } else {
    const auto* const offsets = static_cast<const std::int64_t*>(buffer(1));
    begin = offsets[place];
    end = offsets[place + 1];
  }
  if (begin < 0 || end < begin) refuse("has a text of negative length");
  return {static_cast<const char*>(buffer(2)) + begin, static_cast<std::size_t>(end - begin)};
}

Tensor Column::texts() const {
  if (const auto row = first_null()) {
    refuse("has no text in row " + std::to_string(*row), "Fill or remove such rows.");
  }
  Tensor values = Tensor::empty(DataType::kString, Dims{length_});
  for (std::int64_t row = 0; row < length_; ++row) {
    values.mutable_strings()[static_cast<std::size_t>(row)] = text(row);
  }
  return values;
}

// Categories: the values that the indices stand for.
Tensor Column::decoded() const {
  const auto dtype = number_type(format());
  if (!dtype || !is_integer(*dtype) || array_.dictionary == nullptr) {
    refuse("has a dictionary without indices");
  }
  const ArrowArray& values = *array_.dictionary;
  const Tensor all = Column(name_, *schema_.dictionary, values, 0, values.length, owner_).read();
  const auto null_row = first_null();
  if (null_row && all.dtype() == DataType::kString) {
    refuse("has no text in row " + std::to_string(*null_row), "Fill or remove such rows.");
  }
  const auto* const data = static_cast<const std::byte*>(buffer(1));
  const auto item_bytes = static_cast<std::int64_t>(size_bits(*dtype)) / 8;
  const auto indices = Tensor::view(*dtype, Dims{length_},
                                    const_cast<std::byte*>(data) + offset_ * item_bytes, owner_)
                           .to_int64s();
  const auto index = [&](std::int64_t row) {
    const std::int64_t found = is_null(row) ? 0 : indices[static_cast<std::size_t>(row)];
    if (found < 0 || found >= values.length) {
      if (is_null(row)) return std::size_t{0};
      refuse("has an index outside its dictionary");
    }
    return static_cast<std::size_t>(found);
  };
  if (all.dtype() == DataType::kString) {
    Tensor result = Tensor::empty(DataType::kString, Dims{length_});
    for (std::int64_t row = 0; row < length_; ++row) {
      result.mutable_strings()[static_cast<std::size_t>(row)] = all.strings()[index(row)];
    }
    return result;
  }
  const auto numbers = all.to_doubles();
  Tensor result = Tensor::empty(DataType::kFloat64, Dims{length_});
  for (std::int64_t row = 0; row < length_; ++row) {
    const bool is_missing = is_null(row) || numbers.empty();
    result.mutable_data<double>()[static_cast<std::size_t>(row)] =
        is_missing ? std::numeric_limits<double>::quiet_NaN() : numbers[index(row)];
  }
  return !null_row && is_integer(all.dtype()) ? result.cast(all.dtype()) : result;
}

// Lists of one length: [rows, length].
Tensor Column::lists() const {
  std::int64_t width = 0;
  const std::string_view text = format().substr(3);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), width);
  const bool is_width = error == std::errc{} && end == text.data() + text.size() && width > 0;
  if (!is_width || array_.n_children != 1 || schema_.n_children != 1 || first_null()) {
    refuse("has lists that are missing or of several lengths",
           "Fill them, so that each row has a list of the same length.");
  }
  const Tensor values = Column(name_, *schema_.children[0], *array_.children[0], offset_ * width,
                               length_ * width, owner_)
                            .read();
  return values.reshaped(Dims{length_, width});
}

/// Parts of a column below each other.
Tensor joined(const std::string& name, const std::vector<Tensor>& parts) {
  if (parts.size() == 1) return parts.front();
  DataType dtype = parts.front().dtype();
  std::vector<std::int64_t> dims(parts.front().dims().begin(), parts.front().dims().end());
  dims[0] = 0;
  for (const Tensor& part : parts) {
    if ((part.dtype() == DataType::kString) != (dtype == DataType::kString)) {
      throw DataError({.what = "column '" + name + "' has texts and numbers",
                       .hint = "Give all of its chunks one type."});
    }
    if (part.dtype() != dtype) dtype = DataType::kFloat64;  // some of the parts have nulls
    dims[0] += part.dims()[0];
  }
  Tensor whole = Tensor::empty(dtype, Dims(std::move(dims)));
  if (dtype == DataType::kString) {
    auto out = whole.mutable_strings().begin();
    for (const Tensor& part : parts) {
      out = std::copy(part.strings().begin(), part.strings().end(), out);
    }
    return whole;
  }
  std::byte* out = whole.mutable_raw();
  for (const Tensor& part : parts) {
    const Tensor converted = part.dtype() == dtype ? part : part.cast(dtype);
    std::memcpy(out, converted.raw(), static_cast<std::size_t>(converted.size_bytes()));
    out += converted.size_bytes();
  }
  return whole;
}

std::vector<Batch> read_stream(nb::handle capsule, std::shared_ptr<ArrowSchema>& schema) {
  const auto stream = take<ArrowArrayStream>(capsule, "arrow_array_stream");
  const auto check = [&](int status) {
    if (status == 0) return;
    const char* const message = stream->get_last_error(stream.get());
    throw DataError({.what = std::string("the Arrow stream failed: ") +
                             (message != nullptr ? message : std::strerror(status)),
                     .hint = "Read the table into memory first, to see what its library says."});
  };
  ArrowSchema read_schema{};
  check(stream->get_schema(stream.get(), &read_schema));
  schema = owned(read_schema);
  std::vector<Batch> batches;
  while (true) {
    ArrowArray batch{};
    check(stream->get_next(stream.get(), &batch));
    if (batch.release == nullptr) return batches;
    batches.push_back(owned(batch));
  }
}

/// Columns by name; of an array that is not a table one, of name "".
nb::dict arrow_columns(const nb::object& table) {
  std::shared_ptr<ArrowSchema> schema;
  std::vector<Batch> batches;
  if (nb::hasattr(table, "__arrow_c_stream__")) {
    batches = read_stream(table.attr("__arrow_c_stream__")(), schema);
  } else {
    const nb::object pair = table.attr("__arrow_c_array__")();
    schema = take<ArrowSchema>(pair[0], "arrow_schema");
    batches.push_back(take<ArrowArray>(pair[1], "arrow_array"));
  }
  std::erase_if(batches, [](const Batch& batch) { return batch->length == 0; });
  if (batches.empty()) {
    throw DataError({.what = "the Arrow table has no rows", .hint = "Give a table with rows."});
  }
  const bool is_table = std::string_view(schema->format) == "+s";
  nb::dict columns;
  const std::int64_t count = is_table ? schema->n_children : 1;
  for (std::int64_t c = 0; c < count; ++c) {
    const ArrowSchema& field = is_table ? *schema->children[c] : *schema;
    const std::string name = is_table && field.name != nullptr ? field.name : "";
    std::vector<Tensor> parts;
    for (const Batch& batch : batches) {
      if (is_table && batch->n_children != schema->n_children) {
        throw DataError({.what = "a batch of the Arrow table has another number of columns",
                         .hint = std::string(kBrokenTable)});
      }
      const ArrowArray& array = is_table ? *batch->children[c] : *batch;
      parts.push_back(
          Column(name, field, array, is_table ? batch->offset : 0, batch->length, batch).read());
    }
    const nb::str key(name.data(), name.size());
    if (columns.contains(key)) {
      throw DataError({.what = "the Arrow table has two columns '" + name + "'",
                       .hint = "Rename or remove one of the two."});
    }
    columns[key] = nb::cast(joined(name, parts));
  }
  return columns;
}

}  // namespace

void bind_arrow(nb::module_& module) {
  module.def("arrow_columns", &arrow_columns, "table"_a,
             nb::sig("def arrow_columns(table: object) -> dict[str, typing.Any]"),
             "Columns by name, of an object with __arrow_c_stream__ or __arrow_c_array__.");
}

}  // namespace onnxgrad::python
