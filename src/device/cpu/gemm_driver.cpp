#include "device/cpu/gemm_driver.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "device/cpu/scratch_layout.h"
#include "device/cpu/threads.h"

namespace onnxgrad::device {
namespace {

/// Writes columns [first, last) of `to`, the sums of `count` rows [n] at `sums`.
template <class T>
void add_column_sums(const std::byte* sums, std::int64_t count, std::int64_t n, std::int64_t first,
                     std::int64_t last, void* to) {
  const T* const from = reinterpret_cast<const T*>(sums);
  for (std::int64_t j = first; j < last; ++j) {
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(from[i * n + j]);
    static_cast<T*>(to)[j] = static_cast<T>(sum);
  }
}

struct DriverPlan {
  std::unique_ptr<const GemmKernel> kernel;
  GemmBlocking blocking;
  std::int64_t m = 0, n = 0, k = 0;
  int threads = 1;
  std::int64_t row_blocks = 1, block_m = 0;
  std::vector<GemmPanels> blocks;  ///< of columns
  /// Parts of the columns that chunks have. Apart, part p has the blocks [part_blocks[p],
  /// part_blocks[p + 1]); together, a fraction of the panels of each block.
  std::int64_t parts = 1;
  std::vector<std::size_t> part_blocks;
  /// Threads pack each block of B together, and A if several chunks read its rows; else each chunk
  /// packs what it alone reads.
  bool is_shared = false;
  bool shares_a = false;
  ScratchArray<std::byte> packed_b = {};  ///< in scratch if shared, else a thread's
  ScratchArray<std::byte> packed_a = {};  ///< the same; all blocks of rows if shared
  ScratchArray<std::byte> kernel_scratch = {};
  ScratchArray<std::byte> column_sums = {};  ///< [sum_rows(), n]
  ScratchBlocks thread_scratch = {};

  bool packs_b() const { return blocking.b_unit_bytes > 0; }
  std::int64_t sum_rows() const { return ceil_div(m, kGemmSumRows); }
  /// Steps for which B is packed at once.
  std::int64_t packed_steps() const { return blocking.has_consumer ? k : blocking.k; }
};

/// The thread of a chunk: its scratch, and the block of A that the chunk has packed there.
struct Worker {
  std::int64_t thread = 0;
  std::byte* scratch = nullptr;
  std::int64_t packed_i = -1, packed_k = -1;
};

/// A run of a plan.
class Run {
 public:
  Run(const DriverPlan& plan, const GemmOperands& operands) : plan_(plan), operands_(operands) {}

  void run() const {
    if (plan_.is_shared) {
      run_shared();
    } else {
      run_apart();
    }
    if (plan_.blocking.sum_bytes == 0) return;
    parallel_ranges(plan_.threads, plan_.n, [&](std::int64_t first, std::int64_t last) {
      const auto add = plan_.blocking.sum_bytes == sizeof(double) ? add_column_sums<double>
                                                                  : add_column_sums<float>;
      add(plan_.column_sums.in(operands_.scratch), plan_.sum_rows(), plan_.n, first, last,
          operands_.column_sums);
    });
  }

 private:
  Worker worker_of(const Chunk& chunk) const {
    return {.thread = chunk.thread,
            .scratch = plan_.thread_scratch.in(operands_.scratch, chunk.thread)};
  }
  std::byte* packed_b(const Worker& worker) const {
    return plan_.packed_b.in(plan_.is_shared ? operands_.scratch : worker.scratch);
  }
  std::byte* packed_a(const Worker& worker, std::int64_t i, std::int64_t k) const {
    if (!plan_.shares_a) return plan_.packed_a.in(worker.scratch);
    const std::int64_t step = plan_.blocking.has_consumer ? k / plan_.blocking.k : 0;
    return plan_.packed_a.in(operands_.scratch) +
           (step * plan_.row_blocks + i) * plan_.blocking.a_bytes;
  }
  GemmRows rows_of(std::int64_t i, std::int64_t k) const {
    const std::int64_t row = i * plan_.block_m;
    return {.row = row,
            .rows = std::min(plan_.block_m, plan_.m - row),
            .k = k,
            .steps = std::min(plan_.blocking.k, plan_.k - k)};
  }

