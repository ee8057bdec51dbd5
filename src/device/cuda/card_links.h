#ifndef ONNXGRAD_DEVICE_CUDA_CARD_LINKS_H_
#define ONNXGRAD_DEVICE_CUDA_CARD_LINKS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "device/cuda/context.h"
#include "device/cuda/nccl_api.h"
#include "device/linked_device.h"
#include "onnxgrad/dtype.h"

// Cards of several processes, connected by NCCL. An exchange is
//
//   links->begin(stream);            // after the work of `stream` so far, on the stream of links
//   links->add_up(...); ...          // operations, which all ranks submit in the same order
//   links->end(number);
//   ...                              // other work
//   links->join(number, stream);     // the later work of `stream` reads the results
//
// outside of captures. NCCL's calls return before they are done, and a rank that is lost
// leaves kernels of the others running for ever: whoever waits for the card on the host does it by
// wait(), which looks after the other ranks meanwhile and makes NCCL give up when one is lost.

namespace onnxgrad::device::cuda {

class CardLinks {
 public:
  /// Connects; nothing if the card is connected already. All ranks call this. Throws: see
  /// LinkedDevice::link().
  static void connect(const std::shared_ptr<Context>& context, std::shared_ptr<JobRanks> ranks);
  /// Returns the links of a card; nullptr: there are none. Thread-safe.
  static std::shared_ptr<CardLinks> of(const Context& context);
  ~CardLinks();
  CardLinks(const CardLinks&) = delete;
  CardLinks& operator=(const CardLinks&) = delete;

  int rank() const { return ranks_->rank(); }
  int size() const { return ranks_->size(); }
  /// "NCCL 2.28.9".
  const std::string& library() const { return library_; }
  /// The stream of all operations.
  Handle stream() const { return stream_.get(); }

  // Each of these throws DeviceError: an error of NCCL, or a rank that is lost.

  void begin(Handle stream);
  void end(std::size_t number);
  /// In place of both: the exchange does not take place this time.
  void skip(std::size_t number);
  /// Does nothing after skip().
  void join(std::size_t number, Handle stream);

  /// Elements in the memory of the card, of which rank r owns counts[r], in order.
  struct Pieces {
    std::byte* data = nullptr;
    std::span<const std::int64_t> counts = {};
    std::int64_t element_bytes = 4;
  };
  /// data = sum over all ranks, of float32 or float64, in place.
  void add_up(std::byte* data, std::int64_t count, DataType dtype);
  /// Own piece = sum over all ranks; the others have unspecified values then.
  void add_up_for_owners(const Pieces& pieces, DataType dtype);
  /// Pieces = those of their owners.
  void gather(const Pieces& pieces);
  /// Sends each rank its piece; received: [size - 1, own count], own pieces of the others in order
  /// of ranks.
  void send_to_owners(const Pieces& pieces, std::byte* received);

  /// Waits on the host until an event is reached, or until `stream` has done its work.
  void wait_for(Handle event);
  void wait(Handle stream);

 private:
  CardLinks(std::shared_ptr<Context> context, std::shared_ptr<JobRanks> ranks);
  void open(const NcclUniqueId& id);
  void close();
  void check_usable() const;
  void check_others(double waited_s);
  /// Waits until a call that returned `result` has been done.
  void settle(int result, const char* call);
  [[noreturn]] void fail(std::string what, std::string detail, std::string hint);
  std::string last_error(int result) const;

  std::shared_ptr<Context> context_;
  std::shared_ptr<JobRanks> ranks_;
  std::thread::id thread_ = std::this_thread::get_id();  ///< which all ranks' work comes from
  std::string library_;
  Handle comm_ = nullptr;
  Owned stream_;
  Owned begun_;  ///< an event
  struct End {
    Owned event;
    bool is_skipped = false;
  };
  End& end_of(std::size_t number);
  std::vector<End> ends_;  ///< by number
  std::string problem_;    ///< why it cannot be used any more; empty: it can
  double lost_since_s_ = -1;
};

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_CARD_LINKS_H_
