#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>

#include "base/f16.h"
#include "device/cpu/scratch_layout.h"
#include "device/cpu/threads.h"
#include "onnxgrad/error.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"

// TopK. The data is [outer, length, inner]; a row is the elements along the axis.
//
// Each element has a key, an integer that is larger the better the element is, and a candidate, one
// integer that orders by key first, then by the smaller index. A row is read once: blocks in which
// no element beats the worst of the best k so far are skipped after one vector comparison. A few
// candidates are kept sorted; many are collected in a buffer, which a selection reduces to k
// whenever it is full. NaN compares larger than all numbers.

namespace onnxgrad::ops::topk_cpu {
namespace {

struct TopKData {
  std::int64_t outer = 0;
  std::int64_t length = 0;
  std::int64_t inner = 0;
  std::int64_t k = 0;
  bool is_largest = true;
  int threads = 1;
  std::int64_t rows_offset = 0;  ///< in a thread's scratch, after the candidates
  device::ScratchBlocks thread_scratch = {};
};

// Returns a key that is larger for larger elements; NaN has the largest, both zeros have the same.
template <class T>
auto key_of(T x) {
  if constexpr (std::is_same_v<T, base::Float16> || std::is_same_v<T, base::Bfloat16>) {
    return key_of(base::to_float(x));
  } else if constexpr (std::is_floating_point_v<T>) {
    using Key = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
    const auto bits = std::bit_cast<Key>(x + T{0});
    const Key magnitude = std::numeric_limits<Key>::max();
    const Key key = bits ^ ((bits >> (sizeof(Key) * 8 - 1)) & magnitude);
    return x != x ? magnitude : key;
  } else if constexpr (std::is_unsigned_v<T> && sizeof(T) == 8) {
    return static_cast<std::int64_t>(x ^ (std::uint64_t{1} << 63));
  } else if constexpr (sizeof(T) == 8 || std::is_same_v<T, std::uint32_t>) {
    return static_cast<std::int64_t>(x);
  } else {
    return static_cast<std::int32_t>(x);
  }
}

template <class T>
using KeyOf = decltype(key_of(T{}));

// Candidate of a 32-bit key in one integer: key above, index below, reversed. Rows of 2^32 elements
// are declined.
struct Narrow {
  std::int64_t bits;
  static Narrow of(std::int32_t key, std::int64_t index) {
    return {static_cast<std::int64_t>(key) * (std::int64_t{1} << 32) + (0xffffffffLL - index)};
  }
  std::int32_t key() const { return static_cast<std::int32_t>(bits >> 32); }
  std::int64_t index() const { return 0xffffffffLL - (bits & 0xffffffffLL); }
  bool operator<(const Narrow& other) const { return bits > other.bits; }  // better ones first
};

struct Wide {
  std::int64_t value;
  std::int64_t place;
  static Wide of(std::int64_t key, std::int64_t index) { return {key, index}; }
  std::int64_t key() const { return value; }
  std::int64_t index() const { return place; }
  bool operator<(const Wide& other) const {
    return value != other.value ? value > other.value : place < other.place;
  }
};

template <class Key>
using CandidateOf = std::conditional_t<sizeof(Key) == 4, Narrow, Wide>;

constexpr std::int64_t kBlock = 64;
constexpr std::int64_t kShort = 16;  // shorter blocks are not tested first
constexpr std::int64_t kFew = 32;    // largest k whose candidates are kept sorted

// Number of rows along an inner axis that are transposed together.
constexpr std::int64_t kColumns = 16;

// A selection costs some hundred comparisons, so the buffer holds several blocks beyond k.
std::int64_t capacity_of(std::int64_t k) { return std::max(2 * k, k + 6 * kBlock); }

template <class T>
class Selection {
 public:
  using Key = KeyOf<T>;
  using Candidate = CandidateOf<Key>;

  Selection(const TopKData& topk, const T* x, Candidate* buffer)
      : x_(x),
        length_(topk.length),
        k_(topk.k),
        is_largest_(topk.is_largest),
        flip_(topk.is_largest ? Key{0} : Key{-1}),
        buffer_(buffer) {}

