#include "dist/tcp.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <list>
#include <optional>
#include <string>
#include <utility>

#include "onnxgrad/error.h"

namespace onnxgrad::dist {
namespace {

using Clock = std::chrono::steady_clock;

// The first message of a rank to another one. Jobs run on machines of one byte order: x86-64 and
// AArch64.
struct Hello {
  std::array<char, 8> magic{'o', 'n', 'n', 'x', 'g', 'r', 'd', '1'};
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t port = 0;  // port that the rank listens on
  std::int32_t reserved = 0;
  std::array<char, 64> token{};
};

// The address of a rank, as rank 0 sends it to the others. An empty host: that of rank 0 itself.
struct Listener {
  std::array<char, 64> host{};
  std::int64_t port = 0;
};

Hello hello_of(const Job& job, int port) {
  Hello hello{.rank = job.rank, .size = job.size, .port = port};
  job.token.copy(hello.token.data(), hello.token.size());
  return hello;
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

template <class T>
std::span<std::byte> writable_bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

[[noreturn]] void lost(int rank) {
  throw DeviceError({.what = fmt::format("the connection to rank {} broke at the start", rank),
                     .hint = "Look at the output of that rank."});
}

// True if `other` is of the same job. The time does not depend on where tokens differ.
bool is_of_job(const Hello& other, const Hello& own) {
  unsigned difference = 0;
  for (std::size_t i = 0; i < own.token.size(); ++i) {
    difference |= static_cast<unsigned char>(other.token[i] ^ own.token[i]);
  }
  return difference == 0 && other.magic == own.magic && other.size == own.size;
}

// Receives the hellos of all who connect, at the same time: whoever is silent holds nobody up, and
// is dropped when very many are (a job has fewer ranks that connect at once).
class Reception {
 public:
  Reception(const Socket& listener, const Job& job) : listener_(listener), own_(hello_of(job, 0)) {}

  // The next connection whose hello is complete and of this job; nullopt at the deadline.
  std::optional<std::pair<Socket, Hello>> next(Deadline deadline) {
    while (true) {
      const auto now = Clock::now();
      if (now >= deadline) return std::nullopt;
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - now);
      wait(static_cast<int>(std::min<std::int64_t>(left.count() + 1, 1000)));
      while (auto socket = listener_.accept()) guests_.push_back({.socket = *std::move(socket)});
      while (guests_.size() > kMaxGuests) guests_.pop_front();
      for (auto guest = guests_.begin(); guest != guests_.end();) {
        const auto bytes = writable_bytes_of(guest->hello).subspan(guest->received);
        const std::optional<std::size_t> count = guest->socket.read_some(bytes);
        if (count) guest->received += *count;
        const bool is_complete = guest->received == sizeof(Hello);
        if (is_complete && is_of_job(guest->hello, own_)) {
          std::pair<Socket, Hello> rank(std::move(guest->socket), guest->hello);
          guests_.erase(guest);
          return rank;
        }
        guest = !count || is_complete ? guests_.erase(guest) : std::next(guest);
      }
    }
  }

 private:
  static constexpr std::size_t kMaxGuests = 4096;

  struct Guest {
    Socket socket;
    Hello hello = {};
    std::size_t received = 0;  // bytes of `hello`
  };

  void wait(int milliseconds) {
    polled_.assign(1, {.fd = listener_.descriptor(), .events = POLLIN, .revents = 0});
    for (const Guest& guest : guests_) {
      polled_.push_back({.fd = guest.socket.descriptor(), .events = POLLIN, .revents = 0});
    }
    poll(polled_.data(), polled_.size(), milliseconds);
  }

  const Socket& listener_;
  Hello own_;
  std::list<Guest> guests_;  // oldest first
  std::vector<pollfd> polled_;
};

// Connections of `ranks`, by rank. Whoever is none of them, a port scanner say, is sent away.
std::vector<std::pair<Socket, Hello>> accept_ranks(const Socket& listener, const Job& job,
                                                   std::vector<int> ranks, Deadline deadline) {
  std::vector<std::pair<Socket, Hello>> accepted;
  Reception reception(listener, job);
  const auto begin = Clock::now();
  while (!ranks.empty()) {
    std::optional<std::pair<Socket, Hello>> rank = reception.next(deadline);
    if (!rank) {
      const auto waited = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - begin);
      throw DeviceError(
          {.what = fmt::format("{} {} of {} did not connect to rank {} within {} s",
                               ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "),
                               job.size, job.rank, waited.count()),
           .hint = "Look at their output; check that they can reach this host."});
    }
    const auto found = std::find(ranks.begin(), ranks.end(), rank->second.rank);
    if (found == ranks.end()) continue;
    ranks.erase(found);
    accepted.push_back(*std::move(rank));
  }
  return accepted;
}

// The address that a rank listens at; "": all. `own` is the address by which the others reach this
// rank: the name of rank 0's host, or this end of the connection to it. Where the job has ranks on
// other hosts and /etc/hosts maps the name of this one to loopback, only listening everywhere lets
// them in.
std::string listening_host(const Job& job, const std::string& own) {
  const std::string first = split_address(job.address).first;
  if (is_loopback(first) || job.local_size == job.size) return first;
  return resolves_to_loopback(own) ? "" : own;
}

std::vector<Socket> connect_as_first(const Job& job, Deadline deadline) {
  int port = 0;
  const std::string text = split_address(job.address).second;
  std::from_chars(text.data(), text.data() + text.size(), port);
  const Socket listener =
      Socket::listen(listening_host(job, split_address(job.address).first), port);
  std::vector<int> others;
  for (int rank = 1; rank < job.size; ++rank) others.push_back(rank);
  std::vector<Socket> sockets(static_cast<std::size_t>(job.size));
  std::vector<Listener> listeners(sockets.size());
  for (auto& [socket, hello] : accept_ranks(listener, job, others, deadline)) {
    const auto rank = static_cast<std::size_t>(hello.rank);
    const std::string host = socket.peer_host();
    if (!is_loopback(host)) {
      host.copy(listeners[rank].host.data(), listeners[rank].host.size() - 1);
    }
    listeners[rank].port = hello.port;
    sockets[rank] = std::move(socket);
  }
  const Hello own = hello_of(job, port);
  for (const int rank : others) {
    const Socket& socket = sockets[static_cast<std::size_t>(rank)];
    if (!socket.write_all(bytes_of(own), deadline) ||
        !socket.write_all(std::as_bytes(std::span(listeners)), deadline))
      lost(rank);
  }
  return sockets;
}

std::vector<Socket> connect_as_other(const Job& job, Deadline deadline) {
  std::vector<Socket> sockets(static_cast<std::size_t>(job.size));
  sockets[0] = Socket::connect(job.address, deadline);
  const Socket listener = Socket::listen(listening_host(job, sockets[0].own_host()), 0);
  const Hello own = hello_of(job, listener.port());
  Hello first;
  std::vector<Listener> listeners(sockets.size());
  if (!sockets[0].write_all(bytes_of(own), deadline) ||
      !sockets[0].read_all(writable_bytes_of(first), deadline) || !is_of_job(first, own) ||
      !sockets[0].read_all(std::as_writable_bytes(std::span(listeners)), deadline)) {
    lost(0);
  }
  const std::string first_host = split_address(job.address).first;
  for (int rank = 1; rank < job.rank; ++rank) {
    const auto k = static_cast<std::size_t>(rank);
    const std::string host = listeners[k].host[0] != '\0' ? listeners[k].host.data() : first_host;
    sockets[k] = Socket::connect(fmt::format("[{}]:{}", host, listeners[k].port), deadline);
    if (!sockets[k].write_all(bytes_of(own), deadline)) lost(rank);
  }
  std::vector<int> later;
  for (int rank = job.rank + 1; rank < job.size; ++rank) later.push_back(rank);
  for (auto& [socket, hello] : accept_ranks(listener, job, later, deadline)) {
    sockets[static_cast<std::size_t>(hello.rank)] = std::move(socket);
  }
  return sockets;
}

}  // namespace

std::vector<Socket> connect_all(const Job& job, double timeout_s) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(timeout_s));
  std::vector<Socket> sockets =
      job.rank == 0 ? connect_as_first(job, deadline) : connect_as_other(job, deadline);
  for (const Socket& socket : sockets) {
    if (socket.is_open()) socket.prepare();
  }
  return sockets;
}

}  // namespace onnxgrad::dist
