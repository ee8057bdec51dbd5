#include "dist/tcp.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "dist/host_name.h"
#include "onnxgrad/error.h"

namespace onnxgrad::dist {
namespace {

struct Header {
  std::int32_t tag = 0;
  std::uint32_t bytes = 0;
};
constexpr std::int32_t kStop = -1;  // the tag of the reason why a rank ends the job
constexpr std::uint32_t kMaxReason = 4096;

struct TcpMessage {
  int peer = 0;
  Header header;
  std::byte* data = nullptr;  // only read when it is sent
  std::size_t done = 0;       // bytes, with the header when it is sent
  bool is_done = false;
};

struct Arrived {
  int tag = 0;
  std::vector<std::byte> bytes;
};

struct Peer {
  Socket socket;
  std::deque<TcpMessage*> sends;     // in order; the first is partly sent
  std::deque<TcpMessage*> receives;  // expected
  std::deque<Arrived> arrived;       // before they were expected
  // The message that is arriving: its header, then to where it goes.
  Header header;
  std::size_t header_bytes = 0;
  std::size_t bytes = 0;
  TcpMessage* target = nullptr;
  std::vector<std::byte> unexpected;
  std::string lost;  // reason for which no more data arrives
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(const Job& job, std::vector<Socket> sockets)
      : rank_(job.rank), peers_(sockets.size()) {
    for (std::size_t i = 0; i < sockets.size(); ++i) peers_[i].socket = std::move(sockets[i]);
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  std::string name() const override { return "TCP"; }
  std::string host() const override { return host_name(); }

  Request send(int peer, int tag, std::span<const std::byte> bytes) override {
    TcpMessage* const message = make(peer, tag, bytes.size());
    message->data = const_cast<std::byte*>(bytes.data());
    of(peer).sends.push_back(message);
    write(of(peer));
    return message;
  }

  Request receive(int peer, int tag, std::span<std::byte> bytes) override {
    TcpMessage* const message = make(peer, tag, bytes.size());
    message->data = bytes.data();
    std::deque<Arrived>& arrived = of(peer).arrived;
    for (auto early = arrived.begin(); early != arrived.end(); ++early) {
      if (early->tag != tag) continue;
      fill(*message, early->bytes);
      arrived.erase(early);
      return message;
    }
    of(peer).receives.push_back(message);
    return message;
  }

  bool test(Request& request) override {
    if (request == nullptr) return true;
    auto* const message = static_cast<TcpMessage*>(request);
    Peer& peer = of(message->peer);
    if (!message->is_done) {
      write(peer);
      read(peer);
    }
    if (!message->is_done) {
      if (!peer.lost.empty()) {
        throw DeviceError({.what = peer.lost, .hint = "Look at the output of that rank."});
      }
      return false;
    }
    free_.push_back(message);
    request = nullptr;
    return true;
  }

  // Woken by what this rank waits for; while that takes long, it only sleeps.
  void idle(double seconds) override {
    constexpr double kLong = 1e-3;
    if (seconds >= kLong) return Transport::idle(seconds);
    polled_.clear();
    for (const Peer& peer : peers_) {
      if (!peer.socket.is_open() || !peer.lost.empty()) continue;
      int events = peer.receives.empty() && peer.target == nullptr ? 0 : POLLIN;
      if (!peer.sends.empty()) events |= POLLOUT;
      if (events == 0) continue;
      polled_.push_back(
          {.fd = peer.socket.descriptor(), .events = static_cast<short>(events), .revents = 0});
    }
    poll(polled_.data(), polled_.size(), 1);
  }

  void check_peer(int peer) override {
    Peer& other = of(peer);
    read(other);
    if (other.lost.empty()) return;
    throw DeviceError({.what = other.lost, .hint = "Look at the output of that rank."});
  }

  void cancel(Request& request) noexcept override {
    if (request == nullptr) return;
    auto* const message = static_cast<TcpMessage*>(request);
    Peer& peer = of(message->peer);
    std::erase(peer.receives, message);
    std::erase(peer.sends, message);
    // Half a message cannot be taken back.
    const bool is_partly_sent = message->done > 0 && !message->is_done;
    if (peer.target == message || is_partly_sent) {
      peer.target = nullptr;
      peer.lost = "a message was given up";
      peer.socket = Socket();
    }
    free_.push_back(message);
    request = nullptr;
  }

  void abort(int exit_code, std::string_view reason) noexcept override {
    fmt::print(stderr, "onnxgrad: rank {} on host {} ends the job: {}\n", rank(), host(), reason);
    std::fflush(nullptr);
    reason = reason.substr(0, kMaxReason);
    const Header header{kStop, static_cast<std::uint32_t>(reason.size())};
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    for (Peer& peer : peers_) {
      const bool is_between = peer.sends.empty() || peer.sends.front()->done == 0;
      if (!peer.socket.is_open() || !peer.lost.empty() || !is_between) continue;
      if (peer.socket.write_all(std::as_bytes(std::span(&header, 1)), deadline)) {
        peer.socket.write_all(std::as_bytes(std::span(reason)), deadline);
      }
      shutdown(peer.socket.descriptor(), SHUT_WR);
    }
    std::_Exit(exit_code);
  }

 private:
  Peer& of(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  // From those that are done: in the steady state nothing is allocated.
  TcpMessage* make(int peer, int tag, std::size_t bytes) {
    if (free_.empty()) {
      messages_.push_back(std::make_unique<TcpMessage>());
      free_.reserve(messages_.size());
      free_.push_back(messages_.back().get());
    }
    TcpMessage* const message = free_.back();
    free_.pop_back();
    *message = {.peer = peer, .header = {tag, static_cast<std::uint32_t>(bytes)}};
    return message;
  }

  static void check_size(std::size_t bytes, const TcpMessage& message) {
    if (bytes == message.header.bytes) return;
    throw DeviceError({.what = fmt::format("a message of {} bytes arrived, not of {}", bytes,
                                           message.header.bytes),
                       .hint = "Run the same with the same options on all ranks."});
  }

  static void fill(TcpMessage& message, const std::vector<std::byte>& bytes) {
    check_size(bytes.size(), message);
    if (!bytes.empty()) std::memcpy(message.data, bytes.data(), bytes.size());
    message.is_done = true;
  }

  static void lose(Peer& peer, int error) {
    if (!peer.lost.empty()) return;
    peer.lost = "the connection is lost";
    if (error != 0) peer.lost += ": " + std::generic_category().message(error);
  }

  // Sends as much as the system takes.
  static void write(Peer& peer) {
    while (!peer.sends.empty() && peer.lost.empty()) {
      TcpMessage& message = *peer.sends.front();
      std::array<iovec, 2> parts{};
      std::size_t num_parts = 0;
      const std::size_t from = message.done;
      if (from < sizeof(Header)) {
        auto* const header = reinterpret_cast<std::byte*>(&message.header);
        parts[num_parts++] = {header + from, sizeof(Header) - from};
      }
      const std::size_t sent = from > sizeof(Header) ? from - sizeof(Header) : 0;
      if (sent < message.header.bytes) {
        parts[num_parts++] = {message.data + sent, message.header.bytes - sent};
      }
      msghdr all{};
      all.msg_iov = parts.data();
      all.msg_iovlen = num_parts;
      const ssize_t count = sendmsg(peer.socket.descriptor(), &all, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count < 0) {
        if (errno != EAGAIN && errno != EINTR) lose(peer, errno);
        return;
      }
      message.done += static_cast<std::size_t>(count);
      if (message.done < sizeof(Header) + message.header.bytes) return;
      message.is_done = true;
      peer.sends.pop_front();
    }
  }

  // Takes as much as has arrived.
  void read(Peer& peer) {
    while (peer.lost.empty()) {
      std::span<std::byte> space = arriving(peer);
      if (!space.empty()) {
        const ssize_t count =
            recv(peer.socket.descriptor(), space.data(), space.size(), MSG_DONTWAIT);
        if (count == 0) lose(peer, 0);
        if (count < 0 && errno != EAGAIN && errno != EINTR) lose(peer, errno);
        if (count <= 0) return;
        const bool is_header = peer.header_bytes < sizeof(Header);
        (is_header ? peer.header_bytes : peer.bytes) += static_cast<std::size_t>(count);
        if (is_header && peer.header_bytes == sizeof(Header)) begin(peer);
      }
      if (peer.header_bytes == sizeof(Header) && peer.bytes == peer.header.bytes) end(peer);
    }
  }

  // Memory for the next bytes; empty: the message has none left.
  static std::span<std::byte> arriving(Peer& peer) {
    if (peer.header_bytes < sizeof(Header)) {
      return std::as_writable_bytes(std::span(&peer.header, 1)).subspan(peer.header_bytes);
    }
    std::byte* const data = peer.target != nullptr ? peer.target->data : peer.unexpected.data();
    return std::span(data, peer.header.bytes).subspan(peer.bytes);
  }

  static TcpMessage* take_expected(Peer& peer, int tag) {
    const auto has_tag = [tag](const TcpMessage* message) { return message->header.tag == tag; };
    const auto found = std::find_if(peer.receives.begin(), peer.receives.end(), has_tag);
    if (found == peer.receives.end()) return nullptr;
    TcpMessage* const message = *found;
    peer.receives.erase(found);
    return message;
  }

  static void begin(Peer& peer) {
    const Header& header = peer.header;
    peer.bytes = 0;
    peer.target = nullptr;
    if (header.bytes > kMaxMessage || (header.tag == kStop && header.bytes > kMaxReason)) {
      peer.lost = "what arrives is no message of onnxgrad";
      return;
    }
    peer.target = take_expected(peer, header.tag);
    if (peer.target != nullptr) {
      check_size(header.bytes, *peer.target);
      return;
    }
    peer.unexpected.resize(header.bytes);
  }

  void end(Peer& peer) {
    if (peer.target != nullptr) {
      peer.target->is_done = true;
    } else if (peer.header.tag == kStop) {
      peer.lost = "it stopped the job: " +
                  std::string(reinterpret_cast<const char*>(peer.unexpected.data()),
                              peer.unexpected.size());
    } else if (TcpMessage* const expected = take_expected(peer, peer.header.tag)) {
      fill(*expected, peer.unexpected);  // expected since it began to arrive
    } else {
      peer.arrived.push_back({peer.header.tag, std::move(peer.unexpected)});
    }
    peer.unexpected = {};
    peer.target = nullptr;
    peer.header_bytes = 0;
    peer.bytes = 0;
  }

  int rank_;
  std::vector<Peer> peers_;
  std::vector<std::unique_ptr<TcpMessage>> messages_;
  std::vector<TcpMessage*> free_;
  std::vector<pollfd> polled_;
};

}  // namespace

std::unique_ptr<Transport> connect_tcp(const Job& job, double timeout_s) {
  return std::make_unique<TcpTransport>(job, connect_all(job, timeout_s));
}

}  // namespace onnxgrad::dist