  /// Leaves the best k in the buffer, sorted.
  void run() {
    for (std::int64_t i = 0; i < k_; ++i) buffer_[i] = candidate(i);
    if (k_ <= kFew)
      keep_few();
    else
      keep_many();
  }

 private:
  // ~key reverses the order.
  Key key(std::int64_t i) const { return key_of(x_[i]) ^ flip_; }
  Candidate candidate(std::int64_t i) const { return Candidate::of(key(i), i); }

  void set_worst(const Candidate& worst) {
    worst_key_ = worst.key();
    worst_ = x_[worst.index()];
  }

  // Returns false only if no element of the block beats the worst one. Comparisons with NaN are
  // false, so NaN may yield true without need.
  bool may_have_better(std::int64_t first, std::int64_t end) const {
    if constexpr (std::is_arithmetic_v<T>) {
      const T worst = worst_;
      int found = 0;
      if (is_largest_) {
        for (std::int64_t i = first; i < end; ++i) found |= static_cast<int>(!(x_[i] <= worst));
      } else {
        for (std::int64_t i = first; i < end; ++i) found |= static_cast<int>(!(x_[i] >= worst));
      }
      return found != 0;
    } else {
      return true;
    }
  }

  template <class Take>
  void visit_better(Take&& take) {
    for (std::int64_t first = k_; first < length_; first += kBlock) {
      const std::int64_t end = std::min(first + kBlock, length_);
      if (end - first > kShort && !may_have_better(first, end)) continue;
      take(first, end);
    }
  }

  // Inserts into the sorted candidates before `place`; those after the new one move up.
  void insert(const Candidate fresh, std::int64_t place) {
    for (; place > 0 && fresh < buffer_[place - 1]; --place) buffer_[place] = buffer_[place - 1];
    buffer_[place] = fresh;
  }

  void keep_few() {
    for (std::int64_t i = 1; i < k_; ++i) insert(buffer_[i], i);
    set_worst(buffer_[k_ - 1]);
    visit_better([&](std::int64_t first, std::int64_t end) {
      for (std::int64_t i = first; i < end; ++i) {
        if (key(i) <= worst_key_) continue;
        insert(candidate(i), k_ - 1);
        set_worst(buffer_[k_ - 1]);
      }
    });
  }

  void keep_many() {
    std::int64_t count = k_;
    const auto shrink = [&] {
      if (count > k_) std::nth_element(buffer_, buffer_ + k_ - 1, buffer_ + count);
      count = k_;
    };
    set_worst(*std::max_element(buffer_, buffer_ + k_));
    visit_better([&](std::int64_t first, std::int64_t end) {
      if (count + kBlock > capacity_of(k_)) {
        shrink();
        set_worst(buffer_[k_ - 1]);
      }
      for (std::int64_t i = first; i < end; ++i) {
        if (key(i) > worst_key_) buffer_[count++] = candidate(i);
      }
    });
    shrink();
    std::sort(buffer_, buffer_ + k_);
  }

