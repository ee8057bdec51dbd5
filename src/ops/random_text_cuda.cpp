#include "ops/random_text_cuda.h"

#include <bit>
#include <cstddef>

#include "base/philox.h"
#include "opdef/kernel.h"
#include "ops/block_text_cuda.h"
#include "ops/random/draws.h"
#include "ops/random/random_errors.h"

namespace onnxgrad::ops {

using device::cuda::Word;

// The text reads StepCells as 8-byte words: seed, step, first row, rows, rows of the batch.
static_assert(offsetof(opdef::StepCells, step) == 8 &&
              offsetof(opdef::StepCells, first_row) == 16 &&
              offsetof(opdef::StepCells, rows) == 24 &&
              offsetof(opdef::StepCells, batch_rows) == 32);
static_assert(static_cast<int>(base::RandomUse::kOperator) == 4);

std::string random_text() {
  return std::string(fault_text()) + R"(
struct og_random { og_u32 word[4]; };

OG_FUNCTION og_random og_philox(og_random counter, og_u64 key) {
  og_u32 key0 = (og_u32)key, key1 = (og_u32)(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const og_u64 a = 0xD2511F53ull * counter.word[0];
    const og_u64 b = 0xCD9E8D57ull * counter.word[2];
    counter = {{(og_u32)(b >> 32) ^ counter.word[1] ^ key0, (og_u32)b,
                (og_u32)(a >> 32) ^ counter.word[3] ^ key1, (og_u32)a}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// Words: cells, stream, whether there is an own seed, the seed, whether rows are those of a batch,
// stretches, length of a stretch, 0.
template <class W>
OG_FUNCTION og_random og_block(const W& a, int at, og_u64 block) {
  const og_u64* const cells = a.template pointer<og_u64>(at);
  const og_u64 seed = a.integer(at + 2) != 0 ? (og_u64)a.integer(at + 3) : cells == 0 ? 0 : cells[0];
  const og_u64 step = cells == 0 ? 0 : cells[1];
  return og_philox({{(og_u32)block, (og_u32)step, (og_u32)a.integer(at + 1),
                     4u | (og_u32)((block >> 32) << 8)}},
                   seed);
}

template <class W>
OG_FUNCTION og_i64 og_number(const W& a, int at, og_i64 i) {
  const og_i64* const cells = a.template pointer<og_i64>(at);
  if (a.integer(at + 4) == 0 || cells == 0 || cells[4] == 0) return i;
  const og_i64 length = a.integer(at + 6);
  const og_i64 per_row = length / cells[3];
  return (i / length * cells[4] + cells[2]) * per_row + i % length;
}

struct og_drop {
  bool is_on;
  og_u64 threshold;
  double scale;
};

// A ratio that is out of range is refused: nothing is dropped.
template <class W, class R>
OG_FUNCTION og_drop og_drop_of(const W& a, int at, const R* ratio, const og_u8* mode) {
  if (mode == 0 || *mode == 0) return {false, 0, 1};
  const double given = ratio == 0 ? 0.5 : (double)*ratio;
  if (!(given >= 0 && given < 1)) {
    og_refuse(a.template pointer<og_u64>(at + 8), a.integer(at + 9), og_bits<og_i64>(given), 0);
    return {false, 0, 1};
  }
  return {given > 0, (og_u64)(given * 4294967296.0), 1 / (1 - given)};
}

template <class W>
OG_FUNCTION bool og_keeps(const W& a, int at, const og_drop& drop, og_i64 i) {
  if (!drop.is_on) return true;
  const og_i64 number = og_number(a, at, i);
  return og_block(a, at, (og_u64)number / 4).word[number % 4] >= drop.threshold;
}
)";
}

void add_random_words(std::vector<Word>& words, const ir::Node& node, const Dims& dims) {
  const auto stream = RandomStream::of(node);
  const auto rows = RowStretches::of(node, dims);
  words.push_back(Word::cells());
  add_integers(words, {std::int64_t{stream.stream}, stream.own_seed ? 1 : 0,
                       static_cast<std::int64_t>(stream.own_seed.value_or(0)),
                       rows.has_rows ? 1 : 0, rows.stretches, rows.length, 0});
}

Refusal add_dropout_words(std::vector<Word>& words, const opdef::KernelRequest& request,
                          const Dims& dims) {
  add_random_words(words, request.node, dims);
  Refusal ratio =
      refusal(request, [node = request.node.name](std::int64_t bits, std::int64_t /*position*/) {
        throw_dropout_ratio(std::bit_cast<double>(bits), node);
      });
  ratio.append(words);
  return ratio;
}

}  // namespace onnxgrad::ops
