#ifndef ONNXGRAD_COMPAT_TRAINING_CHECKPOINT_H_
#define ONNXGRAD_COMPAT_TRAINING_CHECKPOINT_H_

// Checkpoints of onnxruntime-training: FlatBuffers with the identifier ODTC. A table begins with
// the distance to its vtable, uint16 [size, table size, offset of field 0, ...], where 0 is an
// absent field; vectors begin with their length; references are distances forwards.
// Fields by number:
//   checkpoint: version 0, module 1, optimizer groups 2, properties 3
//   module: trained 0, frozen 1, nominal 2
//   group: name 0, step 1, learning rate 2, states 3; state: parameter 0, moments 1
//   properties: ints 0, floats 1, texts 2, each of name 0 and value 1
//   tensor: name 0, dims 2, type 3 (ONNX's numbers), bytes 4

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "onnxgrad/error.h"
#include "onnxgrad/files.h"
#include "onnxgrad/model.h"

namespace onnxgrad::compat {

/// An int, a float or a text.
using CheckpointProperty = std::variant<std::int64_t, float, std::string>;

/// The contents of a checkpoint file.
struct TrainingCheckpoint {
  NamedTensors trained = {};
  NamedTensors frozen = {};
  bool is_nominal = false;  ///< tensors have no values, nor shapes
  bool has_optimizer = false;
  std::map<std::string, NamedTensors> moments = {};  ///< by parameter
  std::int64_t step = 0;
  float learning_rate = 0;
  std::map<std::string, CheckpointProperty> properties = {};
};

/// Reads the contents of a file. Throws: CheckpointError (damaged). `name` is for messages.
TrainingCheckpoint parse_training_checkpoint(std::string_view bytes, const std::string& name = "");
/// The contents of a file.
std::string write_training_checkpoint(const TrainingCheckpoint& checkpoint);

namespace detail {

class FlatTable {
 public:
  FlatTable(std::string_view bytes, std::size_t at, const std::string& name)
      : bytes_(bytes), at_(at), name_(&name) {
    fields_ = static_cast<std::size_t>(static_cast<std::int64_t>(at) - number_at<std::int32_t>(at));
    size_ = number_at<std::uint16_t>(fields_);
  }

  static FlatTable root(std::string_view bytes, const std::string& name) {
    if (bytes.size() < 8 || bytes.substr(4, 4) != "ODTC") fail(name);
    std::uint32_t at = 0;
    std::memcpy(&at, bytes.data(), sizeof(at));
    return {bytes, at, name};
  }

  template <class T>
  T number(int field, T absent = {}) const {
    const std::size_t at = find(field);
    return at == 0 ? absent : number_at<T>(at);
  }
  std::string_view raw(int field, std::size_t element_bytes = 1) const {
    const auto [start, length] = vector(field);
    if (length > bytes_.size() / element_bytes) fail(*name_);
    return slice(start, length * element_bytes);
  }
  std::string text(int field) const { return std::string(raw(field)); }
  std::vector<FlatTable> tables(int field) const {
    const auto [start, length] = vector(field);
    if (length > bytes_.size() / 4) fail(*name_);
    std::vector<FlatTable> found;
    for (std::size_t i = 0; i < length; ++i) {
      found.emplace_back(bytes_, target(start + 4 * i), *name_);
    }
    return found;
  }
  /// The table that a field refers to, as a vector of none or one.
  std::vector<FlatTable> table(int field) const {
    const std::size_t at = find(field);
    if (at == 0) return {};
    return {FlatTable(bytes_, target(at), *name_)};
  }

  [[noreturn]] static void fail(const std::string& name) {
    throw CheckpointError({.what = "this is not a checkpoint, or it is damaged",
                           .where = {.file = name},
                           .hint = "Give a file that onnxruntime-training or onnxgrad wrote."});
  }

