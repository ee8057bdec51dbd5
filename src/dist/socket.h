#ifndef ONNXGRAD_DIST_SOCKET_H_
#define ONNXGRAD_DIST_SOCKET_H_

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace onnxgrad::dist {

using Deadline = std::chrono::steady_clock::time_point;

/// A TCP socket; closed by its destructor. Throws: DeviceError naming the address and the reason.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Socket();

  /// Listens at one address of this host, or at all of them ("": all); port 0: any free one. A name
  /// or number that is no address of this host, as behind a load balancer, means all of them.
  static Socket listen(const std::string& host, int port);
  /// Connects to "host:port"; repeats attempts until the deadline.
  static Socket connect(const std::string& address, Deadline deadline);

  int descriptor() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }
  int port() const;
  /// Numeric address of this end, without its port.
  std::string own_host() const;
  /// Numeric address of the other end, without its port.
  std::string peer_host() const;
  /// Accepts a waiting connection; nullopt if there is none. Does not block on a socket
  /// of listen().
  std::optional<Socket> accept() const;
  /// Reads bytes that have arrived, without waiting. Returns their number, 0 if there are none yet;
  /// nullopt if no more will come.
  std::optional<std::size_t> read_some(std::span<std::byte> bytes) const;
  /// Read or write all bytes; false if that is not done before the deadline.
  bool read_all(std::span<std::byte> bytes, Deadline deadline) const;
  bool write_all(std::span<const std::byte> bytes, Deadline deadline) const;
  /// Prepares the socket for messages: no delay, non-blocking, closed when the process starts
  /// another program.
  void prepare() const;

 private:
  int descriptor_ = -1;
};

/// True for "localhost" and the numeric addresses that never leave this host.
bool is_loopback(const std::string& host);

/// True if the first address of `host` is a loopback address.
bool resolves_to_loopback(const std::string& host);

/// Splits an address into host and port: "host:7" -> ("host", "7"); "[::1]:7" -> ("::1", "7").
std::pair<std::string, std::string> split_address(const std::string& address);

}  // namespace onnxgrad::dist

#endif  // ONNXGRAD_DIST_SOCKET_H_
