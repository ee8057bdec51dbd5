#include "ops/recurrent/cell_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/block_text_cuda.h"
#include "ops/fault_text_cuda.h"
#include "ops/kernel_support_cuda.h"
#include "ops/math/product_cuda.h"
#include "ops/recurrent/cell_text_cuda.h"

// Launches: X W^T and the biases, then all steps; backward all steps, then the products and sums
// over them, one direction after the other.

namespace onnxgrad::ops::recurrent {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;

/// A matrix as an operand of a product: its address and the steps from row to row and from column
/// to column.
struct Matrix {
  Word at = {};
  std::int64_t row = 0;
  std::int64_t column = 1;
};

/// Collects the launches of a kernel.
class Launches {
 public:
  Launches(const KernelRequest& request, CellPlan plan)
      : request_(request),
        plan_(std::move(plan)),
        s_(plan_.shape),
        dtype_(request.inputs[0].dtype),
        bytes_(element_bytes(dtype_)),
        type_(typedefs({{"og_t", text_type(dtype_)}})) {}

  KernelOffer forward() {
    const std::int64_t all = s_.directions * s_.rows();
    const Word gates = has(Operand::kOutGates) ? at(Operand::kOutGates) : reserve(all * s_.width());
    const Word transposed = reserve(s_.directions * s_.width() * s_.hidden);
    for (std::int64_t d = 0; d < s_.directions; ++d) {
      product({at(Operand::kX), s_.inputs, 1},
              {at(Operand::kW, d * s_.width() * s_.inputs), 1, s_.inputs},
              moved(gates, d * s_.rows() * s_.width()), s_.rows(), s_.width(), s_.inputs);
    }
    if (has(Operand::kB)) {
      const std::int64_t both = plan_.attributes.linear_before_reset ? 2 * s_.hidden : s_.width();
      sums("og_bias", all * s_.width(), {gates, at(Operand::kB)},
           {s_.rows(), s_.width(), s_.directions, both});
    }
    sums("og_transpose", s_.directions * s_.width() * s_.hidden, {at(Operand::kR), transposed},
         {s_.directions, s_.hidden, s_.width()});
    const std::int64_t states = s_.directions * s_.batch * s_.hidden;
    std::vector<Word> words = operand_words();
    words[kWordR] = transposed;
    words[kWordGates] = gates;
    words[kWordKept] = at(Operand::kOutKept);
    words[kWordH] = reserve(states);
    words[kWordC] = reserve(states);
    words[kWordSide] = reserve(states);
    const Refusal lengths = refusal(request_, [plan = std::make_shared<CellPlan>(plan_)](
                                                  std::int64_t length, std::int64_t row) {
      throw_length_error(*plan, row, length);
    });
    words[kWordCells] = Word::cells();
    words[kWordRecord] = Word::of(*lengths.record);
    steps("og_forward", std::move(words)).keeps = lengths.record;
    KernelOffer offer = finish(1);
    offer.kernel.checks = length_checks(plan_);
    return offer;
  }

  KernelOffer backward() {
    const std::int64_t all = s_.directions * s_.rows();
    const std::int64_t states = s_.directions * s_.batch * s_.hidden;
    const Word dgates = reserve(all * s_.width());
    const Word before = reserve(all * s_.hidden);
    const bool is_gru = plan_.attributes.cell == Cell::kGru;
    const Word dm = reserve(is_gru ? all * s_.hidden : 0);
    std::vector<Word> words = operand_words();
    words[kWordGates] = at(Operand::kGates);
    words[kWordKept] = at(Operand::kKept);
    words[kWordH] = reserve(states);
    words[kWordC] = reserve(states);
    words[kWordSide] = reserve(states);
    words[kWordBefore] = before;
    words[kWordDGates] = dgates;
    words[kWordDM] = dm;
    steps("og_backward", std::move(words));
    for (std::int64_t d = 0; d < s_.directions; ++d) {
      const Word of_d = moved(dgates, d * s_.rows() * s_.width());
      add_dx(d, of_d);
      if (has(Operand::kDW)) {
        product({of_d, 1, s_.width()}, {padded_inputs(), s_.inputs, 1},
                at(Operand::kDW, d * s_.width() * s_.inputs), s_.width(), s_.inputs, s_.rows());
      }
      add_dr(d, of_d, moved(before, d * s_.rows() * s_.hidden),
             moved(dm, d * s_.rows() * s_.hidden));
      add_biases(d, of_d, moved(dm, d * s_.rows() * s_.hidden));
      add_peepholes(d, of_d);
    }
    return finish(2);
  }