  /// Calls f(k) for each block of k; once if there are no steps.
  template <class F>
  void visit_steps(const F& f) const {
    for (std::int64_t k = 0; k == 0 || k < plan_.k; k += plan_.blocking.k) f(k);
  }

  /// Packs panels [first, last) for a block of k.
  void pack_b(const GemmPanels& block, std::int64_t first, std::int64_t last, std::int64_t k,
              const Worker& worker) const {
    plan_.kernel->pack_b(operands_,
                         {.panels = &block,
                          .first = first,
                          .last = last,
                          .k = k,
                          .steps = std::min(plan_.blocking.k, plan_.k - k)},
                         packed_b(worker) + offset_of(block, k), kernel_scratch(worker));
  }

  /// Bytes before the steps from k on of a packed block of columns.
  std::int64_t offset_of(const GemmPanels& block, std::int64_t k) const {
    if (!plan_.blocking.has_consumer) return 0;
    const std::int64_t units = ceil_div(block.columns, plan_.blocking.unit);
    return k / plan_.blocking.k * units * plan_.blocking.b_unit_bytes;
  }

  std::byte* kernel_scratch(const Worker& worker) const {
    return plan_.kernel_scratch.in(worker.scratch);
  }

  /// Computes rows [i] and panels [first, last) for a block of k.
  void compute(const GemmPanels& block, std::int64_t first, std::int64_t last, std::int64_t i,
               std::int64_t k, Worker& worker) const {
    GemmTask task;
    task.rows = rows_of(i, k);
    task.scratch = kernel_scratch(worker);
    task.columns = {
        .panels = &block, .first = first, .last = last, .k = k, .steps = task.rows.steps};
    task.is_first = k == 0;
    task.is_last = k + task.rows.steps == plan_.k;
    if (plan_.blocking.a_bytes > 0) {
      std::byte* a = packed_a(worker, i, k);
      if (!plan_.shares_a && (worker.packed_i != i || worker.packed_k != k)) {
        plan_.kernel->pack_a(operands_, task.rows, a, task.scratch);
        worker.packed_i = i;
        worker.packed_k = k;
      }
      task.a = a;
    }
    if (plan_.packs_b()) task.b = packed_b(worker) + offset_of(block, k);
    if (plan_.blocking.sum_bytes > 0) {
      task.column_sums = plan_.column_sums.in(operands_.scratch) +
                         task.rows.row / kGemmSumRows * plan_.n * plan_.blocking.sum_bytes;
    }
    plan_.kernel->compute(operands_, task);
    if (task.is_last && !plan_.blocking.has_consumer && operands_.finished != nullptr) {
      pass_on(block, first, last, task.rows, worker);
    }
  }

  void pass_on(const GemmPanels& block, std::int64_t first, std::int64_t last, const GemmRows& rows,
               const Worker& worker) const {
    const std::int64_t begin = block.panel(first, plan_.blocking.unit).offset;
    const GemmPanels::Panel end = block.panel(last - 1, plan_.blocking.unit);
    operands_.finished(operands_.context, {.c_row = plan_.n,
                                           .row = rows.row,
                                           .rows = rows.rows,
                                           .column = block.column + begin,
                                           .columns = end.offset + end.count - begin,
                                           .part = rows.row / plan_.block_m,
                                           .thread = worker.thread});
  }

  /// Runs chunks that pack the columns of B which they read, each with all rows; if nothing is
  /// packed for several blocks of rows, each with one of these.
  void run_apart() const {
    const std::int64_t row_chunks = plan_.packs_b() ? 1 : plan_.row_blocks;
    const std::int64_t units = row_chunks * plan_.parts;
    on_threads(plan_.threads, std::min(units, kMostChunks), [&](const Chunk& chunk) {
      Worker worker = worker_of(chunk);
      if (chunk.count == 1) {
        for (const GemmPanels& block : plan_.blocks) run_rows(block, 0, plan_.row_blocks, worker);
        return;
      }
      for (std::int64_t u = chunk.first(units); u < chunk.last(units); ++u) {
        const std::int64_t i = u / plan_.parts;
        const auto part = static_cast<std::size_t>(u % plan_.parts);
        for (std::size_t b = plan_.part_blocks[part]; b < plan_.part_blocks[part + 1]; ++b) {
          run_rows(plan_.blocks[b], i, row_chunks == 1 ? plan_.row_blocks : i + 1, worker);
        }
      }
    });
  }

