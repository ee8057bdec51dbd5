#include "dist/testing/threads.h"

#include <fmt/format.h>

#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "onnxgrad/error.h"

namespace onnxgrad::dist {

struct ThreadGroup::Shared {
  using Key = std::tuple<int, int, int>;  // from, to, tag
  std::mutex mutex;
  std::map<Key, std::deque<std::vector<std::byte>>> messages;
  std::vector<std::string> hosts;
  std::vector<bool> is_silent;
  std::vector<bool> is_gone;
  std::string stopped;  // reason for which the job was stopped; empty: it was not
  std::exception_ptr error;
};

class ThreadGroup::ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<Shared> shared, int rank)
      : shared_(std::move(shared)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(shared_->hosts.size()); }
  std::string name() const override { return "threads"; }
  std::string host() const override { return shared_->hosts[static_cast<std::size_t>(rank_)]; }

  Request send(int peer, int tag, std::span<const std::byte> bytes) override {
    const std::scoped_lock lock(shared_->mutex);
    check(peer);
    if (!shared_->is_silent[static_cast<std::size_t>(rank_)]) {
      shared_->messages[{rank_, peer, tag}].emplace_back(bytes.begin(), bytes.end());
    }
    return nullptr;
  }

  Request receive(int peer, int tag, std::span<std::byte> bytes) override {
    return new Expected{peer, tag, bytes};
  }

  bool test(Request& request) override {
    if (request == nullptr) return true;
    const auto& expected = *static_cast<Expected*>(request);
    const std::scoped_lock lock(shared_->mutex);
    const auto found = shared_->messages.find({expected.peer, rank_, expected.tag});
    if (found == shared_->messages.end()) {
      check(expected.peer);
      return false;
    }
    const std::vector<std::byte> message = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) shared_->messages.erase(found);
    if (message.size() != expected.bytes.size()) {
      throw DeviceError({.what = fmt::format("a message of {} bytes arrived, not of {}",
                                             message.size(), expected.bytes.size()),
                         .hint = "Run the same with the same options on all ranks."});
    }
    if (!message.empty()) {
      std::memcpy(expected.bytes.data(), message.data(), message.size());
    }
    cancel(request);
    return true;
  }

  void cancel(Request& request) noexcept override {
    delete static_cast<Expected*>(request);
    request = nullptr;
  }

  void abort(int /*exit_code*/, std::string_view reason) noexcept override {
    const std::scoped_lock lock(shared_->mutex);
    if (!shared_->stopped.empty()) return;
    shared_->stopped = fmt::format("rank {} on host {} stopped the job: {}", rank_, host(), reason);
  }

 private:
  struct Expected {
    int peer = 0;
    int tag = 0;
    std::span<std::byte> bytes;
  };

  void check(int peer) const {
    if (!shared_->stopped.empty()) {
      throw DeviceError({.what = shared_->stopped, .hint = "Look at the error of that rank."});
    }
    const auto is_gone = [this](int rank) {
      return shared_->is_gone[static_cast<std::size_t>(rank)];
    };
    if (is_gone(peer) || is_gone(rank_)) {
      throw DeviceError({.what = "the connection is lost",
                         .hint = "Look at the output of that rank: its process may have ended."});
    }
  }

  std::shared_ptr<Shared> shared_;
  int rank_;
};

ThreadGroup::ThreadGroup(int size, std::vector<std::string> hosts)
    : shared_(std::make_shared<Shared>()) {
  if (hosts.empty()) hosts.assign(static_cast<std::size_t>(size), "localhost");
  shared_->hosts = std::move(hosts);
  shared_->is_silent.assign(shared_->hosts.size(), false);
  shared_->is_gone = shared_->is_silent;
}

ThreadGroup::~ThreadGroup() = default;

int ThreadGroup::size() const { return static_cast<int>(shared_->hosts.size()); }

std::unique_ptr<Transport> ThreadGroup::transport(int rank) {
  return std::make_unique<ThreadTransport>(shared_, rank);
}

void ThreadGroup::run(const std::function<void(Communicator&)>& worker,
                      CommunicatorOptions options) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Communicator workers(transport(rank), options);
        worker(workers);
      } catch (const std::exception& error) {
        {
          const std::scoped_lock lock(shared_->mutex);
          if (shared_->error == nullptr) shared_->error = std::current_exception();
        }
        transport(rank)->abort(1, error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (shared_->error) std::rethrow_exception(std::exchange(shared_->error, nullptr));
}

void ThreadGroup::silence(int rank) {
  const std::scoped_lock lock(shared_->mutex);
  shared_->is_silent[static_cast<std::size_t>(rank)] = true;
}

void ThreadGroup::disconnect(int rank) {
  const std::scoped_lock lock(shared_->mutex);
  shared_->is_gone[static_cast<std::size_t>(rank)] = true;
}

}  // namespace onnxgrad::dist
