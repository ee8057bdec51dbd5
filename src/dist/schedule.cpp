#include "dist/schedule.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/rounding.h"
#include "dist/transport.h"

namespace onnxgrad::dist {
namespace {

constexpr int kMostRanksInOneBlock = 64;

std::int64_t total(const std::vector<std::int64_t>& counts) {
  std::int64_t sum = 0;
  for (const std::int64_t count : counts) sum += count;
  return sum;
}

// Long messages are divided: MPI counts bytes in an int.
void add_message(std::vector<Message>& messages, int peer, Slice slice) {
  for (std::int64_t done = 0; done < slice.bytes; done += kMaxMessage) {
    const std::int64_t bytes = std::min(kMaxMessage, slice.bytes - done);
    messages.push_back({peer, {slice.memory, slice.offset + done, bytes}});
  }
}

Slice scratch(Schedule& schedule, std::int64_t bytes) {
  const Slice slice{Memory::kScratch, schedule.scratch_bytes, bytes};
  schedule.scratch_bytes += base::round_up(bytes, 64);
  return slice;
}

void count_bytes(Schedule& schedule) {
  for (const Phase& phase : schedule.phases) {
    for (const Message& message : phase.sends) schedule.bytes_sent += message.slice.bytes;
  }
}

Sum::As as_sent(Element element) {
  switch (element) {
    case Element::kFloat32:
      return Sum::As::kFloat32;
    case Element::kFloat64:
      return Sum::As::kFloat64;
    case Element::kInt64:
      return Sum::As::kInt64;
    case Element::kFloat32AsBfloat16:
      return Sum::As::kBfloat16;
  }
  return Sum::As::kBytes;
}

Sum::As as_added(Element element) {
  return element == Element::kFloat32AsBfloat16 ? Sum::As::kFloat32 : as_sent(element);
}

std::int64_t sent_bytes(Element element) {
  return element == Element::kFloat32AsBfloat16 ? 2 : size_bytes(element);
}

Sum copy(Slice from, Slice to) { return {Sum::As::kBytes, Sum::As::kBytes, {from}, to}; }

}  // namespace

// A buffer with one piece for each rank.
struct ScheduleBuilder::Pieces {
  Memory memory = Memory::kInput;
  std::int64_t offset = 0;
  std::vector<std::int64_t> begins;  // in bytes, from `offset`; one more than ranks
  Element element = Element::kFloat32;