 private:
  std::string_view slice(std::size_t start, std::size_t size) const {
    if (start > bytes_.size() || size > bytes_.size() - start) fail(*name_);
    return bytes_.substr(start, size);
  }
  template <class T>
  T number_at(std::size_t at) const {
    T value = {};
    std::memcpy(&value, slice(at, sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::size_t target(std::size_t at) const { return at + number_at<std::uint32_t>(at); }
  std::size_t find(int field) const {
    const std::size_t entry = 4 + 2 * static_cast<std::size_t>(field);
    if (entry + 2 > size_) return 0;
    const auto offset = number_at<std::uint16_t>(fields_ + entry);
    return offset == 0 ? 0 : at_ + offset;
  }
  std::pair<std::size_t, std::size_t> vector(int field) const {
    const std::size_t at = find(field);
    if (at == 0) return {0, 0};
    const std::size_t start = target(at);
    return {start + 4, number_at<std::uint32_t>(start)};
  }

  std::string_view bytes_;
  std::size_t at_ = 0;
  std::size_t fields_ = 0;
  std::size_t size_ = 0;
  const std::string* name_;
};

// Writes a file from its end to its beginning, since references point forwards; positions are
// counted from the end.
class FlatWriter {
 public:
  using Position = std::size_t;
  struct Field {
    int number;
    std::size_t bytes;  // 0: a reference to `value`
    std::uint64_t value;
  };

  Position vector(std::string_view bytes, std::size_t length, std::size_t alignment = 4) {
    align(std::max<std::size_t>(4, alignment), bytes.size());
    push(bytes);
    return push_number(static_cast<std::uint32_t>(length));
  }
  Position text(const std::string& value) {
    std::string bytes = value + '\0';
    bytes.resize((bytes.size() + 3) / 4 * 4);
    return vector(bytes, value.size());
  }
  Position references(const std::vector<Position>& positions) {
    align(4, 0);
    for (auto i = positions.rbegin(); i != positions.rend(); ++i) push_reference(*i);
    return push_number(static_cast<std::uint32_t>(positions.size()));
  }
  Position table(std::vector<Field> fields) {
    align(8, 0);
    const Position end = size_;
    std::ranges::stable_sort(fields, {}, [](const Field& f) { return f.bytes == 0 ? 4 : f.bytes; });
    std::array<Position, 8> places = {};
    int count = 0;
    for (const Field& field : fields) {  // the largest are nearest to the beginning
      const std::size_t bytes = field.bytes == 0 ? 4 : field.bytes;
      align(bytes, bytes);
      if (field.bytes == 0) {
        push_reference(static_cast<Position>(field.value));
      } else {
        push({reinterpret_cast<const char*>(&field.value), field.bytes});
      }
      places.at(static_cast<std::size_t>(field.number)) = size_;
      count = std::max(count, field.number + 1);
    }
    align(4, 0);
    std::string head(4 + 2 * static_cast<std::size_t>(count), '\0');
    const std::size_t padded = (head.size() + 3) / 4 * 4;
    const Position at = push_number(static_cast<std::int32_t>(padded));
    set(head, 0, head.size());
    set(head, 2, at - end);
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      if (places[i] != 0) set(head, 4 + 2 * i, at - places[i]);
    }
    head.resize(padded);
    push(head);
    return at;
  }
  std::string finish(Position root) {
    align(16, 8);
    push("ODTC");
    push_reference(root);
    std::string file;
    file.reserve(size_);
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) file += *part;
    return file;
  }

 private:
  static void set(std::string& head, std::size_t at, std::size_t value) {
    const auto number = static_cast<std::uint16_t>(value);
    std::memcpy(head.data() + at, &number, sizeof(number));
  }
  void push(std::string_view bytes) {
    parts_.emplace_back(bytes);
    size_ += bytes.size();
  }
  template <class T>
  Position push_number(T value) {
    push({reinterpret_cast<const char*>(&value), sizeof(value)});
    return size_;
  }
  void push_reference(Position position) {
    push_number(static_cast<std::uint32_t>(size_ + 4 - position));
  }
  // Pads so that the position is a multiple of `size` after `following` more bytes.
  void align(std::size_t size, std::size_t following) {
    push(std::string((size - (size_ + following) % size) % size, '\0'));
  }

  std::vector<std::string> parts_;
  std::size_t size_ = 0;
};

inline Tensor read_tensor(const FlatTable& table, bool is_nominal, const std::string& name) {
  const std::string_view raw_dims = table.raw(2, sizeof(std::int64_t));
  std::vector<std::int64_t> dims(raw_dims.size() / sizeof(std::int64_t));
  if (!dims.empty()) std::memcpy(dims.data(), raw_dims.data(), raw_dims.size());
  for (const std::int64_t dim : dims) {
    if (dim < 0) FlatTable::fail(name);
  }
  const auto dtype = static_cast<DataType>(table.number<std::int32_t>(3));
  if (dtype == DataType::kUndefined || dtype == DataType::kString || dtype > DataType::kBfloat16) {
    FlatTable::fail(name);
  }
  if (is_nominal) return Tensor::empty(dtype, Dims(std::vector<std::int64_t>{0}));
  const std::string_view data = table.raw(4);
  const Dims shape(dims);
  if (shape.size_bytes(dtype) != static_cast<std::int64_t>(data.size())) FlatTable::fail(name);
  Tensor tensor = Tensor::empty(dtype, shape);
  if (!data.empty()) std::memcpy(tensor.mutable_raw(), data.data(), data.size());
  return tensor;
}

inline FlatWriter::Position write_tensors(FlatWriter& out, const NamedTensors& tensors,
                                          bool is_nominal) {
  std::vector<FlatWriter::Position> positions;
  for (const auto& [name, tensor] : tensors) {
    const auto dims = tensor.dims().values();
    std::vector<FlatWriter::Field> fields{
        {0, 0, out.text(name)},
        {2, 0,
         out.vector({reinterpret_cast<const char*>(dims.data()), dims.size_bytes()}, dims.size(),
                    8)},
        {3, 4, static_cast<std::uint64_t>(tensor.dtype())}};
    if (!is_nominal) {
      const auto bytes = static_cast<std::size_t>(tensor.size_bytes());
      const std::string_view data(reinterpret_cast<const char*>(tensor.raw()), bytes);
      fields.push_back({4, 0, out.vector(data, bytes, 16)});
    }
    positions.push_back(out.table(std::move(fields)));
  }
  return out.references(positions);
}

inline FlatWriter::Position write_properties(
    FlatWriter& out, const std::map<std::string, CheckpointProperty>& properties) {
  std::array<std::vector<FlatWriter::Position>, 3> entries;
  for (const auto& [name, value] : properties) {
    FlatWriter::Field stored{1, 8, 0};
    if (const auto* number = std::get_if<std::int64_t>(&value)) {
      stored.value = static_cast<std::uint64_t>(*number);
    } else if (const auto* real = std::get_if<float>(&value)) {
      stored.bytes = 4;
      std::memcpy(&stored.value, real, sizeof(*real));
    } else {
      stored = {1, 0, out.text(std::get<std::string>(value))};
    }
    entries[value.index()].push_back(out.table({{0, 0, out.text(name)}, stored}));
  }
  std::vector<FlatWriter::Field> fields;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].empty()) continue;
    fields.push_back({static_cast<int>(i), 0, out.references(entries[i])});
  }
  return out.table(std::move(fields));
}

}  // namespace detail

