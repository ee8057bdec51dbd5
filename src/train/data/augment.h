#ifndef ONNXGRAD_TRAIN_DATA_AUGMENT_H_
#define ONNXGRAD_TRAIN_DATA_AUGMENT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "onnxgrad/augmentation.h"
#include "train/data/dataset.h"
#include "train/tools/descriptions.h"

namespace onnxgrad::train {

/// The table of augmentations.
const DescriptionTable<Augmentation>& augmentation_rows();

/// Whether one of them mixes targets.
bool mixes_targets(std::span<const Augmentation> augmentations);

/// Copies rows of a data set, changed by augmentations. A row after the first k changes is rendered
/// into the caller's memory; a change that mixes renders the other row, after the changes before
/// it, into a buffer of its own. fill() allocates nothing.
class Augmenter {
 public:
  /// Rows in their order in the epoch, and those that they are mixed with.
  struct Pool {
    const PreparedData* data = nullptr;
    std::span<const std::int64_t> order = {};  ///< empty: all rows in order
    /// Rows to mix with, which do not depend on the order; empty: all of `data`.
    std::span<const std::int64_t> partners = {};
  };

  /// The target as the step reads it: type and shape of a row.
  struct Target {
    DataType dtype = DataType::kFloat32;
    std::vector<std::int64_t> axes = {};
  };

  /// `like`: data with the columns of all pools. `target`: what class numbers that are mixed
  /// become, probabilities. Throws: OptionError (no image for a change of images, an input of a
  /// type that it cannot change).
  Augmenter(std::span<const Augmentation> augmentations, std::uint64_t seed,
            const PreparedData& like, const Target& target);

  void begin_epoch(std::int64_t epoch) { epoch_ = static_cast<std::uint32_t>(epoch); }
  /// The shape of a batch of a column.
  Dims batch_dims(const Column& column, std::size_t number, std::int64_t rows) const;
  DataType dtype(const Column& column, std::size_t number) const;
  /// Writes the rows at positions [begin, begin + rows) of the pool to `batches`, by column;
  /// constant columns are left out.
  void fill(const Pool& pool, std::int64_t begin, std::int64_t rows, std::span<Tensor> batches);

 private:
  /// An input that is changed, or the target.
  struct Part {
    std::size_t column = 0;
    DataType dtype = DataType::kUndefined;
    std::int64_t elements = 0;  ///< of a row
    std::int64_t row_bytes = 0;
    std::vector<std::int64_t> axes = {};  ///< dimensions of a row
    bool is_input = false;
    bool is_target = false;
    std::int64_t classes = 0;  ///< of class numbers that become probabilities; 0: copied
  };
  /// A row under way: one address for each part.
  using Row = std::vector<std::byte*>;
  class Change;

  void render(const Pool& pool, std::int64_t row, std::size_t changes, const Row& to,
              std::size_t depth) const;
  void copy(const Pool& pool, std::int64_t row, const Row& to) const;

  std::vector<Augmentation> augmentations_;
  std::uint64_t seed_;
  std::uint32_t epoch_ = 1;
  std::vector<Part> parts_;
  Row to_;
  std::vector<std::vector<std::byte>> memory_;  // of others_
  std::vector<Row> others_;                     // by depth of mixing
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_DATA_AUGMENT_H_
