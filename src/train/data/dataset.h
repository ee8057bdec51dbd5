#ifndef ONNXGRAD_TRAIN_DATA_DATASET_H_
#define ONNXGRAD_TRAIN_DATA_DATASET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "onnxgrad/data.h"
#include "onnxgrad/losses.h"
#include "onnxgrad/model.h"
#include "runtime/execution.h"
#include "train/tools/text_codes.h"

namespace onnxgrad::train {

/// One array, checked and in the type that the plan reads; its rows are contiguous.
struct Column {
  std::string name;          ///< name of the port
  Tensor values;             ///< [rows, ...]
  DeviceTensor placed = {};  ///< `values` in the memory of a device, if they were given there
  std::int64_t row_bytes = 0;
  bool is_constant = false;  ///< an input without rows: `values` are those of every batch, and
                             ///< row_bytes is 0

  const std::byte* row(std::int64_t i) const { return values.raw() + i * row_bytes; }
  /// The shape of a batch of `rows` rows.
  Dims batch_dims(std::int64_t rows) const;
};

/// Consecutive rows, and their numbers in the whole data.
struct RowRange {
  std::int64_t begin = 0;  ///< position of the first row among the available rows
  std::int64_t first = 0;  ///< number of the first row; the others follow
  /// All row numbers, if rows were left out; the range has those from `first` on.
  std::shared_ptr<const std::vector<std::int64_t>> numbers = {};
};

/// A data set in the order of a plan's ports.
struct PreparedData {
  std::int64_t rows = 0;
  std::vector<RowRange> ranges;  ///< in increasing order, the first from 0 on
  std::vector<Column> columns;
  std::size_t target = 0;  ///< index of the target column (of the first loss)
  bool has_weights = false;
  std::size_t weights = 0;  ///< index of the column of sample weights

  /// The number of a row in messages: that in the whole data.
  std::int64_t row_number(std::int64_t row) const;
  /// Appends the ranges of `count` rows of `from`, from `begin` on, after `rows` of these.
  void add_ranges(const PreparedData& from, std::int64_t begin, std::int64_t count);
  /// The shapes of a batch of `rows` rows, per column.
  std::vector<Dims> batch_dims(std::int64_t rows) const;
  /// The rows at these positions, copied.
  PreparedData select(std::span<const std::int64_t> chosen) const;
  /// The columns of these ports, in their order; all must exist.
  PreparedData in_order_of(std::span<const runtime::Port> wanted) const;
};

/// The schema that rows are checked against; refers to members of a session until its step is
/// recompiled.
struct DataSchema {
  const std::vector<ValueInfo>& inputs;  ///< inputs of the model
  const LossInfo& loss;
  const std::string& sample_weight;  ///< name of that input; empty: none
  const TextCodes* texts = nullptr;  ///< the numbers of texts; nullptr: the model reads none
  int threads = 1;                   ///< for checks of large arrays
  /// Inputs of the model that have no rows.
  std::span<const std::string> constants = {};
};

/// Checks a data set before anything runs: names, number of rows and columns, dtypes (converted
/// if nothing is lost), NaN and infinity, labels, weights. Arrays that need no conversion are
/// shared. `ports`: what is fed, without the learning rate. `part`: what the rows are for, if
/// worth naming ("validation"). Throws: DataError, naming row and column if possible.
PreparedData prepare_data(const DataSchema& schema, std::span<const runtime::Port> ports,
                          const Dataset& data, bool allow_nan, const std::string& part = {});

/// Checks an input without rows of another chunk. Throws: DataError (it differs from chunk to
/// chunk).
void check_constant(const Column& column, const Column& other);

/// The first row of these inputs of the model. Throws: DataError.
std::vector<Tensor> first_row_inputs(const DataSchema& schema, std::span<const runtime::Port> ports,
                                     const Dataset& data);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_DATA_DATASET_H_