inline TrainingCheckpoint parse_training_checkpoint(std::string_view bytes,
                                                    const std::string& name) {
  const auto root = detail::FlatTable::root(bytes, name);
  const auto module = root.table(1);
  if (module.empty()) detail::FlatTable::fail(name);
  TrainingCheckpoint result{.is_nominal = module[0].number<std::uint8_t>(2) != 0};
  for (const int field : {0, 1}) {
    for (const auto& table : module[0].tables(field)) {
      (field == 0 ? result.trained : result.frozen)
          .push_back({table.text(0), detail::read_tensor(table, result.is_nominal, name)});
    }
  }
  for (const auto& group : root.tables(2)) {
    result.has_optimizer = true;
    result.step = group.number<std::int64_t>(1);
    result.learning_rate = group.number<float>(2);
    for (const auto& state : group.tables(3)) {
      NamedTensors& moments = result.moments[state.text(0)];
      for (const auto& moment : state.tables(1)) {
        moments.push_back({moment.text(0), detail::read_tensor(moment, false, name)});
      }
    }
  }
  for (const auto& bag : root.table(3)) {
    for (const auto& entry : bag.tables(0)) {
      result.properties[entry.text(0)] = entry.number<std::int64_t>(1);
    }
    for (const auto& entry : bag.tables(1)) {
      result.properties[entry.text(0)] = entry.number<float>(1);
    }
    for (const auto& entry : bag.tables(2)) result.properties[entry.text(0)] = entry.text(1);
  }
  return result;
}

inline std::string write_training_checkpoint(const TrainingCheckpoint& checkpoint) {
  detail::FlatWriter out;
  std::vector<detail::FlatWriter::Field> module;
  for (const int field : {0, 1}) {
    const NamedTensors& tensors = field == 0 ? checkpoint.trained : checkpoint.frozen;
    module.push_back({field, 0, detail::write_tensors(out, tensors, checkpoint.is_nominal)});
  }
  module.push_back({2, 1, checkpoint.is_nominal ? 1U : 0U});
  std::vector<detail::FlatWriter::Field> fields{{0, 4, 2}, {1, 0, out.table(module)}};
  if (checkpoint.has_optimizer) {
    std::vector<std::size_t> states;
    for (const auto& [parameter, moments] : checkpoint.moments) {
      const auto tensors = detail::write_tensors(out, moments, false);
      states.push_back(out.table({{0, 0, out.text(parameter)}, {1, 0, tensors}}));
    }
    std::uint64_t rate = 0;
    std::memcpy(&rate, &checkpoint.learning_rate, sizeof(float));
    const auto list = out.references(states);
    const auto group = out.table({{0, 0, out.text("group0")},
                                  {1, 8, static_cast<std::uint64_t>(checkpoint.step)},
                                  {2, 4, rate},
                                  {3, 0, list}});
    fields.push_back({2, 0, out.references({group})});
  }
  if (!checkpoint.properties.empty()) {
    fields.push_back({3, 0, detail::write_properties(out, checkpoint.properties)});
  }
  return out.finish(out.table(fields));
}

}  // namespace onnxgrad::compat

#endif  // ONNXGRAD_COMPAT_TRAINING_CHECKPOINT_H_