  /// Computes rows [first, last) of a block of columns, which this thread packs.
  void run_rows(const GemmPanels& block, std::int64_t first, std::int64_t last,
                Worker& worker) const {
    const std::int64_t panels = block.split.count();
    const auto pack = [&](std::int64_t k) {
      if (plan_.packs_b()) pack_b(block, 0, panels, k, worker);
    };
    if (!plan_.blocking.has_consumer) {
      return visit_steps([&](std::int64_t k) {
        pack(k);
        for (std::int64_t i = first; i < last; ++i) compute(block, 0, panels, i, k, worker);
      });
    }
    for (std::int64_t i = first; i < last; ++i) {
      visit_steps([&](std::int64_t k) {
        if (i == first) pack(k);
        compute(block, 0, panels, i, k, worker);
      });
    }
  }

  /// Computes all columns, block by block, each on all threads.
  void run_shared() const {
    if (plan_.blocking.has_consumer) {
      for (const GemmPanels& block : plan_.blocks) {
        pack_together(block, 0, plan_.k, &block == plan_.blocks.data());
        visit_chunks(
            block, [&](std::int64_t i, std::int64_t first, std::int64_t last, Worker& worker) {
              visit_steps([&](std::int64_t k) { compute(block, first, last, i, k, worker); });
            });
      }
    } else if (plan_.blocking.packs_a_once) {
      visit_steps([&](std::int64_t k) {
        for (const GemmPanels& block : plan_.blocks) {
          run_steps(block, k, &block == plan_.blocks.data());
        }
      });
    } else {
      for (const GemmPanels& block : plan_.blocks) {
        const bool packs_a = &block == plan_.blocks.data() || plan_.blocking.k < plan_.k;
        visit_steps([&](std::int64_t k) { run_steps(block, k, packs_a); });
      }
    }
  }

  /// Packs and multiplies a block of columns and of k.
  void run_steps(const GemmPanels& block, std::int64_t k, bool packs_a) const {
    pack_together(block, k, std::min(k + plan_.blocking.k, plan_.k), packs_a);
    visit_chunks(block, [&](std::int64_t i, std::int64_t first, std::int64_t last, Worker& worker) {
      compute(block, first, last, i, k, worker);
    });
  }

  /// Packs the blocks of k that begin in [k_first, k_last): B's panels, and A's rows if shared.
  void pack_together(const GemmPanels& block, std::int64_t k_first, std::int64_t k_last,
                     bool packs_a) const {
    const std::int64_t panels = plan_.packs_b() ? block.split.count() : 0;
    const std::int64_t rows = plan_.shares_a && packs_a ? plan_.row_blocks : 0;
    const std::int64_t steps = ceil_div(k_last - k_first, plan_.blocking.k);
    const std::int64_t units = (panels + rows) * steps;
    on_threads(plan_.threads, chunks_of(plan_.threads, units), [&](const Chunk& chunk) {
      const Worker worker = worker_of(chunk);
      for (std::int64_t u = chunk.first(units); u < chunk.last(units);) {
        const std::int64_t k = k_first + u / (panels + rows) * plan_.blocking.k;
        const std::int64_t at = u % (panels + rows);
        if (at >= panels) {
          const std::int64_t i = at - panels;
          plan_.kernel->pack_a(operands_, rows_of(i, k), packed_a(worker, i, k),
                               kernel_scratch(worker));
          ++u;
          continue;
        }
        const std::int64_t last = std::min(panels, at + chunk.last(units) - u);
        pack_b(block, at, last, k, worker);
        u += last - at;
      }
    });
  }