 private:
  bool has(Operand operand) const { return plan_.has(operand); }
  Word at(Operand operand, std::int64_t elements = 0) const {
    return optional_argument(plan_.place[static_cast<std::size_t>(operand)], elements * bytes_);
  }
  Word moved(Word word, std::int64_t elements) const {
    word.offset += elements * bytes_;
    return word;
  }
  Word reserve(std::int64_t elements) {
    const Word word = Word::argument(plan_.scratch, scratch_bytes_);
    scratch_bytes_ += round_up(elements * bytes_, std::int64_t{256});
    return word;
  }

  std::vector<Word> operand_words() const {
    std::vector<Word> words(kWordSteps, Word::of(std::int64_t{0}));
    words[kWordR] = at(Operand::kR);
    words[kWordB] = at(Operand::kB);
    words[kWordLengths] = at(Operand::kLengths);
    words[kWordInitialH] = at(Operand::kInitialH);
    words[kWordInitialC] = at(Operand::kInitialC);
    words[kWordP] = at(Operand::kP);
    words[kWordY] = at(Operand::kY);
    words[kWordDY] = at(Operand::kDY);
    words[kWordDYh] = at(Operand::kDYh);
    words[kWordDYc] = at(Operand::kDYc);
    words[kWordOutY] = at(Operand::kOutY);
    words[kWordOutYh] = at(Operand::kOutYh);
    words[kWordOutYc] = at(Operand::kOutYc);
    words[kWordDInitialH] = at(Operand::kDInitialH);
    words[kWordDInitialC] = at(Operand::kDInitialC);
    const CellAttributes& attributes = plan_.attributes;
    add_integers(words,
                 {s_.steps, s_.batch, s_.hidden, s_.directions, attributes.is_reverse ? 1 : 0,
                  attributes.linear_before_reset ? 1 : 0, attributes.input_forget ? 1 : 0});
    words.push_back(Word::of(attributes.clip));
    for (int d = 0; d < 2; ++d) {
      for (std::size_t i = 0; i < 3; ++i) {
        Activation act;
        if (d < attributes.directions && i < attributes.functions()) {
          act = attributes.activation(d, i);
        }
        words.push_back(Word::of(static_cast<std::int64_t>(act.act)));
        words.push_back(Word::of(act.alpha));
        words.push_back(Word::of(act.beta));
      }
    }
    return words;
  }

  // Long sums are split among more threads.
  TextKernel& steps(const char* name, std::vector<Word> words) {
    constexpr std::int64_t kFewUnits = 64;
    const unsigned parts = s_.hidden < kFewUnits ? 1 : 4;
    TextKernel kernel = text_kernel(request_,
                                    type_ + device::cuda::block_threads_text(256 * parts) +
                                        fmt::format("enum {{ og_parts = {} }};\n", parts) +
                                        cell_text(plan_.attributes.cell),
                                    name, std::move(words));
    kernel.block[0] = 256 * parts;
    kernel.grid[0] =
        static_cast<unsigned>(s_.directions * ceil_div(s_.batch, std::int64_t{kCellRows}));
    launches_.push_back(std::move(kernel));
    return launches_.back();
  }

  void sums(const char* name, std::int64_t elements, std::vector<Word> words,
            std::initializer_list<std::int64_t> integers) {
    if (elements == 0) return;
    add_integers(words, integers);
    launches_.push_back(text_kernel_over(request_, elements, sums_text(), name, std::move(words)));
  }
  std::string sums_text() const { return std::string(block_text()) + type_ + cell_sums_text(); }

