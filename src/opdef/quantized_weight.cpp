#include "opdef/quantized_weight.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>
#include <variant>

#include "base/check.h"
#include "ir/pattern.h"

namespace onnxgrad::opdef {
namespace {

using ir::is_op;
using ir::Node;
using ir::Value;

constexpr std::size_t kEntries = 16;

bool is_code_type(DataType type) {
  return type == DataType::kUint8 || type == DataType::kInt8 || type == DataType::kUint4 ||
         type == DataType::kInt4 || type == DataType::kUint2 || type == DataType::kInt2;
}

std::vector<std::int64_t> integers_of(const Value* value) {
  const Tensor* tensor = constant_tensor(value);
  return tensor != nullptr && is_integer(tensor->dtype()) ? tensor->to_int64s()
                                                          : std::vector<std::int64_t>{};
}

std::optional<std::int64_t> dim_of(const Value* value, std::size_t axis) {
  if (const Tensor* tensor = constant_tensor(value)) {
    if (axis < tensor->dims().rank()) return tensor->dims()[axis];
    return std::nullopt;
  }
  if (!value->type.shape || axis >= value->type.shape->size()) return std::nullopt;
  const ir::Dim& dim = (*value->type.shape)[axis];
  if (!dim.is_static()) return std::nullopt;
  return dim.value();
}

bool is_cast(const Node* node) { return is_op(node, "Cast") || is_op(node, "CastLike"); }

DataType cast_type(const Node& node) {
  if (node.op_type == "Cast") {
    return static_cast<DataType>(node.int_attribute("to", std::int64_t{0}));
  }
  const Value* like = node.input(1);
  const Tensor* tensor = constant_tensor(like);
  return tensor != nullptr ? tensor->dtype() : like->dtype();
}

// Records a type that numbers have between two nodes. Returns false for a second one of 16 bits.
bool note_type(DataType type, DataType& rounded) {
  if (!is_f16(type)) return type == DataType::kFloat32;
  if (rounded != DataType::kUndefined && rounded != type) return false;
  rounded = type;
  return true;
}

// The value before Casts between floating-point types and Identities; nullptr where other types
// occur.
const Value* before_casts(const Value* value, DataType& rounded) {
  while (value->producer != nullptr) {
    const Node* node = value->producer;
    if (is_op(node, "Identity")) {
      value = node->input(0);
    } else if (is_cast(node) && is_floating(cast_type(*node))) {
      if (!note_type(cast_type(*node), rounded)) return nullptr;
      value = node->input(0);
    } else {
      break;
    }
  }
  return value;
}

bool transposes_matrix(const Node& node) {
  const auto perm = node.ints_attribute("perm", {1, 0});
  return perm == std::vector<std::int64_t>{1, 0};
}

// The number of columns that a Slice keeps, from the first on; nullopt: other elements.
std::optional<std::int64_t> kept_columns(const Node& node) {
  if (node.input(1) == nullptr) return std::nullopt;  // attributes of old versions
  const auto one = [&](std::size_t i, std::int64_t fallback) -> std::optional<std::int64_t> {
    if (node.input(i) == nullptr) return fallback;
    const auto values = integers_of(node.input(i));
    if (values.size() != 1) return std::nullopt;
    return values.front();
  };
  const auto end = one(2, 0);
  if (one(1, -1) != 0 || one(3, 0) != 1 || one(4, 1) != 1 || !end || *end <= 0) {
    return std::nullopt;
  }
  return end;
}

// A constant behind a Reshape, which has the same elements.
struct Reshaped {
  const Value* stored = nullptr;
  const Tensor* tensor = nullptr;  // nullptr: no constant
  Dims dims = {};
};

Reshaped before_reshape(const Value* value) {
  Reshaped found{.stored = value, .tensor = constant_tensor(value)};
  if (found.tensor != nullptr) {
    found.dims = found.tensor->dims();
  } else if (is_op(value->producer, "Reshape")) {
    const auto dims = value->type.static_dims();
    const Tensor* tensor = constant_tensor(value->producer->input(0));
    if (dims && tensor != nullptr) found = {value->producer->input(0), tensor, *dims};
  }
  return found;
}

bool set_codes(const Value* codes, QuantizedWeight& weight) {
  const Tensor* tensor = constant_tensor(codes);
  if (tensor == nullptr || !is_code_type(tensor->dtype()) || tensor->dims().rank() != 2) {
    return false;
  }
  weight.codes = const_cast<Value*>(codes);
  weight.form.type = tensor->dtype();
  weight.form.rows = tensor->dims()[0];
  weight.form.columns = weight.form.row_length = tensor->dims()[1];
  return weight.form.rows > 0 && weight.form.columns > 0;
}

// Returns the shape of the scales; nullopt: they are not constant.
std::optional<Dims> set_scales(const Value* scales, QuantizedWeight& weight) {
  const Reshaped found = before_reshape(scales);
  if (found.tensor == nullptr || !note_type(found.tensor->dtype(), weight.form.rounded)) {
    return std::nullopt;
  }
  weight.scales = const_cast<Value*>(found.stored);
  return found.dims;
}

bool set_dequantize(const Node& node, QuantizedWeight& weight) {
  if (!set_codes(node.input(0), weight)) return false;
  const auto scales = set_scales(node.input(1), weight);
  if (!scales) return false;
  const Dims& dims = *scales;
  const auto to = static_cast<DataType>(node.int_attribute("output_dtype", std::int64_t{0}));
  if (to != DataType::kUndefined && !note_type(to, weight.form.rounded)) return false;
  if (const Value* zeros = node.input(2)) {
    const Tensor* tensor = constant_tensor(zeros);
    if (tensor == nullptr || !is_code_type(tensor->dtype())) return false;
    weight.zeros = const_cast<Value*>(zeros);
  }
  QuantizedForm& form = weight.form;
  const std::int64_t block = node.int_attribute("block_size", std::int64_t{0});
  std::int64_t axis = node.int_attribute("axis", std::int64_t{1});
  if (axis < 0) axis += 2;
  if (axis != 0 && axis != 1) return false;
  if (dims.num_elements() == 1 && block == 0) {
    form.row_block = form.column_block = QuantizedForm::kAll;
    return true;
  }
  const std::int64_t size = axis == 0 ? form.rows : form.columns;
  if (block == 0) {
    form.row_block = axis == 0 ? 1 : QuantizedForm::kAll;
    form.column_block = axis == 0 ? QuantizedForm::kAll : 1;
    return dims.rank() == 1 && dims[0] == size;
  }
  form.row_block = axis == 0 ? block : 1;
  form.column_block = axis == 0 ? 1 : block;
  if (dims.rank() != 2) return false;
  form.scale_row = dims[1];
  const std::int64_t blocks = (size + block - 1) / block;
  return dims[static_cast<std::size_t>(axis)] == blocks &&
         dims[axis == 0 ? 1 : 0] == (axis == 0 ? form.columns : form.rows);
}

// The constant behind Casts from codes, or a DequantizeLinear with scale 1; nullptr: another value.
const Value* plain_numbers(const Value* value) {
  const Node* node = value->producer;
  if (node == nullptr || constant_tensor(value) != nullptr) return value;
  if (is_cast(node)) return node->input(0);
  if (!is_op(node, "DequantizeLinear") || node->input(2) != nullptr) return nullptr;
  const Tensor* one = constant_tensor(node->input(1));
  const bool is_one = one != nullptr && one->num_elements() == 1 && is_floating(one->dtype()) &&
                      one->to_doubles().front() == 1;
  return is_one ? node->input(0) : nullptr;
}

// Gather(table, index, axis 1) of constants.
const Node* gathered(const Value* value, std::int64_t columns) {
  const Node* node = value->producer;
  if (!is_op(node, "Gather") || node->int_attribute("axis", std::int64_t{0}) != 1) return nullptr;
  const Tensor* index = constant_tensor(node->input(1));
  const bool fits =
      index != nullptr && index->dims() == Dims{columns} && is_integer(index->dtype());
  return fits ? node : nullptr;
}

// (numbers of codes - zeros of groups) * scales of groups
bool set_groups(const Node& node, QuantizedWeight& weight) {
  const Node* sub = node.input(0)->producer;
  if (!is_op(sub, "Sub")) return false;
  const Value* numbers = sub->input(0);
  std::optional<std::int64_t> kept;
  if (is_op(numbers->producer, "Slice")) {
    kept = kept_columns(*numbers->producer);
    if (!kept) return false;
    numbers = numbers->producer->input(0);
  }
  const Value* codes = plain_numbers(numbers);
  if (codes == nullptr || !set_codes(codes, weight)) return false;
  QuantizedForm& form = weight.form;
  if (kept) form.columns = std::min(form.columns, *kept);
  const Node* scales = gathered(node.input(1), form.columns);
  if (scales == nullptr) return false;
  const auto found = set_scales(scales->input(0), weight);
  if (!found) return false;
  const Dims& dims = *found;
  if (dims.rank() != 2 || dims[0] != form.rows) return false;
  form.scale_row = dims[1];
  weight.groups = scales->input(1);
  const auto groups = integers_of(weight.groups);
  const auto is_in = [&](std::int64_t group) { return group >= 0 && group < dims[1]; };
  if (!std::ranges::all_of(groups, is_in)) return false;
  if (const Tensor* zero = constant_tensor(sub->input(1))) {
    if (zero->num_elements() != 1 || !is_floating(zero->dtype())) return false;
    form.zero = static_cast<float>(zero->to_doubles().front());
    return true;
  }
  const Node* zeros = gathered(sub->input(1), form.columns);
  if (zeros == nullptr || integers_of(zeros->input(1)) != groups) return false;
  const Value* plain = plain_numbers(zeros->input(0));
  if (plain == nullptr) return false;
  const Reshaped stored = before_reshape(plain);
  if (stored.tensor == nullptr || stored.dims != dims) return false;
  const DataType type = stored.tensor->dtype();
  if (!is_code_type(type) && !is_floating(type)) return false;
  weight.zeros = const_cast<Value*>(stored.stored);
  return true;
}

// The 16 entries of a table, or of one with the two entries of each byte, the lower bits first.
std::vector<float> entries_of(const Tensor& table) {
  const std::vector<double> given = table.to_doubles();
  const bool has_pairs = table.dims() == Dims{256, 2};
  if (!has_pairs && table.dims() != Dims{kEntries}) return {};
  std::vector<float> entries(kEntries);
  for (std::size_t i = 0; i < kEntries; ++i) {
    entries[i] = static_cast<float>(given[has_pairs ? 2 * i : i]);
  }
  for (std::size_t byte = 0; has_pairs && byte < 256; ++byte) {
    if (static_cast<float>(given[2 * byte]) != entries[byte % kEntries] ||
        static_cast<float>(given[2 * byte + 1]) != entries[byte / kEntries]) {
      return {};
    }
  }
  return entries;
}

// Reshape(Reshape(Gather(table, codes)) * scales): blocks along rows.
bool set_entries(const Node& node, QuantizedWeight& weight) {
  QuantizedForm& form = weight.form;
  const Value* value = node.output(0);
  const auto rows = dim_of(value, 0);
  const auto columns = dim_of(value, 1);
  std::vector<std::int64_t> shape = integers_of(node.input(1));
  if (shape.size() == 2) {
    form.rows = shape[0];
    form.columns = shape[1];
  } else if (rows && columns) {
    form.rows = *rows;
    form.columns = *columns;
  }
  if (form.rows <= 0 || form.columns <= 0) return false;
  form.row_length = form.columns;
  value = before_casts(node.input(0), form.rounded);
  if (value == nullptr || !is_op(value->producer, "Mul")) return false;
  const Node& product = *value->producer;
  const auto operand = [&](std::size_t i) { return before_casts(product.input(i), form.rounded); };
  const Value* second = operand(1);
  const std::size_t at = constant_tensor(second) != nullptr ? 1 : 0;
  const Value* scales_of = at == 1 ? second : operand(0);
  if (scales_of == nullptr) return false;
  const auto dims = set_scales(scales_of, weight);
  if (!dims) return false;
  value = before_casts(product.input(1 - at), form.rounded);
  if (value == nullptr || !is_op(value->producer, "Reshape")) return false;
  value = before_casts(value->producer->input(0), form.rounded);
  if (value == nullptr || !is_op(value->producer, "Gather")) return false;
  const Node& gather = *value->producer;
  const Value* stored = before_casts(gather.input(0), form.rounded);
  const Tensor* table = stored == nullptr ? nullptr : constant_tensor(stored);
  if (table == nullptr || !note_type(table->dtype(), form.rounded)) return false;
  if (gather.int_attribute("axis", std::int64_t{0}) != 0) return false;
  form.table = entries_of(*table);
  if (form.table.empty() || !is_op(gather.input(1)->producer, "Cast")) return false;
  weight.codes = gather.input(1)->producer->input(0);
  const Tensor* codes = constant_tensor(weight.codes);
  if (codes == nullptr) return false;
  const bool has_pairs = table->dims().rank() == 2;
  if (codes->dtype() != (has_pairs ? DataType::kUint8 : DataType::kUint4)) return false;
  const std::int64_t count = codes->num_elements() * (has_pairs ? 2 : 1);
  const std::int64_t scales = dims->num_elements();
  if (count != form.rows * form.columns || dims->rank() < 2 || (*dims)[dims->rank() - 1] != 1) {
    return false;
  }
  if (scales <= 0 || count % scales != 0 || form.columns % (count / scales) != 0) return false;
  form.type = DataType::kUint4;
  form.column_block = count / scales;
  form.scale_row = form.columns / form.column_block;
  return true;
}

bool set_core(const Node& node, QuantizedWeight& weight) {
  if (is_op(&node, "DequantizeLinear")) return set_dequantize(node, weight);
  if (is_op(&node, "Mul")) return set_groups(node, weight);
  return is_op(&node, "Reshape") && set_entries(node, weight);
}

float number_at(DataType type, const std::byte* data, std::int64_t i) {
  if (type == DataType::kFloat32) return reinterpret_cast<const float*>(data)[i];
  const int bits = size_bits(type);
  const auto byte = std::to_integer<unsigned>(data[i * bits / 8]);
  const int code = static_cast<int>((byte >> (i * bits % 8)) & ((1U << bits) - 1));
  const bool is_signed =
      type == DataType::kInt8 || type == DataType::kInt4 || type == DataType::kInt2;
  const int half = 1 << (bits - 1);
  return static_cast<float>(is_signed && code >= half ? code - 2 * half : code);
}

// Constants of 16-bit floats as float32, others as they are.
Tensor widened(const Tensor& tensor) {
  return is_f16(tensor.dtype()) ? tensor.cast(DataType::kFloat32) : tensor;
}

std::vector<ir::Attribute> attributes_of(const QuantizedForm& form) {
  std::vector<ir::Attribute> list{
      {.name = "matrix",
       .value = std::vector<std::int64_t>{form.rows, form.columns, form.row_length, form.row_block,
                                          form.column_block, form.scale_row,
                                          static_cast<std::int64_t>(form.type),
                                          static_cast<std::int64_t>(form.rounded)}},
      {.name = "zero", .value = form.zero}};
  if (!form.table.empty()) list.push_back({.name = "table", .value = form.table});
  return list;
}

}  // namespace

const Tensor* constant_tensor(const ir::Value* value) {
  if (value == nullptr) return nullptr;
  if (value->is_constant()) return &value->initializer;
  if (!is_op(value->producer, "Constant")) return nullptr;
  const ir::AttributeValue* attribute = value->producer->find_attribute("value");
  return attribute == nullptr ? nullptr : std::get_if<Tensor>(attribute);
}

std::optional<QuantizedWeight> find_quantized_weight(const ir::Value* value) {
  QuantizedWeight weight;
  std::optional<std::int64_t> kept;
  while (true) {
    value = before_casts(value, weight.form.rounded);
    if (value == nullptr || value->producer == nullptr) return std::nullopt;
    const Node& node = *value->producer;
    if (is_op(&node, "Transpose")) {
      if (!transposes_matrix(node) || kept) return std::nullopt;
      weight.is_transposed = !weight.is_transposed;
      value = node.input(0);
    } else if (is_op(&node, "Slice")) {
      if (kept) return std::nullopt;
      kept = kept_columns(node);
      if (!kept) return std::nullopt;
      value = node.input(0);
    } else {
      if (!set_core(node, weight)) return std::nullopt;
      if (kept) weight.form.columns = std::min(weight.form.columns, *kept);
      return weight;
    }
  }
}

QuantizedTensors tensors_of(const QuantizedWeight& weight) {
  const auto tensor = [](const Value* value) {
    const Tensor* found = constant_tensor(value);
    return found == nullptr ? Tensor() : *found;
  };
  return {tensor(weight.codes), tensor(weight.scales), tensor(weight.zeros), tensor(weight.groups)};
}

std::vector<float> dequantized(const QuantizedForm& form, const QuantizedTensors& tensors) {
  const std::byte* codes = tensors.codes.raw();
  const Tensor scales = widened(tensors.scales);
  const Tensor zeros = tensors.zeros.is_defined() ? widened(tensors.zeros) : Tensor();
  const std::vector<std::int64_t> groups =
      tensors.groups.is_defined() ? tensors.groups.to_int64s() : std::vector<std::int64_t>{};
  std::vector<float> numbers;
  numbers.reserve(static_cast<std::size_t>(form.rows * form.columns));
  for (std::int64_t r = form.first_row; r < form.first_row + form.rows; ++r) {
    for (std::int64_t c = 0; c < form.columns; ++c) {
      const std::int64_t at =
          r / form.row_block * form.scale_row +
          (groups.empty() ? c / form.column_block : groups[static_cast<std::size_t>(c)]);
      const float code = number_at(form.type, codes, r * form.row_length + c);
      const float zero = zeros.is_defined() ? number_at(zeros.dtype(), zeros.raw(), at) : form.zero;
      const float steps =
          form.table.empty() ? code - zero : form.table[static_cast<std::size_t>(code)];
      numbers.push_back(steps * scales.data<float>()[static_cast<std::size_t>(at)]);
    }
  }
  return numbers;
}

QuantizedGemm QuantizedGemm::read(const ir::Node& node) {
  const auto numbers = node.ints_attribute("matrix");
  ONNXGRAD_ASSERT(numbers.size() == 8);
  QuantizedGemm op{.transpose_a = node.int_attribute("transA", std::int64_t{0}) != 0,
                   .transpose_b = node.int_attribute("transB", std::int64_t{0}) != 0,
                   .form = {.rows = numbers[0],
                            .columns = numbers[1],
                            .row_length = numbers[2],
                            .row_block = numbers[3],
                            .column_block = numbers[4],
                            .scale_row = numbers[5],
                            .type = static_cast<DataType>(numbers[6]),
                            .zero = node.float_attribute("zero", 0.0F),
                            .rounded = static_cast<DataType>(numbers[7])},
                   .sums_columns = node.int_attribute("sums_columns", std::int64_t{0}) != 0};
  if (const ir::AttributeValue* table = node.find_attribute("table")) {
    op.form.table = std::get<std::vector<float>>(*table);
  }
  if (node.find_attribute("epilogue") != nullptr) {
    op.epilogue = ExprProgram::from_ints(node.ints_attribute("epilogue"));
  }
  return op;
}

std::vector<ir::Attribute> QuantizedGemm::attributes() const {
  std::vector<ir::Attribute> list = attributes_of(form);
  list.push_back({.name = "transA", .value = std::int64_t{transpose_a}});
  list.push_back({.name = "transB", .value = std::int64_t{transpose_b}});
  if (epilogue) list.push_back({.name = "epilogue", .value = epilogue->to_ints()});
  if (sums_columns) list.push_back({.name = "sums_columns", .value = std::int64_t{1}});
  return list;
}

}  // namespace onnxgrad::opdef