  /// Calls f(row block, first panel, last panel, worker) for all parts of a block of columns.
  template <class F>
  void visit_chunks(const GemmPanels& block, const F& f) const {
    const std::int64_t panels = block.split.count();
    const std::int64_t parts = std::min(plan_.parts, panels);
    const std::int64_t units = plan_.row_blocks * parts;
    on_threads(plan_.threads, std::min(units, kMostChunks), [&](const Chunk& chunk) {
      Worker worker = worker_of(chunk);
      for (std::int64_t u = chunk.first(units); u < chunk.last(units); ++u) {
        const std::int64_t part = u % parts;
        f(u / parts, panels * part / parts, panels * (part + 1) / parts, worker);
      }
    });
  }

  const DriverPlan& plan_;
  const GemmOperands& operands_;
};

void run(const void* data, const GemmOperands& operands) {
  Run(*static_cast<const DriverPlan*>(data), operands).run();
}

/// Cuts columns [first, last) into blocks of at most blocking.n.
void cut_columns(DriverPlan& plan, std::int64_t first, std::int64_t last) {
  const GemmBlocking& blocking = plan.blocking;
  for (std::int64_t j = first; j < last; j += blocking.n) {
    GemmPanels block{.split = {}, .column = j, .columns = std::min(blocking.n, last - j)};
    block.split = split_evenly(ceil_div(block.columns, blocking.unit), blocking.panel_units);
    plan.blocks.push_back(block);
  }
}

/// Cuts panels [first, last) of a B that was packed in advance into blocks of columns.
void cut_packed(DriverPlan& plan, std::int64_t first, std::int64_t last) {
  const GemmBlocking& blocking = plan.blocking;
  const EvenSplit& all = blocking.packed_b;
  const std::int64_t most = std::max<std::int64_t>(blocking.n / (all.big * blocking.unit), 1);
  for (std::int64_t p = first; p < last; p += most) {
    const std::int64_t panels = std::min(most, last - p);
    GemmPanels block{.split = all, .column = all.first(p) * blocking.unit, .columns = 0};
    block.split.big_count = std::clamp<std::int64_t>(all.big_count - p, 0, panels);
    block.split.small_count = panels - block.split.big_count;
    const std::int64_t end = std::min(all.first(p + panels) * blocking.unit, plan.n);
    block.columns = end - block.column;
    plan.blocks.push_back(block);
  }
}

/// Cuts the columns among `parts` parts that each have blocks of their own.
void cut_parts(DriverPlan& plan) {
  const GemmBlocking& blocking = plan.blocking;
  const bool is_packed = blocking.packed_b.count() > 0;
  const std::int64_t units =
      is_packed ? blocking.packed_b.count() : ceil_div(plan.n, blocking.unit);
  plan.parts = std::min(plan.parts, units);
  for (std::int64_t p = 0; p < plan.parts; ++p) {
    const Chunk part{.index = p, .count = plan.parts};
    plan.part_blocks.push_back(plan.blocks.size());
    if (is_packed) {
      cut_packed(plan, part.first(units), part.last(units));
    } else {
      cut_columns(plan, part.first(units) * blocking.unit,
                  std::min(part.last(units) * blocking.unit, plan.n));
    }
  }
  plan.part_blocks.push_back(plan.blocks.size());
}

/// Returns into how many parts the columns are cut so that threads get equal numbers of chunks.
std::int64_t parts_of(std::int64_t row_blocks, std::int64_t threads) {
  constexpr double kEven = 1.04;
  const std::int64_t least = ceil_div(threads, row_blocks);
  const auto busiest = [&](std::int64_t parts) {
    const std::int64_t chunks = row_blocks * parts;
    return static_cast<double>(ceil_div(chunks, threads) * threads) / static_cast<double>(chunks);
  };
  std::int64_t best = least;
  for (std::int64_t parts = least; parts <= 2 * least + 1 && busiest(best) > kEven; ++parts) {
    if (busiest(parts) < busiest(best)) best = parts;
  }
  return best;
}

/// Whether each thread has columns of its own, packs these of B and needs not wait for others.
bool has_own_columns(const DriverPlan& plan) {
  constexpr std::int64_t kPanels = 2;  // of a thread
  const GemmBlocking& blocking = plan.blocking;
  if (plan.threads == 1 || !plan.packs_b() || blocking.packs_a_once) return false;
  // Each thread packs all of A then. The copies that this adds may have half the size of B if few
  // threads need not wait for each other, a sixteenth if many do: a wait costs less than they do.
  constexpr int kFewThreads = 4;
  const std::int64_t most = plan.n / (plan.threads <= kFewThreads ? 2 : 16);
  if (blocking.a_bytes > 0 && (plan.threads - 1) * plan.m > most) return false;
  if (plan.row_blocks == 1) return true;
  // A consumer reads and writes matrices shaped like C. If these outweigh B, each thread has rows
  // of its own there, not cache lines beside those of another thread.
  if (blocking.has_consumer && plan.m >= plan.k && plan.row_blocks >= plan.threads) return false;
  return plan.n >= kPanels * blocking.panel_units * blocking.unit * plan.threads;
}

std::int64_t lay_out(DriverPlan& plan) {
  const GemmBlocking& blocking = plan.blocking;
  std::int64_t units = 0;
  for (const GemmPanels& block : plan.blocks) {
    units = std::max(units, ceil_div(block.columns, blocking.unit));
  }
  const std::int64_t b_bytes =
      units * blocking.b_unit_bytes * ceil_div(plan.packed_steps(), blocking.k);
  ScratchLayout all, own;
  plan.packed_b = (plan.is_shared ? all : own).reserve<std::byte>(b_bytes);
  const std::int64_t a_blocks =
      plan.row_blocks * (blocking.has_consumer ? ceil_div(plan.k, blocking.k) : 1);
  plan.packed_a = plan.shares_a ? all.reserve<std::byte>(a_blocks * blocking.a_bytes)
                                : own.reserve<std::byte>(blocking.a_bytes);
  plan.kernel_scratch = own.reserve<std::byte>(blocking.scratch_bytes);
  plan.column_sums = all.reserve<std::byte>(plan.sum_rows() * plan.n * blocking.sum_bytes);
  plan.thread_scratch = all.reserve_blocks(plan.threads, own);
  return all.size_bytes();
}

}  // namespace

PreparedGemm drive_gemm(std::int64_t m, std::int64_t n, std::int64_t k, int threads,
                        const GemmBlocking& blocking, std::unique_ptr<const GemmKernel> kernel) {
  auto plan = std::make_shared<DriverPlan>();
  plan->kernel = std::move(kernel);
  plan->blocking = blocking;
  plan->m = m, plan->n = n, plan->k = k;
  plan->threads = threads;
  plan->row_blocks = ceil_div(m, blocking.m);
  plan->block_m = blocking.m;
  plan->parts = parts_of(plan->row_blocks, threads);
  if (has_own_columns(*plan)) {
    plan->parts = threads * std::clamp<std::int64_t>(n / (threads * blocking.n), 1, 4);
  } else if (threads > 1 || blocking.packs_a_once) {
    if (blocking.a_bytes > 0) {  // each thread can pack some blocks
      constexpr std::int64_t kBlocks = 8;
      plan->block_m = std::min(blocking.m, round_up(ceil_div(m, kBlocks), blocking.row_unit));
      plan->row_blocks = ceil_div(m, plan->block_m);
      plan->parts = parts_of(plan->row_blocks, threads);
    }
    plan->shares_a = blocking.packs_a_once || (blocking.a_bytes > 0 && plan->parts > 1);
    plan->is_shared = plan->shares_a || (plan->packs_b() && plan->row_blocks > 1);
  }
  if (!plan->is_shared) {
    cut_parts(*plan);
  } else if (blocking.packed_b.count() > 0) {
    cut_packed(*plan, 0, blocking.packed_b.count());
  } else {
    cut_columns(*plan, 0, n);
  }
  PreparedGemm prepared;
  prepared.fn = run;
  prepared.scratch_bytes = lay_out(*plan);
  const bool is_cut = plan->is_shared && std::min(plan->parts, plan->blocks[0].split.count()) > 1;
  const bool has_all_columns = plan->blocks.size() == 1 && !is_cut;
  prepared.completes = blocking.has_consumer ? opdef::BlockCut::kNone
                       : has_all_columns     ? opdef::BlockCut::kRows
                                             : opdef::BlockCut::kAny;
  prepared.parts = plan->row_blocks;
  prepared.threads = threads;
  prepared.data = std::move(plan);
  return prepared;
}

}  // namespace onnxgrad::device
