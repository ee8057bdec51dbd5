#ifndef ONNXGRAD_DIST_TRANSPORT_H_
#define ONNXGRAD_DIST_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace onnxgrad::dist {

/// A message under way; null means done. The transport owns the object.
using Request = void*;

/// Number of tags of messages, the minimum of every MPI library. Collectives have the first tags,
/// by their number in the sequence, then come messages between two ranks; the last two are for the
/// roll call.
inline constexpr int kNumTags = 32768;
inline constexpr int kCollectiveTags = 16384;
inline constexpr int kMessageTags = 8192;

/// The interface of a back end: messages between two ranks of a job. The collectives
/// (communicator.h) consist of them, so they have the same bits for every back end, and know from
/// which rank no message has come. Messages of one sender, receiver and tag arrive in the order in
/// which they were sent. One thread at a time.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Name in messages and reports: "threads", "Open MPI v4.1.4".
  virtual std::string name() const = 0;
  /// Name of the machine of this rank.
  virtual std::string host() const = 0;

  /// Starts a message of at most kMaxMessage bytes; `bytes` stay valid and unchanged until it is
  /// done. Throws: DeviceError, as all of these.
  virtual Request send(int peer, int tag, std::span<const std::byte> bytes) = 0;
  /// Expects a message of exactly this size; `bytes` stay valid until it is done.
  virtual Request receive(int peer, int tag, std::span<std::byte> bytes) = 0;
  /// Advances messages without blocking; returns whether this one is done, and then sets it to
  /// null.
  virtual bool test(Request& request) = 0;
  /// Sleeps for this time, or less if the system has news: nothing advances meanwhile, and the core
  /// is free for others.
  virtual void idle(double seconds);
  /// Throws: DeviceError, if a message to or from this rank can come no more, as far as the back
  /// end sees that; `peer` is not this rank.
  virtual void check_peer(int /*peer*/) {}
  /// Cancels a message whose bytes are about to be freed; sets it to null. Never throws.
  virtual void cancel(Request& request) noexcept = 0;
  /// Ends the job on all ranks, as far as the back end can: with processes this does not return.
  virtual void abort(int exit_code, std::string_view reason) noexcept = 0;
};

inline constexpr std::int64_t kMaxMessage = std::int64_t{1} << 28;

}  // namespace onnxgrad::dist

#endif  // ONNXGRAD_DIST_TRANSPORT_H_
