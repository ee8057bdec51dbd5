#ifndef ONNXGRAD_TRAIN_WORKERS_H_
#define ONNXGRAD_TRAIN_WORKERS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dist/communicator.h"
#include "opdef/collectives.h"

namespace onnxgrad::train {

/// The rows of a batch that one of several workers has.
struct RowSlice {
  std::int64_t first = 0;
  std::int64_t rows = 0;
};

/// Divides `rows` rows into consecutive slices, one for each worker, that differ by at most one
/// row.
inline RowSlice slice_of(std::int64_t rows, int rank, int size) {
  const std::int64_t whole = rows / size;
  const std::int64_t rest = rows % size;
  return {.first = whole * rank + std::min<std::int64_t>(rest, rank),
          .rows = whole + (rank < rest ? 1 : 0)};
}

/// The workers of a training, often one, for its plans and for decisions. What is exchanged in a
/// step is a list of collectives by number; it is prepared when a step first starts them. One
/// worker exchanges nothing: its sums, slices and decisions cost no call.
class Workers final : public opdef::Collectives {
 public:
  /// nullptr: there is one.
  explicit Workers(std::shared_ptr<dist::Communicator> communicator = nullptr)
      : communicator_(communicator ? std::move(communicator) : dist::make_self()),
        rank_(communicator_->rank()),
        size_(communicator_->size()) {}

  int rank() const override { return rank_; }
  int size() const { return size_; }
  bool has_others() const { return size_ > 1; }
  /// For the plans of a step; nullptr: there is one worker (see ExecutorOptions::collectives).
  opdef::Collectives* collectives() { return has_others() ? this : nullptr; }
  dist::Communicator& communicator() const { return *communicator_; }
  const std::shared_ptr<dist::Communicator>& shared() const { return communicator_; }
  RowSlice slice_of(std::int64_t rows) const {
    if (!has_others()) return {.rows = rows};
    const RowSlice units = train::slice_of(rows / rows_of_unit_, rank_, size_);
    return {.first = units.first * rows_of_unit_, .rows = units.rows * rows_of_unit_};
  }
  /// Lets slices consist of units of so many consecutive rows, which batches consist of too.
  void set_rows_of_unit(std::int64_t rows) { rows_of_unit_ = rows; }
  std::int64_t rows_of_unit() const { return rows_of_unit_; }

  void start(std::size_t number, const Elements& elements) override;
  void wait(std::size_t number) override;
  void progress() override { communicator_->progress(); }
  /// Forgets prepared collectives: the step has been rewritten.
  void forget() { prepared_.clear(); }

  /// Adds the numbers up over all workers.
  void add_up(std::span<double> numbers) const {
    if (has_others()) communicator_->all_reduce_now(numbers);
  }
  void add_up(std::span<std::int64_t> numbers) const {
    if (has_others()) communicator_->all_reduce_now(numbers);
  }
  /// Whether it is true on any worker.
  bool any(bool flag) const {
    std::int64_t count = flag ? 1 : 0;
    add_up(std::span(&count, 1));
    return count > 0;
  }
  /// The bytes of all workers, in order of ranks.
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> mine) const;

  /// Bytes that this worker sends for the collectives of a step, and seconds that it has waited
  /// for them so far.
  std::int64_t bytes_sent() const;
  double seconds_waited() const;

 private:
  /// A large sum is several collectives, of a size that fits into caches.
  struct Piece {
    std::unique_ptr<dist::Collective> collective;
    std::int64_t input = 0;  ///< offset of its input, in bytes
    std::int64_t output = 0;
  };
  struct Prepared {
    std::int64_t count = -1;
    std::vector<Piece> pieces = {};
  };
  void prepare(Prepared& prepared, const Elements& elements) const;

  std::shared_ptr<dist::Communicator> communicator_;
  int rank_;
  int size_;
  std::int64_t rows_of_unit_ = 1;
  std::vector<Prepared> prepared_;  ///< by number
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_WORKERS_H_
