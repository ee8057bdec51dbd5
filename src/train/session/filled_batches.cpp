#include "train/session/filled_batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "train/data/targets.h"
#include "train/session/session.h"
#include "train/tools/mean.h"

namespace onnxgrad::train {
namespace {

Dims with_rows(const Dims& dims, std::int64_t rows) {
  std::vector<std::int64_t> sizes(dims.begin(), dims.end());
  sizes[0] = rows;
  return Dims(std::move(sizes));
}

// Row `to` of a copy becomes row `from`.
void copy_row(const Tensor& source, std::int64_t from, Tensor& copy, std::int64_t to) {
  const std::int64_t elements = source.dims().product(1, source.dims().rank());
  if (source.dtype() == DataType::kString) {
    const auto row = source.strings().subspan(static_cast<std::size_t>(from * elements),
                                              static_cast<std::size_t>(elements));
    std::ranges::copy(row, copy.mutable_strings().begin() + to * elements);
    return;
  }
  const auto bytes =
      static_cast<std::size_t>(source.size_bytes()) / static_cast<std::size_t>(source.dims()[0]);
  std::memcpy(copy.mutable_raw() + static_cast<std::size_t>(to) * bytes,
              source.raw() + static_cast<std::size_t>(from) * bytes, bytes);
}

Tensor ones_of_rows(const runtime::Port& port, std::int64_t rows) {
  const std::vector<double> ones(static_cast<std::size_t>(rows), 1.0);
  return Tensor::from(ones, Dims{rows}).cast(port.type.dtype);
}

}  // namespace

Tensor filled_rows(const Tensor& tensor, std::int64_t begin, std::int64_t size) {
  Tensor rows = Tensor::empty(tensor.dtype(), with_rows(tensor.dims(), size));
  const std::int64_t last = tensor.dims()[0] - 1;
  for (std::int64_t i = 0; i < size; ++i) copy_row(tensor, std::min(begin + i, last), rows, i);
  return rows;
}

void copy_tensor_rows(const Tensor& source, std::span<const std::int64_t> rows, Tensor& copy) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    copy_row(source, rows[i], copy, static_cast<std::int64_t>(i));
  }
}

Tensor first_rows(const Tensor& tensor, std::int64_t rows) { return filled_rows(tensor, 0, rows); }

Tensor joined_rows(std::span<const Tensor> parts) {
  std::int64_t rows = 0;
  for (const Tensor& part : parts) rows += part.dims()[0];
  Tensor whole = Tensor::empty(parts[0].dtype(), with_rows(parts[0].dims(), rows));
  std::int64_t next = 0;
  for (const Tensor& part : parts) {
    if (with_rows(part.dims(), 1) != with_rows(whole.dims(), 1)) {
      throw ShapeError({.what = fmt::format("an output has shapes {} and {} for different rows",
                                            parts[0].dims().to_string(), part.dims().to_string()),
                        .hint = "Predict as many rows at a time as the file's batch has."});
    }
    for (std::int64_t i = 0; i < part.dims()[0]; ++i) copy_row(part, i, whole, next++);
  }
  return whole;
}

// Inputs whose first dimension is a number, if others have rows.
void Session::find_constants() {
  const auto has_own_rows = [this](const ValueInfo& input) {
    if (std::ranges::find(batch_.inputs, input.name) != batch_.inputs.end()) return true;
    const bool is_open = !input.shape || (!input.shape->empty() && !(*input.shape)[0].is_fixed());
    return !input.is_tensor || is_open || input.keys.is_defined();
  };
  if (std::ranges::none_of(inputs_, has_own_rows)) return;
  for (const ValueInfo& input : inputs_) {
    if (!has_own_rows(input)) constants_.push_back(input.name);
  }
}

// The first step, with weights for rows if batches are filled up. A loss that the model itself
// computes, or a formula over whole batches, takes none: then only whole batches are possible.
void Session::build_first() {
  if (batch_.fixed_rows() > 0 && training_ == nullptr &&
      !std::holds_alternative<OutputLoss>(loss_.function)) {
    build({});
    // A first dimension that the scores do not have counts no rows: indices of bags, say.
    const ir::Value* const scores = source_.working->graph->find(loss().scores);
    const bool is_known = scores != nullptr && scores->type.has_rank() && scores->type.rank() > 0;
    const bool has_rows = !is_known || ((*scores->type.shape)[0].is_static() &&
                                        (*scores->type.shape)[0].value() == batch_.fixed_rows());
    if (!has_rows) {
      batch_ = {.model = batch_.model};
      build({});
      return;
    }
  }
  const bool fills = batch_.fixed_rows() > 1 && loss_.sample_weight.empty() &&
                     training_ == nullptr && !std::holds_alternative<OutputLoss>(loss_.function);
  if (fills) {
    loss_.sample_weight = "sample_weight";
    try {
      build({});
      fills_batches_ = true;
      return;
    } catch (const ModelError&) {
      loss_.sample_weight.clear();
    }
  }
  build({});
}

