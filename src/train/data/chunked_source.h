#ifndef ONNXGRAD_TRAIN_DATA_CHUNKED_SOURCE_H_
#define ONNXGRAD_TRAIN_DATA_CHUNKED_SOURCE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "onnxgrad/data_files.h"
#include "train/data/sampler.h"

namespace onnxgrad::train {

/// A source with numbered chunks, which are read in a random order if possible.
class ChunkedSource : public DataSource {
 public:
  std::optional<std::int64_t> num_rows() const final { return rows_; }
  void start(const Pass& pass) final;
  std::optional<Dataset> next() final;
  bool take_rows(std::int64_t begin, std::int64_t end) final;
  std::vector<Piece> pieces() const final;
  std::unique_ptr<DataSource> open_pieces(const std::vector<std::int64_t>& numbers) const final;

 protected:
  /// Sets the size, after construction of the derived class. `any_order`: read_chunk may be called
  /// in any order.
  void set_size(std::int64_t rows, std::int64_t chunks, bool any_order);
  virtual Dataset read_chunk(std::int64_t chunk) = 0;
  /// The number of the chunk's first row; rows of chunks are consecutive.
  virtual std::int64_t first_row_of(std::int64_t chunk) const = 0;
  virtual std::int64_t bytes_of(std::int64_t chunk) const = 0;
  /// Another reader of the same file, which shares its metadata; only if chunks can be read
  /// in any order.
  virtual std::unique_ptr<ChunkedSource> make_copy() const = 0;

 private:
  std::int64_t chunk_at(std::int64_t position) const;
  std::int64_t rows_of(std::int64_t chunk) const;

  std::int64_t rows_ = 0;
  std::int64_t chunks_ = 0;
  bool any_order_ = true;
  std::optional<std::vector<std::int64_t>> chosen_;  ///< chunks to read, in this order; else all
  std::optional<KeyedPermutation> order_;            ///< order of all chunks in the current pass
  std::int64_t position_ = 0;
  std::int64_t begin_ = 0;  ///< first row to take, in the order of a pass
  std::int64_t end_ = -1;   ///< -1: all
  std::int64_t row_ = 0;    ///< first row of the chunk at position_, in the pass
};

/// `count` rows of a chunk from row `first` on; their memory is shared.
Dataset cut_rows(const Dataset& chunk, std::int64_t first, std::int64_t count);
/// Number of rows of a chunk, by its target or an input.
std::int64_t rows_in(const Dataset& chunk);

/// The columns (or arrays) of a file that feed inputs, targets and weights; -1: none.
struct ColumnPlan {
  std::vector<std::int64_t> inputs;  ///< per input of the model
  /// The input formed by the columns `stacked`: the remaining ones, in order, or those named by a
  /// map's keys.
  std::int64_t stacked_input = -1;
  std::vector<std::int64_t> stacked;
  bool fills_empty_cells = false;     ///< 0 for a key that a map does not have
  std::vector<std::int64_t> targets;  ///< per target_columns()
  std::int64_t sample_weight = -1;
};
/// FileLayout::targets; if there is only one target, that one, with an empty output.
std::vector<TargetColumn> target_columns(const FileLayout& layout);
/// Whether the columns of target_columns() are those of one target.
bool are_of_one_target(const FileLayout& layout);
/// Target i of target_columns() in `data`, as set up by place_targets().
Tensor& target_at(Dataset& data, std::size_t i);
void place_targets(Dataset& data, const FileLayout& layout);

/// Assigns columns according to FileLayout. `stacks`: remaining columns are stacked side by side;
/// otherwise there may be only one. Throws: DataError naming what is missing, and what exists.
ColumnPlan plan_columns(const std::string& path, const std::vector<std::string>& columns,
                        const FileLayout& layout, bool stacks);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_DATA_CHUNKED_SOURCE_H_