  // c = a b, as tiles.
  void product(const Matrix& a, const Matrix& b, Word c, std::int64_t m, std::int64_t n,
               std::int64_t k) {
    if (m == 0 || n == 0) return;
    const std::int64_t large = ceil_div(m, std::int64_t{64}) * ceil_div(n, std::int64_t{64});
    const bool is_large = m > 16 && n > 16 && large >= card_of(request_)->multiprocessors() / 2;
    const std::int64_t tile = is_large ? 64 : 16;
    std::string text = type_ + R"(
typedef og_t og_a;
typedef og_t og_b;
typedef og_t og_p;
typedef og_t og_s;
OG_FUNCTION og_t og_get_a(const og_t* from, og_i64 i) { return from[i]; }
OG_FUNCTION og_t og_get_b(const og_t* from, og_i64 i) { return from[i]; }
OG_FUNCTION void og_set_p(og_t* to, og_i64 i, og_t value) { to[i] = value; }
)";
    text += fmt::format("enum {{ og_tile = {} }};\n", tile) + product_tiles_text(0, 0);
    std::vector<Word> words{a.at, b.at, c};
    add_integers(words, {m, n, k, a.row, a.column, b.row, b.column, 1, 1, 1, 0, 0, 0, 0, 0, 0});
    TextKernel kernel = text_kernel(request_, text, "og_main", std::move(words));
    kernel.block[0] = 256;
    kernel.grid = {static_cast<unsigned>(ceil_div(m, tile)),
                   static_cast<unsigned>(ceil_div(n, tile)), 1};
    launches_.push_back(std::move(kernel));
  }

  // Sums of columns of a, or of a b, to `to` and, unless it is an absent word, `again`.
  void column_sums(Word a, std::int64_t a_row, std::optional<Word> b, std::int64_t columns, Word to,
                   std::optional<Word> again = {}) {
    const Word none = Word::of(std::int64_t{0});
    std::vector<Word> words{a, b.value_or(none), to, again.value_or(none)};
    add_integers(words, {s_.rows(), columns, a_row});
    launches_.push_back(column_kernel(request_,
                                      {.count = columns, .length = s_.rows(), .are_adjacent = true},
                                      type_ + cell_sums_text(), "og_sums", std::move(words)));
  }

  // X with zeros after the end of each sequence.
  Word padded_inputs() {
    if (!has(Operand::kLengths)) return at(Operand::kX);
    if (!padded_) {
      const std::int64_t count = s_.rows() * s_.inputs;
      padded_ = reserve(count);
      sums("og_pad", count, {at(Operand::kX), *padded_, at(Operand::kLengths)},
           {count, s_.inputs, s_.batch});
    }
    return *padded_;
  }

  void add_dx(std::int64_t d, const Word& dgates) {
    if (!has(Operand::kDX)) return;
    const std::int64_t count = s_.rows() * s_.inputs;
    const Word to = d == 0 ? at(Operand::kDX) : reserve(count);
    product({dgates, s_.width(), 1}, {at(Operand::kW, d * s_.width() * s_.inputs), s_.inputs, 1},
            to, s_.rows(), s_.inputs, s_.width());
    if (d > 0) sums("og_add_to", count, {to, at(Operand::kDX)}, {count});
  }

  // GRU: the rows of n have other factors.
  void add_dr(std::int64_t d, const Word& dgates, const Word& before, const Word& dm) {
    if (!has(Operand::kDR)) return;
    const bool is_gru = plan_.attributes.cell == Cell::kGru;
    const bool is_linear = plan_.attributes.linear_before_reset;
    const std::int64_t first = is_gru ? 2 * s_.hidden : s_.width();
    const std::int64_t place = d * s_.width() * s_.hidden;
    product({dgates, 1, s_.width()}, {before, s_.hidden, 1}, at(Operand::kDR, place), first,
            s_.hidden, s_.rows());
    if (!is_gru) return;
    const Matrix dn =
        is_linear ? Matrix{dm, 1, s_.hidden} : Matrix{moved(dgates, 2 * s_.hidden), 1, s_.width()};
    product(dn, {is_linear ? before : dm, s_.hidden, 1},
            at(Operand::kDR, place + first * s_.hidden), s_.hidden, s_.hidden, s_.rows());
  }

