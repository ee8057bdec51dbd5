#include "train/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "base/check.h"
#include "train/data/row_copy.h"
#include "train/data/targets.h"

namespace onnxgrad::train {
namespace {

using runtime::Port;

std::int64_t rows_of(const std::string& name, const Tensor& tensor) {
  if (!tensor.is_defined() || tensor.dims().rank() == 0) {
    throw DataError({.what = "'" + name + "' has no rows",
                     .where = {.value = name},
                     .hint =
                         "Give an array whose first dimension counts rows. One value for all rows "
                         "can be fed to TrainingSession.step()."});
  }
  return tensor.dims()[0];
}

const Tensor& find_input(const DataSchema& schema, const Dataset& data, const std::string& name) {
  const auto& inputs = data.inputs;
  if (inputs.size() == 1 && inputs.front().name.empty() && schema.inputs.size() == 1) {
    return inputs.front().tensor;
  }
  for (const NamedTensor& input : inputs) {
    if (input.name == name) return input.tensor;
  }
  std::vector<std::string> names;
  for (const ValueInfo& info : schema.inputs) names.push_back(info.name);
  throw DataError({.what = "there is no data for input '" + name + "'",
                   .where = {.value = name},
                   .detail = "The model's inputs are " + base::quote_list(names) + ".",
                   .hint = "Give one array, or column, for each input, by name."});
}

void refuse_unknown_inputs(const DataSchema& schema, const Dataset& data) {
  std::vector<std::string> names;
  for (const ValueInfo& info : schema.inputs) names.push_back(info.name);
  for (const NamedTensor& input : data.inputs) {
    if (input.name.empty() && data.inputs.size() == 1) continue;
    if (std::ranges::find(names, input.name) != names.end()) continue;
    throw DataError({.what = "the model has no input '" + input.name + "'",
                     .where = {.value = input.name},
                     .detail = "Its inputs are " + base::quote_list(names) + ".",
                     .hint = base::nearest_or(input.name, names)});
  }
}

std::string columns_text(std::int64_t count) {
  return std::to_string(count) + (count == 1 ? " column" : " columns");
}

// A number of columns that differs from what the model reads; by name if they have names.
[[noreturn]] void refuse_columns(const ArrayPlace& place, std::int64_t given, std::int64_t wanted) {
  const bool is_file = place.origin != nullptr && !place.origin->file.empty();
  const bool too_many = given > wanted;
  throw DataError({.what = fmt::format("{} has {}, but the model reads {}", place.subject,
                                       columns_text(given), columns_text(wanted)),
                   .where = place.where(),
                   .detail = place.columns == nullptr
                                 ? ""
                                 : "Columns: " + base::quote_list(place.columns->names, 60) + ".",
                   .hint = is_file && too_many
                               ? "Exclude columns that are not inputs with ignored=, each by "
                                 "its name."
                               : "Give the columns that the model expects, in order."});
}

// Images [N, H, W, C] for a model that declares [N, C, H, W].
bool has_channels_last(const ir::SymbolicShape& declared, const Dims& given) {
  if (declared.size() != 4 || given.rank() != 4) return false;
  constexpr std::array<std::size_t, 3> kFrom{3, 1, 2};
  for (std::size_t axis = 1; axis < 4; ++axis) {
    if (declared[axis].is_static() && declared[axis].value() != given[kFrom[axis - 1]])
      return false;
  }
  return true;
}

// Rank and all dimensions except the first, as far as the model declares them.
Tensor fit_shape(const Port& port, const Tensor& tensor, std::int64_t rows,
                 const ArrayPlace& place) {
  if (!port.type.shape) return tensor;
  const ir::SymbolicShape& declared = *port.type.shape;
  const Dims& given = tensor.dims();
  if (given.rank() == 1 && declared.size() == 2 &&
      (!declared[1].is_static() || declared[1].value() == 1)) {
    return tensor.reshaped(Dims{given[0], 1});
  }
  if (given.rank() == 2 && given[1] == 1 && declared.size() == 1) {  // a column of a table
    return tensor.reshaped(Dims{given[0]});
  }
  const auto refuse = [&](Hint hint) {
    throw DataError({.what = fmt::format("{} has shape {}, but the model reads {}", place.subject,
                                         given.to_string(), port.type.to_string()),
                     .where = place.where(),
                     .hint = std::move(hint)});
  };
  if (given.rank() != declared.size()) {
    refuse(fmt::format("Reshape it to {} dimensions, of which the first one counts rows{}.",
                       declared.size(),
                       given.rank() < declared.size() ? "; X and y may be swapped" : ""));
  }
  for (std::size_t axis = 1; axis < declared.size(); ++axis) {
    if (!declared[axis].is_static() || declared[axis].value() == given[axis]) continue;
    const bool is_transposed =
        declared.size() == 2 && given[0] == declared[1].value() && given[1] == rows;
    if (is_transposed) refuse("It seems to be transposed: rows come first.");
    if (declared.size() == 2) refuse_columns(place, given[1], declared[1].value());
    if (has_channels_last(declared, given)) {
      refuse(
          "It seems to have its channels last: give X.transpose(0, 3, 1, 2), images [N, C, H, W].");
    }
    refuse("Give rows of the shape that the model expects.");
  }
  return tensor;
}

// [N], for a model's own loss also [N, 1]; or the shape of the labels if each has a weight.
Dims weight_dims(const Port& port, const LossInfo& loss, const Tensor& labels, std::int64_t rows) {
  if (!port.type.has_rank() || port.type.rank() < 2) return Dims{rows};
  if (std::holds_alternative<OutputLoss>(loss.function)) {
    return port.type.rank() == 2 ? Dims{rows, 1} : Dims{rows};
  }
  const auto axes = std::min(port.type.rank(), labels.dims().rank());
  return Dims(std::vector<std::int64_t>(labels.dims().begin(),
                                        labels.dims().begin() + static_cast<std::ptrdiff_t>(axes)));
}

// Weights of rows, each for all positions of its row.
Tensor spread(const Tensor& weights, const Dims& dims) {
  const std::vector<double> of_rows = weights.to_doubles();
  std::vector<double> numbers;
  const std::int64_t places = dims.num_elements() / dims[0];
  for (const double weight : of_rows) {
    numbers.insert(numbers.end(), static_cast<std::size_t>(places), weight);
  }
  return Tensor::from(numbers, dims).cast(weights.dtype());
}

Tensor prepare_weights(const Port& port, const Dataset& data, std::int64_t rows, const Dims& dims,
                       const ArrayPlace& place) {
  if (!data.sample_weight.is_defined()) {
    Tensor ones = Tensor::empty(DataType::kFloat64, dims);
    std::ranges::fill(ones.mutable_data<double>(), 1.0);
    return ones.cast(port.type.dtype);
  }
  check_finite(place, data.sample_weight);
  Tensor weights = convert_numbers(place, data.sample_weight, port.type.dtype);
  const bool has_places = weights.dims() == dims;
  if (!has_places && weights.num_elements() != rows) {
    throw DataError(
        {.what = fmt::format("{} sample weights for {} rows", weights.num_elements(), rows),
         .where = place.where(),
         .hint = dims.rank() > 1 && dims[1] != 1
                     ? "Give one weight for each row, or for each label."
                     : "Give one weight for each row."});
  }
  const auto numbers = weights.to_doubles();
  const auto negative = std::ranges::find_if(numbers, [](double w) { return w < 0; });
  if (negative != numbers.end()) {
    const std::int64_t row = (negative - numbers.begin()) * rows / weights.num_elements();
    throw DataError(
        {.what = fmt::format("the sample weight of {} is {}", place.row(row), *negative),
         .where = place.where(),
         .hint = "Weights must be numbers >= 0."});
  }
  return weights.num_elements() == dims.num_elements() ? weights.reshaped(dims)
                                                       : spread(weights, dims);
}

// Rows of a data set whose loss reads no target.
std::int64_t count_rows(const DataSchema& schema, std::span<const Port> ports,
                        const Dataset& data) {
  if (data.target.is_defined() || !data.targets.empty()) {
    if (!std::holds_alternative<OutputLoss>(schema.loss.function)) {
      throw DataError({.what = "labels were given, but the loss takes none",
                       .hint = "Leave them out. To learn from a teacher and from labels, give "
                               "distill= an alpha below 1."});
    }
    throw DataError({.what = "a target was given, but the model's own loss takes none",
                     .hint = fmt::format("Name the input that takes it: "
                                         "loss='output:{},target=NAME'.",
                                         schema.loss.output)});
  }
  const auto has_rows = [&](const Port& port) {
    return std::ranges::find(schema.constants, port.name) == schema.constants.end();
  };
  const auto port = std::ranges::find_if(ports, has_rows);
  ONNXGRAD_ASSERT(port != ports.end());
  const std::string& name = port->name;
  return rows_of(name, find_input(schema, data, name));
}

void check_rows(const std::string& name, std::int64_t given, std::int64_t rows) {
  if (given == rows) return;
  throw DataError({.what = fmt::format("'{}' has {} rows, the target has {}", name, given, rows),
                   .where = {.value = name},
                   .hint = "Give one row of each for each example."});
}

// The labels of one of several losses, by the name under which they were given.
const NamedTensor& find_labels(const LossInfo& whole, const LossInfo& loss, const Dataset& data) {
  for (const NamedTensor& labels : data.targets) {
    if (&find_loss_on(whole, labels.name) == &loss) return labels;
  }
  throw DataError({.what = "there is no target for output '" + loss.output + "'",
                   .where = {.value = loss.output},
                   .hint = "Give a target for each output that has a loss, by name."});
}

void check_target_names(const LossInfo& loss, const Dataset& data) {
  for (const NamedTensor& labels : data.targets) find_loss_on(loss, labels.name);
}

Tensor prepare_input(const DataSchema& schema, const Port& port, const Dataset& data,
                     std::int64_t rows, bool allow_nan, const ArrayPlace& place) {
  const Tensor& given = find_input(schema, data, port.name);
  const std::int64_t own_rows = rows_of(port.name, given);
  const Tensor fitted = fit_shape(port, given, rows, place);
  check_rows(port.name, own_rows, rows);
  const bool is_text = schema.texts != nullptr && fitted.dtype() == DataType::kString;
  if (is_text && port.type.dtype == DataType::kInt64) return schema.texts->encode(fitted);
  if (!allow_nan) check_finite(place, fitted, true, schema.threads);
  return convert_numbers(place, fitted, port.type.dtype);
}

// Rows in the memory of a device, whose copy in host memory is `given`, if the plan reads them as
// they are there.
DeviceTensor same_rows(const DeviceTensor& placed, const Tensor& given, const Tensor& values) {
  const bool has_form =
      placed.is_defined() && given.dtype() == values.dtype() && placed.dtype() == values.dtype() &&
      placed.size_bytes() == values.size_bytes() && given.size_bytes() == values.size_bytes();
  if (!has_form) return {};
  const bool is_same =
      given.raw() == values.raw() ||
      std::memcmp(given.raw(), values.raw(), static_cast<std::size_t>(values.size_bytes())) == 0;
  return is_same ? placed : DeviceTensor();
}

DeviceTensor find_placed(const DataSchema& schema, const Dataset& data, const Column& column) {
  for (const auto& [name, tensor] : data.placed) {
    const bool is_only = name.empty() && schema.inputs.size() == 1;
    if (name != column.name && !is_only) continue;
    return same_rows(tensor, find_input(schema, data, column.name), column.values);
  }
  return {};
}

DeviceTensor find_placed(const Dataset& data, const NamedTensor& labels, const Column& column) {
  const auto placed = std::ranges::find(data.placed_targets, labels.name, &NamedDeviceTensor::name);
  if (placed == data.placed_targets.end()) return {};
  return same_rows(placed->tensor, labels.tensor, column.values);
}

// An input that is the same for all rows, in the shape that the model declares.
Tensor prepare_constant(const DataSchema& schema, const Port& port, const Dataset& data,
                        bool allow_nan, const ArrayPlace& place) {
  const Tensor& given = find_input(schema, data, port.name);
  const auto declared = port.type.static_dims();
  if (declared && given.dims() != *declared) {
    throw DataError({.what = fmt::format("{} has shape {}, but the model reads {}", place.subject,
                                         given.dims().to_string(), port.type.to_string()),
                     .where = place.where(),
                     .hint = "It has no rows: give one array for all of them."});
  }
  if (!allow_nan) check_finite(place, given, true, schema.threads);
  return convert_numbers(place, given, port.type.dtype);
}

// The first row of a tensor, as a view of it.
Tensor first_row_of(const Tensor& rows) {
  std::vector<std::int64_t> dims(rows.dims().begin(), rows.dims().end());
  if (dims.empty() || dims[0] == 0) return rows;
  dims[0] = 1;
  const Dims one(std::move(dims));
  if (rows.dtype() == DataType::kString) {
    const auto texts = rows.strings();
    return Tensor::from_strings({texts.begin(), texts.begin() + one.num_elements()}, one);
  }
  return Tensor::view(rows.dtype(), one, const_cast<std::byte*>(rows.raw()),
                      std::make_shared<Tensor>(rows));
}

}  // namespace

void check_constant(const Column& column, const Column& other) {
  if (!column.is_constant || column.values.equals(other.values)) return;
  throw DataError(
      {.what = fmt::format("'{}' has no rows, but differs from chunk to chunk", column.name),
       .where = {.value = column.name},
       .hint = "Give the same array with all rows, or omit batch_size to train on "
               "batches as they come."});
}

Dims Column::batch_dims(std::int64_t rows) const {
  if (is_constant) return values.dims();
  std::vector<std::int64_t> dims(values.dims().begin(), values.dims().end());
  dims[0] = rows;
  return Dims(std::move(dims));
}

std::vector<Dims> PreparedData::batch_dims(std::int64_t rows) const {
  std::vector<Dims> dims;
  dims.reserve(columns.size());
  for (const Column& column : columns) dims.push_back(column.batch_dims(rows));
  return dims;
}

std::int64_t PreparedData::row_number(std::int64_t row) const {
  const RowRange* found = nullptr;
  for (const RowRange& range : ranges) {
    if (range.begin <= row) found = &range;
  }
  if (found == nullptr) return row;
  const std::int64_t place = found->first + (row - found->begin);
  return found->numbers ? (*found->numbers)[static_cast<std::size_t>(place)] : place;
}

void PreparedData::add_ranges(const PreparedData& from, std::int64_t begin, std::int64_t count) {
  for (std::size_t i = 0; i < from.ranges.size(); ++i) {
    const RowRange& range = from.ranges[i];
    const std::int64_t end = i + 1 < from.ranges.size() ? from.ranges[i + 1].begin : from.rows;
    const std::int64_t first = std::max(range.begin, begin);
    if (first >= std::min(end, begin + count)) continue;
    ranges.push_back({.begin = rows + (first - begin),
                      .first = range.first + (first - range.begin),
                      .numbers = range.numbers});
  }
}

PreparedData PreparedData::select(std::span<const std::int64_t> chosen) const {
  PreparedData part = *this;
  part.rows = static_cast<std::int64_t>(chosen.size());
  auto numbers = std::make_shared<std::vector<std::int64_t>>();
  for (const std::int64_t row : chosen) numbers->push_back(row_number(row));
  part.ranges = {{.begin = 0, .first = 0, .numbers = std::move(numbers)}};
  for (std::size_t c = 0; c < columns.size(); ++c) {
    Column& column = part.columns[c];
    if (column.is_constant) continue;
    column.placed = {};
    column.values = Tensor::empty(column.values.dtype(), column.batch_dims(part.rows));
    gather_rows(columns[c], chosen, column.values.mutable_raw());
  }
  return part;
}

PreparedData PreparedData::in_order_of(std::span<const Port> wanted) const {
  PreparedData result = *this;
  result.columns.clear();
  for (const Port& port : wanted) {
    const auto column = std::ranges::find(columns, port.name, &Column::name);
    ONNXGRAD_ASSERT(column != columns.end());
    const auto place = static_cast<std::size_t>(column - columns.begin());
    if (place == target) result.target = result.columns.size();
    if (has_weights && place == weights) result.weights = result.columns.size();
    result.columns.push_back(*column);
  }
  return result;
}

std::vector<Tensor> first_row_inputs(const DataSchema& schema, std::span<const Port> ports,
                                     const Dataset& data) {
  refuse_unknown_inputs(schema, data);
  Dataset first;
  for (const NamedTensor& input : data.inputs) {
    first.inputs.push_back({.name = input.name, .tensor = first_row_of(input.tensor)});
  }
  std::vector<Tensor> tensors;
  for (const Port& port : ports) {
    const bool is_constant =
        std::ranges::find(schema.constants, port.name) != schema.constants.end();
    tensors.push_back(is_constant
                          ? prepare_constant(schema, port, data, /*allow_nan=*/true, port.name)
                          : prepare_input(schema, port, first, 1, /*allow_nan=*/true, port.name));
  }
  return tensors;
}

PreparedData prepare_data(const DataSchema& schema, std::span<const Port> ports,
                          const Dataset& data, bool allow_nan, const std::string& part) {
  refuse_unknown_inputs(schema, data);
  check_target_names(schema.loss, data);
  const bool has_target = !schema.loss.target.name.empty();
  const Tensor& first =
      data.targets.empty() ? data.target : find_labels(schema.loss, schema.loss, data).tensor;
  PreparedData prepared;
  prepared.rows =
      has_target ? rows_of(schema.loss.target.name, first) : count_rows(schema, ports, data);
  prepared.ranges = {{.begin = 0, .first = data.first_row}};
  if (prepared.rows == 0) {
    throw DataError({.what = "the data set has no rows",
                     .hint = "Give arrays whose first dimension counts rows."});
  }
  if (data.sample_weight.is_defined() && schema.sample_weight.empty()) {
    throw DataError({.what = "sample weights were given, but the loss takes none",
                     .hint = "Build the loss with sample_weight='weight'."});
  }
  for (const Port& port : ports) {
    Column column{.name = port.name, .values = {}};
    if (const LossInfo* loss = find_target(schema.loss, port.name)) {
      const bool is_first = loss == &schema.loss;
      if (is_first) prepared.target = prepared.columns.size();
      const NamedTensor labels = data.targets.empty()
                                     ? NamedTensor{.name = "", .tensor = data.target}
                                     : find_labels(schema.loss, *loss, data);
      column.values = encode_target(*loss, labels.tensor, target_place(data, labels.name, part));
      column.placed = find_placed(data, labels, column);
      check_rows(port.name, rows_of(port.name, column.values), prepared.rows);
    } else if (port.name == schema.sample_weight) {
      prepared.has_weights = true;
      prepared.weights = prepared.columns.size();
      const Dims dims = weight_dims(port, schema.loss, first, prepared.rows);
      column.values = prepare_weights(port, data, prepared.rows, dims, weight_place(data, part));
      column.placed = same_rows(data.placed_weight, data.sample_weight, column.values);
    } else if (std::ranges::find(schema.constants, port.name) != schema.constants.end()) {
      column.is_constant = true;
      column.values =
          prepare_constant(schema, port, data, allow_nan, input_place(data, port.name, part));
    } else {
      column.values = prepare_input(schema, port, data, prepared.rows, allow_nan,
                                    input_place(data, port.name, part));
      column.placed = find_placed(schema, data, column);
    }
    if (!column.is_constant) column.row_bytes = column.values.size_bytes() / prepared.rows;
    prepared.columns.push_back(std::move(column));
  }
  return prepared;
}

}  // namespace onnxgrad::train
