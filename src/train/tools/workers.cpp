#include "train/tools/workers.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/check.h"

namespace onnxgrad::train {
namespace {

// Measured over shared memory: above, the time for a byte grows with the size.
constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;

dist::Element element_of(const opdef::Collectives::Elements& elements) {
  if (elements.dtype == DataType::kFloat64) return dist::Element::kFloat64;
  ONNXGRAD_ASSERT(elements.dtype == DataType::kFloat32);
  return elements.as_bfloat16 ? dist::Element::kFloat32AsBfloat16 : dist::Element::kFloat32;
}

std::int64_t element_bytes_of(DataType dtype) { return dtype == DataType::kFloat64 ? 8 : 4; }

}  // namespace

void Workers::prepare(Prepared& prepared, const Elements& elements) const {
  ONNXGRAD_ASSERT(prepared.pieces.empty());  // a number has one size in all plans
  prepared.count = elements.count;
  const std::int64_t size = element_bytes_of(elements.dtype);
  if (elements.kind == opdef::Collective::Kind::kAllReduce) {
    const std::int64_t most = kPieceBytes / size;
    for (std::int64_t begin = 0; begin < elements.count; begin += most) {
      prepared.pieces.push_back({.collective = communicator_->all_reduce(
                                     std::min(most, elements.count - begin), element_of(elements)),
                                 .input = begin * size,
                                 .output = begin * size});
    }
    return;
  }
  std::vector<std::int64_t> counts(elements.owned.begin(), elements.owned.end());
  const std::int64_t own =
      std::accumulate(counts.begin(), counts.begin() + rank(), std::int64_t{0}) * size;
  if (elements.kind == opdef::Collective::Kind::kReduceScatter) {
    prepared.pieces.push_back(
        {.collective = communicator_->reduce_scatter(counts, element_of(elements)),
         .input = 0,
         .output = own});
    return;
  }
  for (std::int64_t& count : counts) count *= size;
  prepared.pieces.push_back(
      {.collective = communicator_->all_gather(counts), .input = own, .output = 0});
}

void Workers::start(std::size_t number, const Elements& elements) {
  if (number >= prepared_.size()) prepared_.resize(number + 1);
  Prepared& prepared = prepared_[number];
  if (prepared.count != elements.count) prepare(prepared, elements);
  for (const Piece& piece : prepared.pieces) {
    piece.collective->start(elements.data + piece.input, elements.data + piece.output);
  }
}

void Workers::wait(std::size_t number) {
  for (const Piece& piece : prepared_.at(number).pieces) piece.collective->wait();
}

std::vector<std::vector<std::byte>> Workers::gather(std::span<const std::byte> mine) const {
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(size()), 0);
  bytes[static_cast<std::size_t>(rank())] = static_cast<std::int64_t>(mine.size());
  communicator_->all_reduce_now(std::span(bytes));
  std::int64_t total = 0;
  for (const std::int64_t one : bytes) total += one;
  std::vector<std::byte> all(static_cast<std::size_t>(total));
  communicator_->all_gather(bytes)->run(mine.data(), all.data());
  std::vector<std::vector<std::byte>> result;
  auto next = all.begin();
  for (const std::int64_t one : bytes) {
    result.emplace_back(next, next + one);
    next += one;
  }
  return result;
}

std::int64_t Workers::bytes_sent() const {
  std::int64_t total = 0;
  for (const Prepared& one : prepared_) {
    for (const Piece& piece : one.pieces) total += piece.collective->bytes_sent();
  }
  return total;
}

double Workers::seconds_waited() const {
  double total = 0;
  for (const Prepared& one : prepared_) {
    for (const Piece& piece : one.pieces) total += piece.collective->seconds_waited();
  }
  return total;
}

}  // namespace onnxgrad::train
