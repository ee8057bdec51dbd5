#include "dist/communicator.h"

#include <fmt/format.h>
#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/check.h"
#include "onnxgrad/error.h"

namespace onnxgrad::dist {
namespace {

class SelfTransport final : public Transport {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return "self"; }
  std::string host() const override { return "localhost"; }
  Request send(int, int, std::span<const std::byte>) override { return nullptr; }
  Request receive(int, int, std::span<std::byte>) override { return nullptr; }
  bool test(Request&) override { return true; }
  void cancel(Request& request) noexcept override { request = nullptr; }
  void abort(int, std::string_view) noexcept override {}
};

void check_tag(int tag) { ONNXGRAD_ASSERT(tag >= 0 && tag < kMessageTags); }

// '1' for each processor that this process may use.
std::string affinity_mask() {
  std::string mask;
#ifdef __linux__
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) mask += CPU_ISSET(cpu, &set) ? '1' : '0';
  }
#endif
  if (mask.empty()) mask.assign(std::thread::hardware_concurrency(), '1');
  return mask;
}

double share_of(int rank, const std::vector<std::string>& hosts,
                const std::vector<std::string>& masks) {
  const auto mine = static_cast<std::size_t>(rank);
  double share = 0;
  for (std::size_t cpu = 0; cpu < masks[mine].size(); ++cpu) {
    int users = 0;
    for (std::size_t other = 0; other < masks.size(); ++other) {
      const bool may_use = cpu < masks[other].size() && masks[other][cpu] == '1';
      if (hosts[other] == hosts[mine] && may_use) ++users;
    }
    if (masks[mine][cpu] == '1') share += 1.0 / users;
  }
  constexpr double kRounding = 1e-6;
  return share + kRounding;
}

Waiting describe(std::int64_t sequence, const std::string& name) {
  Waiting waiting{.sequence = sequence};
  name.copy(waiting.name.data(), waiting.name.size() - 1);
  return waiting;
}

}  // namespace

Communicator::Communicator(std::unique_ptr<Transport> transport, CommunicatorOptions options)
    : transport_(std::move(transport)), options_(options) {
  hosts_.assign(static_cast<std::size_t>(size()), "?");
  hosts_ = all_gather_texts(transport_->host());
  const auto mine = hosts_.begin() + rank();
  local_rank_ = static_cast<int>(std::count(hosts_.begin(), mine, *mine));
  local_size_ = static_cast<int>(std::count(hosts_.begin(), hosts_.end(), *mine));
  local_processors_ = share_of(rank(), hosts_, all_gather_texts(affinity_mask()));
}

Communicator::~Communicator() = default;

std::string Communicator::rank_name(int rank) const {
  return fmt::format("rank {} on host {}", rank, hosts_[static_cast<std::size_t>(rank)]);
}

ScheduleBuilder Communicator::builder() const { return {rank(), size(), options_.block_size}; }

std::unique_ptr<Collective> Communicator::make(Schedule schedule, int fixed_tag) {
  return std::unique_ptr<Collective>(new Collective(*this, std::move(schedule), fixed_tag));
}

std::unique_ptr<Collective> Communicator::broadcast(std::int64_t bytes, int root) {
  return make(builder().broadcast(bytes, root));
}

std::unique_ptr<Collective> Communicator::all_gather(std::vector<std::int64_t> bytes) {
  ONNXGRAD_ASSERT(std::ssize(bytes) == size());
  return make(builder().all_gather(bytes));
}

std::unique_ptr<Collective> Communicator::all_to_all(std::vector<std::int64_t> sent,
                                                     std::vector<std::int64_t> received) {
  ONNXGRAD_ASSERT(std::ssize(sent) == size() && std::ssize(received) == size());
  return make(builder().all_to_all(sent, received));
}

std::unique_ptr<Collective> Communicator::reduce_scatter(std::vector<std::int64_t> counts,
                                                         Element element) {
  ONNXGRAD_ASSERT(std::ssize(counts) == size());
  return make(builder().reduce_scatter(counts, element));
}

std::unique_ptr<Collective> Communicator::all_reduce(std::int64_t count, Element element) {
  return make(builder().all_reduce(count, element));
}

std::unique_ptr<Collective> Communicator::barrier() { return make(builder().barrier()); }

std::unique_ptr<Collective> Communicator::send(std::int64_t bytes, int peer, int tag) {
  check_tag(tag);
  return make(builder().send(bytes, peer), kCollectiveTags + tag);
}

std::unique_ptr<Collective> Communicator::receive(std::int64_t bytes, int peer, int tag) {
  check_tag(tag);
  return make(builder().receive(bytes, peer), kCollectiveTags + tag);
}

