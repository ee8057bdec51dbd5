#ifndef ONNXGRAD_OPDEF_COLLECTIVES_H_
#define ONNXGRAD_OPDEF_COLLECTIVES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "onnxgrad/dtype.h"

// Collective operators: functions of domain `onnxgrad` whose body defines them for one worker, and
// the pair of operators that replaces them in the plan of one of several workers, a start and a
// finish.

namespace onnxgrad::opdef {

/// A collective. Each of several workers that share an update owns some of the elements of the x.
///   `AllReduce`      (when?, x...) -> of each x the sum over all workers;
///   `ReduceScatter`  (when?, x...) -> of each x the sum of the elements that this worker owns;
///   `AllGather`      (when?, w..., part...) -> each w with the parts of all owners in place of its
///                    elements. Parts: of each w of which this worker owns some, in order.
/// Part of an x: in its shape if that is all of it, else of rank 1.
struct Collective {
  enum class Kind : std::uint8_t { kAllReduce, kReduceScatter, kAllGather };
  Kind kind = Kind::kAllReduce;
  /// Position among the collectives of a graph, which all workers start in this order.
  std::int64_t number = 0;
  /// The first input, bool of rank 0, decides; false: the results are the x (or parts of them), and
  /// nothing is sent. It has the same value on every worker.
  bool is_conditional = false;
  /// Whether it takes place although only other workers read the results. Graphs of
  /// workers differ in what they update.
  bool is_for_others = false;
  bool as_bfloat16 = false;  ///< float32 is sent as bfloat16; sums are taken in float32
  /// Way of devices that exchange data themselves: sums in an order of their own, or in that of
  /// ranks, as on the host; or they leave it to the host.
  enum class Route : std::uint8_t { kDirect, kOrdered, kHost };
  Route route = Route::kDirect;
  std::int64_t rank = 0;  ///< this worker
  /// Numbers of elements of each x, and bounds of the elements, one x after another, that worker r
  /// owns: [bounds[r], bounds[r + 1]). Empty for AllReduce.
  std::vector<std::int64_t> sizes = {};
  std::vector<std::int64_t> bounds = {};

  std::string_view op_type() const;
  /// The elements of an x that this worker owns.
  struct Range {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t count() const { return end - begin; }
  };
  std::vector<Range> own_ranges() const;
  static Collective read(const ir::Node& node);
  std::vector<ir::Attribute> attributes() const;
};
/// Operator types by Collective::Kind.
inline constexpr std::string_view kCollectives[] = {"AllReduce", "ReduceScatter", "AllGather"};

/// Exchange of a collective in a plan: `StartExchange` (when?, x...) -> uint8 [size], a buffer of
/// values of one type, of which the collective is begun; of AllGather (when?, part..., w... if
/// there is a `when`). `FinishExchange` (when?, buffer) -> the results.
struct Exchange {
  Collective collective = {};
  /// Offsets of the inputs and of the results in the buffer, in bytes; -1: not in it. Increasing
  /// for the x, the parts and the results.
  std::vector<std::int64_t> sent = {};
  std::vector<std::int64_t> received = {};
  /// Number of elements of the buffer that each worker owns, in order; empty for AllReduce.
  std::vector<std::int64_t> owned = {};
  DataType dtype = DataType::kFloat32;

  static Exchange read(const ir::Node& node);
  std::vector<ir::Attribute> attributes() const;
};
inline constexpr std::string_view kStartExchange = "StartExchange";
inline constexpr std::string_view kFinishExchange = "FinishExchange";

/// The interface of these kernels to the other workers. All call the same functions with the same
/// numbers; calls of start() are in the same order. Sums have the same bits on every worker, and
/// for every transport.
class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual int rank() const = 0;

  struct Elements {
    Collective::Kind kind = Collective::Kind::kAllReduce;
    std::byte* data = nullptr;  ///< belongs to the operation until wait() returns
    std::int64_t count = 0;
    DataType dtype = DataType::kFloat32;
    bool as_bfloat16 = false;
    /// Number of elements that each worker owns, in order; empty for AllReduce.
    std::span<const std::int64_t> owned = {};
  };
  /// Begins to replace the elements by the results. `number` is that of the collective, with the
  /// same counts and types each time. Throws: DeviceError.
  virtual void start(std::size_t number, const Elements& elements) = 0;
  /// Waits until the operation is done. Throws: DeviceError (names a missing worker).
  virtual void wait(std::size_t number) = 0;
  /// Advances all started operations, without waiting. Throws: DeviceError.
  virtual void progress() = 0;
};

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_COLLECTIVES_H_
