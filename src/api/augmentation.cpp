#include "onnxgrad/augmentation.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "onnxgrad/data.h"
#include "onnxgrad/tables.h"
#include "train/data/augment.h"

namespace onnxgrad {

std::vector<DescriptionInfo> augmentation_table() { return train::augmentation_rows().infos(); }

Augmentation make_augmentation(std::string_view type, const FieldValues& options) {
  return train::augmentation_rows().make(type, options);
}

std::string to_string(const Augmentation& augmentation) {
  return train::augmentation_rows().to_string(augmentation);
}

std::vector<Tensor> augmented_rows(std::span<const Tensor> inputs, const Tensor& target,
                                   std::span<const Augmentation> augmentations, std::uint64_t seed,
                                   std::int64_t epoch) {
  const bool has_target = target.is_defined();
  std::vector<Tensor> given(inputs.begin(), inputs.end());
  const bool has_classes = has_target && !is_floating(target.dtype());
  if (has_target) given.push_back(has_classes ? target.cast(DataType::kInt64) : target);
  train::PreparedData data;
  data.target = has_target ? inputs.size() : inputs.size() + 1;
  for (const Tensor& tensor : given) {
    const std::int64_t rows = tensor.dims().rank() > 0 ? tensor.dims()[0] : 0;
    if (rows < 1 || (data.rows > 0 && rows != data.rows)) {
      throw DataError({.what = "augment: the arrays have different numbers of rows, or none",
                       .hint = "Give arrays [N, ...] with one row for each sample."});
    }
    data.rows = rows;
    data.columns.push_back({.name = "input " + std::to_string(data.columns.size()),
                            .values = tensor,
                            .row_bytes = tensor.size_bytes() / rows});
  }
  if (given.empty()) return {};
  data.ranges.push_back({});
  std::int64_t classes = 1;
  if (has_classes) {
    for (const std::int64_t label : given.back().to_int64s()) {
      if (label < 0) {
        throw DataError({.what = "augment: a class number is below 0",
                         .hint = "Give class numbers from 0, or numbers."});
      }
      classes = std::max(classes, label + 1);
    }
  }
  train::Augmenter augmenter(augmentations, seed, data, {.axes = {classes}});
  augmenter.begin_epoch(epoch);
  std::vector<Tensor> changed;
  for (std::size_t c = 0; c < data.columns.size(); ++c) {
    changed.push_back(Tensor::empty(augmenter.dtype(data.columns[c], c),
                                    augmenter.batch_dims(data.columns[c], c, data.rows)));
  }
  augmenter.fill({.data = &data}, 0, data.rows, changed);
  return changed;
}

}  // namespace onnxgrad
