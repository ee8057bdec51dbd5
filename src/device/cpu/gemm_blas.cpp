#include <algorithm>
#include <cstring>

#include "device/blas.h"
#include "device/cpu/gemm_buffer.h"
#include "device/cpu/gemm_plan.h"
#include "device/cpu/threads.h"

// Products by a BLAS library that the user has chosen (device/blas.h). Each thread calls it for its
// rows or columns. What the library cannot do, addends, max(0, x) and parts that are handed over,
// is done block by block of rows: the library writes a block to a buffer of an L2 cache, from where
// it is completed (gemm_buffer.h). The library packs its operands in each call: blocks have many
// rows.

namespace onnxgrad::device {
namespace {

constexpr std::int64_t kBufferBytes = std::int64_t{3} << 19;  // 768 rows of 512 float32
constexpr std::int64_t kLeastRows = 128;                      // of a thread or block
constexpr std::int64_t kHandedOverRows = 16;

/// A part of C.
struct Part {
  std::int64_t row = 0, rows = 0, column = 0, columns = 0;
};

/// The library writes C itself.
template <class T>
bool is_direct(const GemmPlan<T>& plan) {
  return !plan.hands_over && plan.start == GemmStart::kZero && plan.finish != GemmFinish::kRelu;
}

template <class T>
class ByBlas {
 public:
  ByBlas(const GemmPlan<T>& plan, const GemmOperands& operands, std::byte* buffer)
      : plan_(plan), operands_(operands), buffer_(reinterpret_cast<T*>(buffer)) {}

  void run(const Part& part) const {
    if (part.rows <= 0 || part.columns <= 0) return;
    const Blas& blas = *plan_.blas;
    const auto set_threads = blas.set_threads_of_caller;
    const int before = set_threads != nullptr ? set_threads(1) : 0;
    if (is_direct(plan_)) {
      T* c = static_cast<T*>(operands_.c);
      multiply(part, c + part.row * plan_.n + part.column, plan_.n);
    } else {
      for (std::int64_t i = 0; i < part.rows; i += plan_.block_m) {
        Part block = part;
        block.row += i;
        block.rows = std::min(plan_.block_m, part.rows - i);
        multiply(block, buffer_, plan_.block_n);
        finish(block);
      }
    }
    if (set_threads != nullptr) set_threads(before);
  }

 private:
  void multiply(const Part& part, T* c, std::int64_t c_row) const {
    const T* a = static_cast<const T*>(operands_.a) + part.row * (plan_.transpose_a ? 1 : plan_.k);
    const T* b =
        static_cast<const T*>(operands_.b) + part.column * (plan_.transpose_b ? plan_.k : 1);
    const auto number = [](std::int64_t size) { return static_cast<int>(size); };
    const auto form = [](bool transpose) { return transpose ? Blas::kTransposed : Blas::kAsItIs; };
    plan_.blas->template gemm<T>()(
        Blas::kRowMajor, form(plan_.transpose_a), form(plan_.transpose_b), number(part.rows),
        number(part.columns), number(plan_.k), plan_.alpha * static_cast<T>(operands_.factor), a,
        number(plan_.transpose_a ? plan_.m : plan_.k), b,
        number(plan_.transpose_b ? plan_.k : plan_.n), T(0), c, number(c_row));
  }

  /// The rest of what makes C of the block in the buffer.
  void finish(const Part& block) const {
    if (!plan_.hands_over) {
      T* c = static_cast<T*>(operands_.c);
      return add(block, c + block.row * plan_.n + block.column, plan_.n);
    }
    if (plan_.finish == GemmFinish::kRelu || plan_.start != GemmStart::kZero) {
      add(block, buffer_, plan_.block_n);
    }
    for (std::int64_t i = 0; i < block.rows; i += kHandedOverRows) {
      operands_.finished(operands_.context, {.c = buffer_ + i * plan_.block_n,
                                             .c_row = plan_.block_n,
                                             .row = block.row + i,
                                             .rows = std::min(kHandedOverRows, block.rows - i),
                                             .column = block.column,
                                             .columns = block.columns});
    }
  }

  /// c = what is in the buffer, plus the addends.
  void add(const Part& block, T* c, std::int64_t c_row) const {
    GemmExtras<T> extras;
    add_addends(plan_, operands_, extras);
    end_buffer(plan_, {block.row, block.rows, block.column, block.columns, buffer_, plan_.block_n},
               extras, plan_.finish, c, c_row);
  }

  const GemmPlan<T>& plan_;
  const GemmOperands& operands_;
  T* buffer_;
};

}  // namespace

template <class T>
std::int64_t plan_blas(GemmPlan<T>& plan) {
  plan.split_m = plan.m >= plan.n || (plan.hands_over && plan.m >= kLeastRows * plan.threads);
  if (is_direct(plan)) return 0;
  const std::int64_t lanes = plan.target->lanes;
  const std::int64_t rows = plan.split_m ? ceil_div(plan.m, plan.threads) : plan.m;
  const std::int64_t columns = plan.split_m ? plan.n : ceil_div(plan.n, plan.threads);
  plan.block_n = round_up(columns, lanes) + lanes;
  const std::int64_t row_bytes = plan.block_n * static_cast<std::int64_t>(sizeof(T));
  const std::int64_t most = std::max(kBufferBytes / row_bytes, kLeastRows);
  const std::int64_t equal = ceil_div(rows, ceil_div(rows, most));
  plan.block_m = round_up(equal, kHandedOverRows);
  plan.thread_scratch = plan.block_m * row_bytes;
  return plan.thread_scratch * plan.threads;
}

template <class T>
void run_blas(const void* data, const GemmOperands& operands) {
  const auto& plan = *static_cast<const GemmPlan<T>*>(data);
  on_threads(plan.threads, [&](const Share& share) {
    const std::int64_t unit = plan.split_m ? kHandedOverRows : plan.target->lanes;
    const std::int64_t total = plan.split_m ? plan.m : plan.n;
    const std::int64_t first = share.first(ceil_div(total, unit)) * unit;
    const std::int64_t count = std::min(share.last(ceil_div(total, unit)) * unit, total) - first;
    const Part part = plan.split_m ? Part{first, count, 0, plan.n} : Part{0, plan.m, first, count};
    ByBlas<T>(plan, operands, operands.scratch + share.thread * plan.thread_scratch).run(part);
  });
}

template std::int64_t plan_blas(GemmPlan<float>& plan);
template std::int64_t plan_blas(GemmPlan<double>& plan);
template void run_blas<float>(const void* data, const GemmOperands& operands);
template void run_blas<double>(const void* data, const GemmOperands& operands);

}  // namespace onnxgrad::device
