#include "dist/tcp_rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "onnxgrad/error.h"

namespace onnxgrad::dist {
namespace {

using Clock = std::chrono::steady_clock;

// What a rank says first. Jobs run on machines of one byte order: x86-64 and AArch64.
struct Hello {
  std::array<char, 8> magic{'o', 'n', 'n', 'x', 'g', 'r', 'd', '1'};
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t port = 0;  // where it listens
  std::int32_t reserved = 0;
  std::array<char, 64> token{};
};

// Where a rank listens, as rank 0 tells the others. An empty host: that of rank 0 itself.
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

// Connections of `ranks`, by rank. What is not one of them, a port scanner say, is sent away.
std::vector<std::pair<Socket, Hello>> accept_ranks(const Socket& listener, const Job& job,
                                                   std::vector<int> ranks, Deadline deadline) {
  std::vector<std::pair<Socket, Hello>> accepted;
  const Hello own = hello_of(job, 0);
  const auto begin = Clock::now();
  while (!ranks.empty()) {
    std::optional<Socket> socket = listener.accept(deadline);
    if (!socket) {
      const auto waited = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - begin);
      throw DeviceError(
          {.what = fmt::format("{} {} of {} did not connect to rank {} within {} s",
                               ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "),
                               job.size, job.rank, waited.count()),
           .hint = "Look at their output; check that they can reach this host."});
    }
    Hello hello;
    const auto soon = std::min(deadline, Clock::now() + std::chrono::seconds(5));
    if (!socket->read_all(writable_bytes_of(hello), soon)) continue;
    const auto found = std::find(ranks.begin(), ranks.end(), hello.rank);
    if (hello.magic != own.magic || hello.token != own.token || hello.size != own.size ||
        found == ranks.end()) {
      continue;
    }
    ranks.erase(found);
    accepted.emplace_back(std::move(*socket), hello);
  }
  return accepted;
}

std::vector<Socket> connect_as_first(const Job& job, Deadline deadline) {
  int port = 0;
  const std::string text = split_address(job.address).second;
  std::from_chars(text.data(), text.data() + text.size(), port);
  const Socket listener = Socket::listen(port);
  std::vector<int> others;
  for (int rank = 1; rank < job.size; ++rank) others.push_back(rank);
  std::vector<Socket> sockets(static_cast<std::size_t>(job.size));
  std::vector<Listener> listeners(sockets.size());
  for (auto& [socket, hello] : accept_ranks(listener, job, others, deadline)) {
    const auto rank = static_cast<std::size_t>(hello.rank);
    const std::string host = socket.peer_host();
    if (!host.starts_with("127.") && host != "::1") {
      host.copy(listeners[rank].host.data(), listeners[rank].host.size() - 1);
    }
    listeners[rank].port = hello.port;
    sockets[rank] = std::move(socket);
  }
  for (const int rank : others) {
    const Socket& socket = sockets[static_cast<std::size_t>(rank)];
    if (!socket.write_all(std::as_bytes(std::span(listeners)), deadline)) lost(rank);
  }
  return sockets;
}

std::vector<Socket> connect_as_other(const Job& job, Deadline deadline) {
  const Socket listener = Socket::listen(0);
  std::vector<Socket> sockets(static_cast<std::size_t>(job.size));
  const Hello own = hello_of(job, listener.port());
  sockets[0] = Socket::connect(job.address, deadline);
  std::vector<Listener> listeners(sockets.size());
  if (!sockets[0].write_all(bytes_of(own), deadline) ||
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