void Communicator::broadcast_now(std::span<std::byte> values, int root) {
  broadcast(std::ssize(values), root)->run(values.data(), values.data());
}

void Communicator::all_reduce_now(std::span<double> values) {
  all_reduce(std::ssize(values), Element::kFloat64)->run(values.data(), values.data());
}

void Communicator::all_reduce_now(std::span<std::int64_t> values) {
  all_reduce(std::ssize(values), Element::kInt64)->run(values.data(), values.data());
}

void Communicator::barrier_now() { barrier()->run(nullptr, nullptr); }

std::vector<std::string> Communicator::all_gather_texts(const std::string& mine) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(size()), 0);
  const std::int64_t length = std::ssize(mine);
  const std::vector<std::int64_t> each(lengths.size(), sizeof length);
  all_gather(each)->run(&length, lengths.data());
  std::int64_t total = 0;
  for (const std::int64_t bytes : lengths) total += bytes;
  std::string all(static_cast<std::size_t>(total), '\0');
  all_gather(lengths)->run(mine.data(), all.data());
  std::vector<std::string> texts;
  std::size_t begin = 0;
  for (const std::int64_t bytes : lengths) {
    texts.push_back(all.substr(begin, static_cast<std::size_t>(bytes)));
    begin += static_cast<std::size_t>(bytes);
  }
  return texts;
}

std::string Communicator::broadcast_text(const std::string& text, int root) {
  std::int64_t length = std::ssize(text);
  broadcast_now(std::as_writable_bytes(std::span(&length, 1)), root);
  std::string copy = rank() == root ? text : std::string(static_cast<std::size_t>(length), '\0');
  broadcast_now(std::as_writable_bytes(std::span(copy.data(), copy.size())), root);
  return copy;
}

void Communicator::progress() {
  // A collective that is done leaves the list: backwards, so that none is left out.
  for (std::size_t i = active_.size(); i > 0; --i) active_[i - 1]->advance();
}

void Communicator::check_ranks() {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    try {
      transport_->check_peer(peer);
    } catch (const DeviceError& error) {
      throw DeviceError({.what = fmt::format("{}: {}", rank_name(peer), error.problem().what),
                         .hint = error.problem().hint});
    }
  }
}

void Communicator::abort(int exit_code, std::string_view reason) noexcept {
  broken_ = true;
  transport_->abort(exit_code, reason);
}

void Communicator::answer_roll_call(const Collective& waiting) {
  if (!roll_call_) roll_call_ = std::make_unique<RollCall>(*transport_);
  roll_call_->serve(describe(waiting.sequence_, waiting.schedule_.name));
}

void Communicator::report_missing(const Collective& waiting) {
  const double patience = std::clamp(options_.timeout_s / 4, 0.3, 2.0);
  const Waiting mine = describe(waiting.sequence_, waiting.schedule_.name);
  if (!roll_call_) roll_call_ = std::make_unique<RollCall>(*transport_);
  const std::vector<Waiting> answers = roll_call_->call(mine, patience);
  std::vector<std::string> missing;
  std::string waiting_for;
  for (int rank = 0; rank < size(); ++rank) {
    const Waiting& answer = answers[static_cast<std::size_t>(rank)];
    if (answer.sequence < 0) {
      missing.push_back(rank_name(rank));
    } else if (answer.sequence != mine.sequence || answer.name != mine.name) {
      waiting_for += fmt::format("{}{} waits in {} (number {})", waiting_for.empty() ? "" : ", ",
                                 rank_name(rank), answer.name.data(), answer.sequence);
    }
  }
  if (missing.size() > 8) {
    const std::string others = fmt::format("{} others", missing.size() - 7);
    missing.resize(7);
    missing.push_back(others);
  }
  const std::string what =
      fmt::format("{} of rank {} (number {}) did not end within {} s", waiting.schedule_.name,
                  rank(), mine.sequence, options_.timeout_s);
  if (missing.empty()) {
    throw DeviceError({.what = what + ": the ranks do not do the same",
                       .detail = waiting_for,
                       .hint = "Run the same script with the same options and data on all ranks."});
  }
  throw DeviceError(
      {.what = fmt::format("{}: {} did not arrive", what, fmt::join(missing, ", ")),
       .detail = waiting_for,
       .hint =
           "Look at the output of that rank and at its host: it hangs, has ended, is cut off, or "
           "needs longer for its part (then raise the timeout)."});
}

std::shared_ptr<Communicator> make_self() {
  return std::make_shared<Communicator>(std::make_unique<SelfTransport>());
}

}  // namespace onnxgrad::dist