  Pieces(Memory where, std::int64_t from, const std::vector<std::int64_t>& counts,
         std::int64_t bytes_each, Element kind = Element::kFloat32)
      : memory(where), offset(from), begins{0}, element(kind) {
    for (const std::int64_t count : counts) begins.push_back(begins.back() + count * bytes_each);
  }
  Slice range(int begin, int end) const {
    const std::int64_t first = begins[static_cast<std::size_t>(begin)];
    return {memory, offset + first, begins[static_cast<std::size_t>(end)] - first};
  }
  Slice of(int rank) const { return range(rank, rank + 1); }
  Slice all() const { return {memory, offset, begins.back()}; }
};

std::int64_t size_bytes(Element element) {
  const bool is_float = element == Element::kFloat32 || element == Element::kFloat32AsBfloat16;
  return is_float ? 4 : 8;
}

std::vector<std::int64_t> divide(std::int64_t count, int size, std::int64_t unit) {
  const std::int64_t units = base::ceil_div(count, unit);
  std::vector<std::int64_t> pieces;
  std::int64_t begin = 0;
  for (int rank = 0; rank < size; ++rank) {
    const std::int64_t end = std::min(count, units * (rank + 1) / size * unit);
    pieces.push_back(end - begin);
    begin = end;
  }
  return pieces;
}

int default_block_size(int size) {
  if (size <= kMostRanksInOneBlock) return size;
  int block = 8;
  while (block * block < size) block *= 2;
  return block;
}

ScheduleBuilder::ScheduleBuilder(int rank, int size, int block_size)
    : rank_(rank),
      size_(size),
      block_size_(std::clamp(block_size == 0 ? default_block_size(size) : block_size, 1, size)) {}

int ScheduleBuilder::members(int block) const {
  return std::min(block_size_, size_ - block * block_size_);
}

// The owners of one holder are consecutive, so its pieces are one message.
int ScheduleBuilder::holder(int block, int owner) const {
  const auto local = static_cast<std::int64_t>(owner) * members(block) / size_;
  return block * block_size_ + static_cast<int>(local);
}

Schedule ScheduleBuilder::broadcast(std::int64_t bytes, int root) const {
  // A binomial tree: a rank at distance d from the root receives from d without its lowest bit.
  Schedule schedule{.name = "broadcast"};
  const int distance = (rank_ - root + size_) % size_;
  const int lowest = distance == 0 ? size_ : distance & -distance;
  Phase receive;
  if (distance == 0) {
    receive.before.push_back(copy({Memory::kInput, 0, bytes}, {Memory::kOutput, 0, bytes}));
  } else {
    const int parent = (distance - lowest + root) % size_;
    add_message(receive.receives, parent, {Memory::kOutput, 0, bytes});
  }
  Phase send;
  int step = 1;
  while (step < lowest && distance + step < size_) step *= 2;
  for (; step >= 1; step /= 2) {
    if (step >= lowest || distance + step >= size_) continue;
    add_message(send.sends, (distance + step + root) % size_, {Memory::kOutput, 0, bytes});
  }
  schedule.phases = {std::move(receive), std::move(send)};
  count_bytes(schedule);
  return schedule;
}

Schedule ScheduleBuilder::all_gather(const std::vector<std::int64_t>& bytes) const {
  Schedule schedule{.name = "all_gather"};
  const auto mine = static_cast<std::size_t>(rank_);
  const Pieces pieces(Memory::kOutput, 0, bytes, 1);
  add_gathering(schedule, pieces, {Memory::kInput, 0, bytes[mine]});
  count_bytes(schedule);
  return schedule;
}

Schedule ScheduleBuilder::all_to_all(const std::vector<std::int64_t>& sent,
                                     const std::vector<std::int64_t>& received) const {
  Schedule schedule{.name = "all_to_all"};
  const Pieces from(Memory::kInput, 0, sent, 1);
  const Pieces to(Memory::kOutput, 0, received, 1);
  ONNXGRAD_ASSERT(from.of(rank_).bytes == to.of(rank_).bytes);
  Phase phase;
  phase.before.push_back(copy(from.of(rank_), to.of(rank_)));
  for (int step = 1; step < size_; ++step) {  // every rank starts with another one
    add_message(phase.sends, (rank_ + step) % size_, from.of((rank_ + step) % size_));
    const int peer = (rank_ - step + size_) % size_;
    add_message(phase.receives, peer, to.of(peer));
  }
  schedule.phases = {std::move(phase)};
  count_bytes(schedule);
  return schedule;
}

// The sum of `pieces` of all ranks, of the owner rank_, into `target`.
void ScheduleBuilder::add_reduction(Schedule& schedule, const Pieces& pieces, Slice target) const {
  const int block = block_of(rank_);
  const int first = block * block_size_;
  const int last = first + members(block);
  const auto owners = [&](int member) {
    int begin = 0;
    while (begin < size_ && holder(block, begin) < member) ++begin;
    int end = begin;
    while (end < size_ && holder(block, end) == member) ++end;
    return std::pair(begin, end);
  };
  const auto [my_begin, my_end] = owners(rank_);
  const Slice held = pieces.range(my_begin, my_end);
  const bool one_block = num_blocks() == 1;
  const Sum::As sent = as_sent(pieces.element);
  const Sum::As added = as_added(pieces.element);
  const bool to_rounded = target.bytes == pieces.of(rank_).bytes;

  Phase within;
  Sum block_sum{sent, added, {}, target};
  if (one_block && to_rounded) block_sum.to = sent;
  for (int member = first; member < last; ++member) {
    if (member == rank_) {
      block_sum.sources.push_back(held);
      continue;
    }
    block_sum.sources.push_back(scratch(schedule, held.bytes));
    add_message(within.receives, member, block_sum.sources.back());
  }
  for (int step = 1; step < last - first; ++step) {
    const int member = first + (rank_ - first + step) % (last - first);
    const auto [begin, end] = owners(member);
    add_message(within.sends, member, pieces.range(begin, end));
  }
  if (one_block) {
    within.after.push_back(std::move(block_sum));
    schedule.phases.push_back(std::move(within));
    return;
  }

  const std::int64_t widening = size_bytes(pieces.element) / sent_bytes(pieces.element);
  block_sum.target = scratch(schedule, held.bytes * widening);
  const auto partial = [&](int owner) {
    const Slice piece = pieces.of(owner);
    return Slice{Memory::kScratch,
                 block_sum.target.offset + (piece.offset - held.offset) * widening,
                 piece.bytes * widening};
  };
  Phase across;
  for (int owner = my_begin; owner < my_end; ++owner) {
    if (owner != rank_) add_message(across.sends, owner, partial(owner));
  }
  Sum sum{added, to_rounded ? sent : added, {}, target};
  for (int other = 0; other < num_blocks(); ++other) {
    const int from = holder(other, rank_);
    if (from == rank_) {
      sum.sources.push_back(partial(rank_));
      continue;
    }
    sum.sources.push_back(scratch(schedule, pieces.of(rank_).bytes * widening));
    add_message(across.receives, from, sum.sources.back());
  }
  across.after.push_back(std::move(sum));
  within.after.push_back(std::move(block_sum));
  schedule.phases.push_back(std::move(within));
  schedule.phases.push_back(std::move(across));
}

// `mine` of every rank to all `pieces`: the way of add_reduction backwards.
void ScheduleBuilder::add_gathering(Schedule& schedule, const Pieces& pieces, Slice mine) const {
  const int block = block_of(rank_);
  const int first = block * block_size_;
  const int last = first + members(block);
  Phase across;
  across.before.push_back(copy(mine, pieces.of(rank_)));
  for (int other = 0; other < num_blocks(); ++other) {
    const int to = holder(other, rank_);
    if (to != rank_) add_message(across.sends, to, pieces.of(rank_));
  }
  std::vector<int> begins(static_cast<std::size_t>(last - first) + 1, size_);
  for (int owner = size_ - 1; owner >= 0; --owner) {
    const int member = holder(block, owner);
    begins[static_cast<std::size_t>(member - first)] = owner;
    if (member == rank_ && owner != rank_) add_message(across.receives, owner, pieces.of(owner));
  }
  const auto held = [&](int member) {
    const auto i = static_cast<std::size_t>(member - first);
    return pieces.range(begins[i], begins[i + 1]);
  };
  Phase within;
  for (int step = 1; step < last - first; ++step) {
    const int to = first + (rank_ - first + step) % (last - first);
    const int from = first + (rank_ - first - step + (last - first)) % (last - first);
    add_message(within.sends, to, held(rank_));
    add_message(within.receives, from, held(from));
  }
  schedule.phases.push_back(std::move(across));
  schedule.phases.push_back(std::move(within));
}

Schedule ScheduleBuilder::reduce_scatter(const std::vector<std::int64_t>& counts,
                                         Element element) const {
  Schedule schedule{.name = "reduce_scatter"};
  if (size_ == 1 && element == Element::kFloat32AsBfloat16) element = Element::kFloat32;
  const Pieces input(Memory::kInput, 0, counts, size_bytes(element), element);
  const Slice target{Memory::kOutput, 0, input.of(rank_).bytes};
  if (element != Element::kFloat32AsBfloat16) {
    add_reduction(schedule, input, target);
  } else {
    const Slice area = scratch(schedule, total(counts) * 2);
    const Pieces sent(Memory::kScratch, area.offset, counts, 2, element);
    add_reduction(schedule, sent, target);
    schedule.phases.front().before.push_back(
        {Sum::As::kFloat32, Sum::As::kBfloat16, {input.all()}, area});
  }
  count_bytes(schedule);
  return schedule;
}

Schedule ScheduleBuilder::all_reduce(std::int64_t count, Element element) const {
  Schedule schedule{.name = "all_reduce"};
  if (size_ == 1 && element == Element::kFloat32AsBfloat16) element = Element::kFloat32;
  const std::vector<std::int64_t> counts = divide(count, size_);
  const Pieces input(Memory::kInput, 0, counts, size_bytes(element), element);
  const Pieces output(Memory::kOutput, 0, counts, size_bytes(element), element);
  if (element != Element::kFloat32AsBfloat16) {
    add_reduction(schedule, input, output.of(rank_));
    add_gathering(schedule, output, output.of(rank_));
  } else {
    const Slice area = scratch(schedule, count * 2);
    const Pieces sent(Memory::kScratch, area.offset, counts, 2, element);
    add_reduction(schedule, sent, sent.of(rank_));
    add_gathering(schedule, sent, sent.of(rank_));
    schedule.phases.front().before.push_back(
        {Sum::As::kFloat32, Sum::As::kBfloat16, {input.all()}, area});
    schedule.phases.back().after.push_back(
        {Sum::As::kBfloat16, Sum::As::kFloat32, {area}, output.all()});
  }
  count_bytes(schedule);
  return schedule;
}

Schedule ScheduleBuilder::barrier() const {
  // After the phase of step s every rank knows of the 2s ranks before it.
  Schedule schedule{.name = "barrier"};
  const Slice sent = scratch(schedule, 1);
  const Slice received = scratch(schedule, 1);
  for (int step = 1; step < size_; step *= 2) {
    Phase phase;
    phase.sends.push_back({(rank_ + step) % size_, sent});
    phase.receives.push_back({(rank_ - step + size_) % size_, received});
    schedule.phases.push_back(std::move(phase));
  }
  count_bytes(schedule);
  return schedule;
}

Schedule ScheduleBuilder::send(std::int64_t bytes, int peer) const {
  Schedule schedule{.name = "send"};
  schedule.phases.emplace_back();
  add_message(schedule.phases[0].sends, peer, {Memory::kInput, 0, bytes});
  count_bytes(schedule);
  return schedule;
}

Schedule ScheduleBuilder::receive(std::int64_t bytes, int peer) const {
  Schedule schedule{.name = "receive"};
  schedule.phases.emplace_back();
  add_message(schedule.phases[0].receives, peer, {Memory::kOutput, 0, bytes});
  return schedule;
}

}  // namespace onnxgrad::dist
