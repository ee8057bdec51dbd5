#ifndef ONNXGRAD_DIST_SCHEDULE_H_
#define ONNXGRAD_DIST_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// A collective as data: phases of messages and sums of one rank, made before the first run.
//
// Sums are ordered: the bits of a sum depend on the number of ranks only, neither on the transport,
// nor on the hosts, nor on how the elements are divided. Up to 64 ranks every rank sends each piece
// to its owner, who adds the pieces in the order of ranks and sends the result to all. Above, ranks
// are divided into blocks of about sqrt(n) consecutive ones: in each block a member (the "holder")
// adds the block's pieces for a few owners, and sends those sums to them; an owner adds the sums of
// the blocks in their order. So a rank has 2 sqrt(n) messages instead of n; where ranks are
// numbered host by host, as mpirun does, the blocks lie in few hosts. One block is the case of up
// to 64 ranks.

namespace onnxgrad::dist {

/// Type of the elements that are added, and the form in which they are sent.
enum class Element {
  kFloat32,
  kFloat64,
  kInt64,
  /// float32, rounded to bfloat16 before it is sent; the sum is taken in float32, and rounded
  /// once more by all_reduce.
  kFloat32AsBfloat16,
};

std::int64_t size_bytes(Element element);

/// Divides `count` elements into a piece for each of `size` ranks; pieces differ by at most one
/// unit of `unit` elements, and later ones may be empty. Returns their sizes.
std::vector<std::int64_t> divide(std::int64_t count, int size, std::int64_t unit = 16);

enum class Memory : std::uint8_t { kInput, kOutput, kScratch };

struct Slice {
  Memory memory = Memory::kInput;
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};

struct Message {
  int peer = 0;
  Slice slice;
};

/// target = sum of the sources, added in their order; one source is a copy or a conversion.
struct Sum {
  enum class As : std::uint8_t { kBytes, kFloat32, kFloat64, kInt64, kBfloat16 };
  As from = As::kBytes;
  As to = As::kBytes;
  std::vector<Slice> sources;
  Slice target;
};

struct Phase {
  std::vector<Sum> before;  ///< done when the phase starts
  std::vector<Message> sends;
  std::vector<Message> receives;
  std::vector<Sum> after;  ///< done when all messages have arrived
};

struct Schedule {
  std::string name = {};  ///< "all_reduce"
  std::vector<Phase> phases = {};
  std::int64_t scratch_bytes = 0;
  std::int64_t bytes_sent = 0;
};

/// Ranks of a block for `size` ranks.
int default_block_size(int size);

class ScheduleBuilder {
 public:
  ScheduleBuilder(int rank, int size, int block_size);

  Schedule broadcast(std::int64_t bytes, int root) const;
  Schedule all_gather(const std::vector<std::int64_t>& bytes) const;
  Schedule all_to_all(const std::vector<std::int64_t>& sent,
                      const std::vector<std::int64_t>& received) const;
  Schedule reduce_scatter(const std::vector<std::int64_t>& counts, Element element) const;
  Schedule all_reduce(std::int64_t count, Element element) const;
  Schedule barrier() const;
  Schedule send(std::int64_t bytes, int peer) const;
  Schedule receive(std::int64_t bytes, int peer) const;

 private:
  struct Pieces;
  int block_of(int rank) const { return rank / block_size_; }
  int num_blocks() const { return (size_ + block_size_ - 1) / block_size_; }
  int members(int block) const;
  int holder(int block, int owner) const;
  void add_reduction(Schedule& schedule, const Pieces& pieces, Slice target) const;
  void add_gathering(Schedule& schedule, const Pieces& pieces, Slice mine) const;

  int rank_;
  int size_;
  int block_size_;
};

/// Carries a Sum out; sources and target are addresses of its slices.
void add_in_order(const Sum& sum, const std::vector<const std::byte*>& sources, std::byte* target);

}  // namespace onnxgrad::dist

#endif  // ONNXGRAD_DIST_SCHEDULE_H_
