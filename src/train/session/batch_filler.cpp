#include "train/session/batch_filler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "onnxgrad/error.h"
#include "train/data/targets.h"
#include "train/losses/losses.h"

namespace onnxgrad::train {
namespace {

Tensor ones_of_rows(const runtime::Port& port, std::int64_t rows) {
  const std::vector<double> ones(static_cast<std::size_t>(rows), 1.0);
  return Tensor::from(ones, Dims{rows}).cast(port.type.dtype);
}

}  // namespace

NamedTensors BatchFiller::with_weights(const NamedTensors& feeds) const {
  const std::string& name = step_.graph().sample_weight;
  const bool are_given =
      name.empty() || std::ranges::find(feeds, name, &NamedTensor::name) != feeds.end();
  if (!adds_weights_ || are_given) return feeds;
  const auto port = step_.weights_port();
  // Targets have a row for each of the scores, which sizes that are fed may make other ones.
  auto rows_of = std::ranges::find_if(feeds, [this](const NamedTensor& feed) {
    return find_target(step_.graph().loss, feed.name) != nullptr && feed.tensor.dims().rank() > 0;
  });
  if (rows_of == feeds.end()) {
    rows_of = std::ranges::find(feeds, form_.inputs.front(), &NamedTensor::name);
  }
  if (!port || rows_of == feeds.end() || rows_of->tensor.dims().rank() == 0) return feeds;
  NamedTensors all = feeds;
  all.push_back(
      {.name = name, .tensor = ones_of_rows(step_.data_ports()[*port], rows_of->tensor.dims()[0])});
  return all;
}

bool BatchFiller::has_rows(const std::string& feed) const {
  return feed == step_.graph().sample_weight || find_target(step_.graph().loss, feed) != nullptr ||
         std::ranges::find(form_.inputs, feed) != form_.inputs.end();
}

std::optional<std::int64_t> BatchFiller::rows_to_split(const NamedTensors& feeds) const {
  const std::int64_t fixed = form_.fixed_rows();
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

NamedTensors BatchFiller::batch_of(const NamedTensors& feeds, std::int64_t begin,
                                   std::int64_t rows) const {
  NamedTensors batch = feeds;
  const std::int64_t fixed = form_.fixed_rows();
  for (NamedTensor& feed : batch) {
    if (!has_rows(feed.name)) continue;
    feed.tensor = filled_rows(feed.tensor, begin, fixed);
    if (feed.name != step_.graph().sample_weight || begin + fixed <= rows) continue;
    const std::int64_t row_bytes = feed.tensor.size_bytes() / fixed;
    std::memset(feed.tensor.mutable_raw() + (rows - begin) * row_bytes, 0,
                static_cast<std::size_t>((begin + fixed - rows) * row_bytes));
  }
  return batch;
}

void BatchFiller::expect_filling(std::int64_t rows) const {
  const std::int64_t fixed = form_.fixed_rows();
  if (fixed == 0 || rows % fixed == 0 || !step_.graph().sample_weight.empty()) return;
  throw DataError(
      {.what = fmt::format("the last {} of {} rows are no whole batch: the file fixes batches of "
                           "{}, and this loss cannot leave rows out",
                           rows % fixed, rows, fixed),
       .detail = form_.why_fixed(),
       .hint = "Give a multiple of the batch, use drop_last=True in training, or export the model "
               "with a dynamic batch, in PyTorch dynamic_shapes={\"x\": {0: \"batch\"}}."});
}

void BatchFiller::expect_whole_batch(const NamedTensors& feeds) const {
  const auto rows = rows_to_split(feeds);
  if (!rows) return;
  throw ShapeError({.what = fmt::format("{} rows, but the file fixes its batch at {}", *rows,
                                        form_.fixed_rows()),
                    .detail = form_.why_fixed(),
                    .hint = fmt::format("Give {} rows in each step; Trainer.fit does so by itself.",
                                        form_.fixed_rows())});
}

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

}  // namespace onnxgrad::train