  const T* x_;
  std::int64_t length_;
  std::int64_t k_;
  bool is_largest_;
  Key flip_;
  Candidate* buffer_;
  Key worst_key_ = 0;
  T worst_ = {};
};

// Selects from one contiguous row; its results have stride `inner`.
template <class T>
void run_row(const TopKData& topk, const T* x, T* values, std::int64_t* indices,
             std::byte* scratch) {
  auto* buffer = reinterpret_cast<typename Selection<T>::Candidate*>(scratch);
  Selection<T>(topk, x, buffer).run();
  for (std::int64_t j = 0; j < topk.k; ++j) {
    const std::int64_t index = buffer[j].index();
    if (values != nullptr) values[j * topk.inner] = x[index];
    if (indices != nullptr) indices[j * topk.inner] = index;
  }
}

// Selects from `count` rows adjacent along the inner axis, transposed first.
template <class T>
void run_columns(const TopKData& topk, const T* x, std::int64_t count, T* values,
                 std::int64_t* indices, std::byte* scratch) {
  T* rows = reinterpret_cast<T*>(scratch + topk.rows_offset);
  for (std::int64_t i = 0; i < topk.length; ++i) {
    for (std::int64_t c = 0; c < count; ++c) rows[c * topk.length + i] = x[i * topk.inner + c];
  }
  for (std::int64_t c = 0; c < count; ++c) {
    run_row(topk, rows + c * topk.length, values == nullptr ? nullptr : values + c,
            indices == nullptr ? nullptr : indices + c, scratch);
  }
}

template <class T>
void run_topk(const TopKData& topk, KernelArgs args) {
  const T* x = args.at<T>(0);
  T* values = args.at<T>(2);
  auto* indices = args.at<std::int64_t>(3);
  if (topk.k == 0) return;
  // A task is one row, or several rows that are transposed together.
  const std::int64_t tasks_per_slice = ceil_div(topk.inner, kColumns);
  const std::int64_t tasks = topk.outer * tasks_per_slice;
  device::on_threads(topk.threads, device::chunks_of(topk.threads, tasks),
                     [&](const device::Chunk& chunk) {
                       std::byte* scratch = topk.thread_scratch.in(args[4], chunk.thread);
                       const std::int64_t end = chunk.last(tasks);
                       for (std::int64_t task = chunk.first(tasks); task < end; ++task) {
                         const std::int64_t o = task / tasks_per_slice;
                         const std::int64_t column = task % tasks_per_slice * kColumns;
                         const T* from = x + o * topk.length * topk.inner + column;
                         const std::int64_t to = o * topk.k * topk.inner + column;
                         T* to_values = values == nullptr ? nullptr : values + to;
                         std::int64_t* to_indices = indices == nullptr ? nullptr : indices + to;
                         if (topk.inner == 1) {
                           run_row(topk, from, to_values, to_indices, scratch);
                         } else {
                           run_columns(topk, from, std::min(kColumns, topk.inner - column),
                                       to_values, to_indices, scratch);
                         }
                       }
                     });
}

template <class T>
KernelOffer offer_for(TopKData data) {
  device::ScratchLayout all, own;
  own.reserve<CandidateOf<KeyOf<T>>>(capacity_of(data.k));
  data.rows_offset = own.reserve<T>(data.inner == 1 ? 0 : kColumns * data.length).offset;
  data.thread_scratch = all.reserve_blocks(data.threads, own);
  KernelOffer offer = prepared<run_topk<T>>(data, "selection of the best");
  offer.kernel.scratch_bytes = all.size_bytes();
  return offer;
}

KernelOffer offer_topk(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const auto planned = planned_ints(request, 1);
  if (!planned) return KernelOffer::decline("K is not known before the step runs");
  const auto axis =
      static_cast<std::size_t>(normalize_axis(request.node.int_attribute("axis"), dims.rank()));
  const std::int64_t k = planned->size() == 1 ? planned->front() : -1;
  if (k < 0 || k > dims[axis]) {
    throw ShapeError(
        {.what = "K is " + std::to_string(k) + " for an axis of size " + std::to_string(dims[axis]),
         .where = {.node = request.node.name, .op_type = request.node.op_type},
         .hint = "Ask for as many elements as there are, or fewer."});
  }
  if (dims[axis] >= std::int64_t{1} << 32) return KernelOffer::decline("the axis is too long");
  constexpr std::int64_t kParallelElements = 1 << 16;
  TopKData data{.outer = dims.product(0, axis),
                .length = dims[axis],
                .inner = dims.product(axis + 1, dims.rank()),
                .k = k,
                .is_largest = request.node.int_attribute("largest") != 0,
                .threads = 1};
  if (dims.num_elements() >= kParallelElements) {
    const std::int64_t tasks = data.outer * ceil_div(data.inner, kColumns);
    data.threads = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, request.threads));
  }
  return offer_for_types<float, double, base::Float16, base::Bfloat16, std::int8_t, std::int16_t,
                         std::int32_t, std::int64_t, std::uint8_t, std::uint16_t, std::uint32_t,
                         std::uint64_t>(request, request.inputs[0].dtype,
                                        [&]<class T>(T) { return offer_for<T>(data); });
}

}  // namespace

void register_topk_cpu(opdef::KernelRegistry& registry) { registry.add("", "TopK", 0, offer_topk); }

}  // namespace onnxgrad::ops::topk_cpu