// A weight of 1 for each row where weights are there only to fill batches up.
NamedTensors Session::with_weights_of_rows(const NamedTensors& feeds) const {
  const std::string& name = graph().sample_weight;
  const bool are_given =
      name.empty() || std::ranges::find(feeds, name, &NamedTensor::name) != feeds.end();
  if (!fills_batches_ || are_given) return feeds;
  const auto ports = step_->data_ports();
  const auto port = std::ranges::find(ports, name, &runtime::Port::name);
  // Targets have a row for each of the scores, which sizes that are fed may make other ones.
  auto rows_of = std::ranges::find_if(feeds, [this](const NamedTensor& feed) {
    return find_target(loss(), feed.name) != nullptr && feed.tensor.dims().rank() > 0;
  });
  if (rows_of == feeds.end()) {
    rows_of = std::ranges::find(feeds, batch_.inputs.front(), &NamedTensor::name);
  }
  if (port == ports.end() || rows_of == feeds.end() || rows_of->tensor.dims().rank() == 0) {
    return feeds;
  }
  NamedTensors all = feeds;
  all.push_back({.name = name, .tensor = ones_of_rows(*port, rows_of->tensor.dims()[0])});
  return all;
}

bool Session::has_rows(const std::string& feed) const {
  return feed == graph().sample_weight || find_target(loss(), feed) != nullptr ||
         std::ranges::find(batch_.inputs, feed) != batch_.inputs.end();
}

// Number of rows in the feeds, if the batch is fixed and has another number of rows.
std::optional<std::int64_t> Session::rows_to_split(const NamedTensors& feeds) const {
  const std::int64_t fixed = batch_.fixed_rows();
  if (fixed == 0) return std::nullopt;
  std::optional<std::int64_t> rows;
  for (const NamedTensor& feed : feeds) {
    if (!has_rows(feed.name)) continue;
    if (feed.tensor.dims().rank() == 0) return std::nullopt;
    if (rows && *rows != feed.tensor.dims()[0]) return std::nullopt;  // an error names them
    rows = feed.tensor.dims()[0];
  }
  return rows && *rows != fixed && *rows > 0 ? rows : std::nullopt;
}

// The batch that begins at this row, filled up.
NamedTensors Session::batch_of(const NamedTensors& feeds, std::int64_t begin,
                               std::int64_t rows) const {
  NamedTensors batch = feeds;
  const std::int64_t fixed = batch_.fixed_rows();
  for (NamedTensor& feed : batch) {
    if (!has_rows(feed.name)) continue;
    feed.tensor = filled_rows(feed.tensor, begin, fixed);
    if (feed.name != graph().sample_weight || begin + fixed <= rows) continue;
    const std::int64_t row_bytes = feed.tensor.size_bytes() / fixed;
    std::memset(feed.tensor.mutable_raw() + (rows - begin) * row_bytes, 0,
                static_cast<std::size_t>((begin + fixed - rows) * row_bytes));
  }
  return batch;
}

EvaluationResult Session::evaluate_parts(const NamedTensors& feeds, std::int64_t rows) {
  const std::int64_t fixed = batch_.fixed_rows();
  expect_filling(rows);
  const NamedTensors weighted = with_weights_of_rows(feeds);
  LossSums sums;
  for (std::int64_t begin = 0; begin < rows; begin += fixed) {
    sums += sums_on(batch_of(weighted, begin, rows));
  }
  return result_of(sums, rows);
}

void Session::expect_filling(std::int64_t rows) const {
  const std::int64_t fixed = batch_.fixed_rows();
  if (fixed == 0 || rows % fixed == 0 || !graph().sample_weight.empty()) return;
  throw DataError(
      {.what = fmt::format("the last {} of {} rows are no whole batch: the file fixes batches of "
                           "{}, and this loss cannot leave rows out",
                           rows % fixed, rows, fixed),
       .detail = "The batch dimension is not opened: " + batch_.obstacle + ".",
       .hint = "Give a multiple of the batch, use drop_last=True in training, or export the model "
               "with a dynamic batch, in PyTorch dynamic_shapes={\"x\": {0: \"batch\"}}."});
}

std::vector<Tensor> Session::predict_parts(const NamedTensors& feeds, std::int64_t rows,
                                           std::span<const std::string> output_names) {
  const std::int64_t fixed = batch_.fixed_rows();
  std::vector<std::vector<Tensor>> parts;  // per output, of all batches
  for (std::int64_t begin = 0; begin < rows; begin += fixed) {
    const auto outputs = predict_batch(batch_of(feeds, begin, rows), output_names);
    parts.resize(outputs.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const Tensor& output = outputs[i];
      if (output.dims().rank() == 0 || output.dims()[0] != fixed) {
        throw ShapeError(
            {.what = fmt::format("an output of shape {} has no row for each of the {} rows that "
                                 "the file's batch has",
                                 output.dims().to_string(), fixed),
             .hint = fmt::format("Name the other outputs, or give {} rows at a time.", fixed)});
      }
      const std::int64_t left = std::min(fixed, rows - begin);
      parts[i].push_back(left < fixed ? first_rows(output, left) : output);
    }
  }
  std::vector<Tensor> results;
  for (const std::vector<Tensor>& outputs : parts) results.push_back(joined_rows(outputs));
  return results;
}

// Throws: ShapeError (a step takes one batch).
void Session::expect_whole_batch(const NamedTensors& feeds) const {
  const auto rows = rows_to_split(feeds);
  if (!rows) return;
  throw ShapeError({.what = fmt::format("{} rows, but the file fixes its batch at {}", *rows,
                                        batch_.fixed_rows()),
                    .detail = "The batch dimension is not opened: " + batch_.obstacle + ".",
                    .hint = fmt::format("Give {} rows in each step; Trainer.fit does so by itself.",
                                        batch_.fixed_rows())});
}

}  // namespace onnxgrad::train