  void add_biases(std::int64_t d, const Word& dgates, const Word& dm) {
    if (!has(Operand::kDB)) return;
    const std::int64_t width = s_.width();
    const std::int64_t place = d * 2 * width;
    column_sums(dgates, width, {}, width, at(Operand::kDB, place), at(Operand::kDB, place + width));
    if (!plan_.attributes.linear_before_reset) return;
    column_sums(dm, s_.hidden, {}, s_.hidden, at(Operand::kDB, place + width + 2 * s_.hidden));
  }

  void add_peepholes(std::int64_t d, const Word& dgates) {
    if (!has(Operand::kDP)) return;
    // The cells before each step, then those after it.
    const std::int64_t count = s_.rows() * s_.hidden;
    const std::int64_t states = s_.batch * s_.hidden;
    const bool goes_back = plan_.attributes.goes_back(static_cast<int>(d));
    const Word cells = at(Operand::kKept, d * count);
    const Word before = reserve(count);
    const std::int64_t rest = count - (count == 0 ? 0 : states);
    copy(moved(cells, goes_back ? states : 0), moved(before, goes_back ? 0 : states), rest);
    const Word first = moved(before, goes_back ? rest : 0);
    copy(at(Operand::kInitialC, d * states), first, count - rest);
    for (std::int64_t k = 0; k < 3; ++k) {
      column_sums(moved(dgates, k * s_.hidden), s_.width(), k == 1 ? cells : before, s_.hidden,
                  at(Operand::kDP, (d * 3 + k) * s_.hidden));
    }
  }

  // From an address that may be 0.
  void copy(const Word& from, const Word& to, std::int64_t elements) {
    sums("og_copy", elements, {from, to}, {elements});
  }

  KernelOffer finish(double passes) {
    KernelOffer offer;
    offer.kernel =
        prepared(std::move(launches_), fmt::format("{} steps of {} sequences", s_.steps, s_.batch),
                 passes * flops_of(s_));
    offer.kernel.scratch_bytes = scratch_bytes_;
    return offer;
  }

  const KernelRequest& request_;
  CellPlan plan_;
  CellShape s_;
  DataType dtype_;
  std::int64_t bytes_;
  std::string type_;
  std::int64_t scratch_bytes_ = 0;
  std::optional<Word> padded_ = {};
  std::vector<TextKernel> launches_ = {};
};

std::string plan_of(const KernelRequest& request, const CellSignature& signature, CellPlan& plan) {
  const DataType dtype = request.inputs[0].dtype;
  if (dtype != DataType::kFloat32 && dtype != DataType::kFloat64) return "float32 and float64 only";
  if (std::string reason = plan_cell(request, signature, plan); !reason.empty()) return reason;
  return plan.has_gate_values ? "gates are kept as sums" : "";
}

}  // namespace

KernelOffer offer_cell_cuda(const KernelRequest& request, const CellSignature& signature) {
  CellPlan plan;
  if (std::string reason = plan_of(request, signature, plan); !reason.empty()) {
    return KernelOffer::decline(std::move(reason));
  }
  return Launches(request, std::move(plan)).forward();
}

KernelOffer offer_cell_gradient_cuda(const KernelRequest& request, const CellSignature& signature) {
  CellPlan plan;
  if (std::string reason = plan_of(request, signature, plan); !reason.empty()) {
    return KernelOffer::decline(std::move(reason));
  }
  return Launches(request, std::move(plan)).backward();
}

}  // namespace onnxgrad::ops::recurrent
