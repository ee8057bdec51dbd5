#include "dist/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

#include "onnxgrad/error.h"

namespace onnxgrad::dist {
namespace {

std::string system_text(int error) { return std::generic_category().message(error); }

// Waits until the socket can be read or written, in steps short enough to be interrupted.
bool wait_for(int descriptor, short events, Deadline deadline) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() < 0) return false;
    pollfd poll_one{.fd = descriptor, .events = events, .revents = 0};
    const int ready =
        poll(&poll_one, 1, static_cast<int>(std::min<std::int64_t>(left.count() + 1, 1000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { freeaddrinfo(addresses); }
};

// One attempt; nullopt and the reason if there is no connection.
std::optional<Socket> try_connect(const std::string& address, Deadline deadline,
                                  std::string& reason) {
  const auto [host, port] = split_address(address);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  const std::unique_ptr<addrinfo, FreeAddresses> addresses(found);
  if (failed != 0) {
    reason = gai_strerror(failed);
    return std::nullopt;
  }
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Socket socket(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.is_open()) continue;
    int error = 0;
    if (::connect(socket.descriptor(), one->ai_addr, one->ai_addrlen) != 0) error = errno;
    if (error == EINPROGRESS) {
      const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      error = ETIMEDOUT;
      if (wait_for(socket.descriptor(), POLLOUT, std::min(deadline, soon))) {
        socklen_t size = sizeof error;
        getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &size);
      }
    }
    if (error == 0) return socket;
    reason = system_text(error);
  }
  return std::nullopt;
}

// A socket that listens at this address and port; nullopt and the reason if there is none.
std::optional<Socket> try_listen(sockaddr_storage address, socklen_t size, int port, int& error) {
  Socket socket(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto number = htons(static_cast<std::uint16_t>(port));
  const int on = 1;
  const int off = 0;
  if (socket.is_open()) {
    setsockopt(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address.ss_family == AF_INET6) {
      setsockopt(socket.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
      reinterpret_cast<sockaddr_in6*>(&address)->sin6_port = number;
    } else {
      reinterpret_cast<sockaddr_in*>(&address)->sin_port = number;
    }
    if (bind(socket.descriptor(), reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
        ::listen(socket.descriptor(), SOMAXCONN) == 0) {
      return socket;
    }
  }
  error = errno;
  return std::nullopt;
}

std::string numeric_host(const sockaddr_storage& address, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host.data(), host.size(), nullptr,
              0, NI_NUMERICHOST);
  const std::string text = host.data();
  constexpr std::string_view kMapped = "::ffff:";  // IPv4 seen by a socket of IPv6
  return text.starts_with(kMapped) ? text.substr(kMapped.size()) : text;
}

}  // namespace

Socket::~Socket() {
  if (descriptor_ >= 0) close(descriptor_);
}

std::pair<std::string, std::string> split_address(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    throw DeviceError({.what = fmt::format("address '{}' is not host:port", address),
                       .hint = "Give a name or a number of the host of rank 0, and a free port."});
  }
  std::string host = address.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return {host, address.substr(colon + 1)};
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

bool resolves_to_loopback(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  const std::unique_ptr<addrinfo, FreeAddresses> addresses(found);
  if (failed != 0 || found == nullptr) return false;
  sockaddr_storage first{};
  std::memcpy(&first, found->ai_addr, found->ai_addrlen);
  return is_loopback(numeric_host(first, found->ai_addrlen));
}

Socket Socket::listen(const std::string& host, int port) {
  int error = 0;
  if (!host.empty()) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int failed = getaddrinfo(host.c_str(), nullptr, &hints, &found);
    const std::unique_ptr<addrinfo, FreeAddresses> addresses(found);
    for (const addrinfo* one = failed == 0 ? found : nullptr; one != nullptr; one = one->ai_next) {
      sockaddr_storage address{};
      std::memcpy(&address, one->ai_addr, one->ai_addrlen);
      if (auto socket = try_listen(address, one->ai_addrlen, port, error))
        return *std::move(socket);
      if (error == EADDRINUSE) break;
    }
  }
  if (error != EADDRINUSE && !is_loopback(host)) {
    sockaddr_storage any{};
    any.ss_family = AF_INET6;
    if (auto socket = try_listen(any, sizeof(sockaddr_in6), port, error)) return *std::move(socket);
    any.ss_family = AF_INET;
    if (auto socket = try_listen(any, sizeof(sockaddr_in), port, error)) return *std::move(socket);
  }
  throw DeviceError({.what = fmt::format("cannot listen at port {}{}: {}", port,
                                         host.empty() ? "" : " of " + host, system_text(error)),
                     .hint = error == EADDRINUSE
                                 ? "Choose another port (MASTER_PORT): this one is in use."
                                 : "Check MASTER_ADDR and MASTER_PORT."});
}

Socket Socket::connect(const std::string& address, Deadline deadline) {
  std::string reason = "no time left";
  while (std::chrono::steady_clock::now() < deadline) {
    if (auto socket = try_connect(address, deadline, reason)) return std::move(*socket);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  throw DeviceError({.what = fmt::format("cannot connect to {}: {}", address, reason),
                     .hint = "Check that rank 0 runs there, and that no firewall is between."});
}

int Socket::port() const {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  getsockname(descriptor_, reinterpret_cast<sockaddr*>(&own), &size);
  const bool is_ipv6 = own.ss_family == AF_INET6;
  return ntohs(is_ipv6 ? reinterpret_cast<const sockaddr_in6*>(&own)->sin6_port
                       : reinterpret_cast<const sockaddr_in*>(&own)->sin_port);
}

std::string Socket::own_host() const {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  getsockname(descriptor_, reinterpret_cast<sockaddr*>(&own), &size);
  return numeric_host(own, size);
}

std::string Socket::peer_host() const {
  sockaddr_storage other{};
  socklen_t size = sizeof other;
  getpeername(descriptor_, reinterpret_cast<sockaddr*>(&other), &size);
  return numeric_host(other, size);
}

std::optional<Socket> Socket::accept() const {
  Socket socket(accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket.is_open()) return std::nullopt;
  return socket;
}

std::optional<std::size_t> Socket::read_some(std::span<std::byte> bytes) const {
  const ssize_t count = recv(descriptor_, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count > 0) return static_cast<std::size_t>(count);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
  return std::nullopt;
}

bool Socket::read_all(std::span<std::byte> bytes, Deadline deadline) const {
  while (!bytes.empty()) {
    if (!wait_for(descriptor_, POLLIN, deadline)) return false;
    const ssize_t count = recv(descriptor_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count == 0) return false;
    if (count < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (count > 0) bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return true;
}

bool Socket::write_all(std::span<const std::byte> bytes, Deadline deadline) const {
  while (!bytes.empty()) {
    if (!wait_for(descriptor_, POLLOUT, deadline)) return false;
    const ssize_t count =
        ::send(descriptor_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (count > 0) bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return true;
}

void Socket::prepare() const {
  const int on = 1;
  setsockopt(descriptor_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(descriptor_, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  fcntl(descriptor_, F_SETFL, fcntl(descriptor_, F_GETFL) | O_NONBLOCK);
}

}  // namespace onnxgrad::dist
