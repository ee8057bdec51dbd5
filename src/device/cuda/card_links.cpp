#include "device/cuda/card_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "device/cuda/libraries.h"
#include "onnxgrad/error.h"

namespace onnxgrad::device::cuda {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

constexpr double kBetweenLooks = 1e-3;  // seconds
// A rank that has done its part may end while this card still does its own.
constexpr double kPatience = 2;
constexpr double kToClose = 2;

// The cards that are connected, by number: the process has one group for each. Never destroyed,
// since the process may end in any thread.
struct Connected {
  std::mutex mutex;
  std::map<int, std::shared_ptr<CardLinks>> by_card;
};
Connected& connected() {
  static auto* const all = new Connected;
  return *all;
}

void close_all() {
  const std::scoped_lock lock(connected().mutex);
  connected().by_card.clear();
}

std::string version_text(int version) {
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

// Tells the others of this card, or why there is no library.
constexpr std::string_view kError = "error: ";
std::string introduction(const Context& context) {
  try {
    int version = 0;
    nccl().GetVersion(&version);
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return fmt::format("{} card {} of {}", version, context.index(),
                       visible == nullptr ? "all" : visible);
  } catch (const DeviceError& error) {
    return fmt::format("{}{}. {} {}", kError, error.problem().what, error.problem().detail,
                       error.problem().hint.text());
  }
}

std::string host_of(const std::string& rank_name) {
  return rank_name.substr(rank_name.find(" on "));
}

void check_introductions(const JobRanks& ranks, const std::vector<std::string>& texts) {
  for (std::size_t r = 0; r < texts.size(); ++r) {
    const std::string name = ranks.name_of(static_cast<int>(r));
    if (texts[r].starts_with(kError)) {
      throw DeviceError({.what = name + " cannot exchange data with the cards of the other ranks",
                         .detail = texts[r].substr(kError.size()),
                         .hint = "Install NCCL there, or use DataParallel(exchange='host')."});
    }
    for (std::size_t other = 0; other < r; ++other) {
      const std::string first = ranks.name_of(static_cast<int>(other));
      if (texts[other] != texts[r] || host_of(first) != host_of(name)) continue;
      throw DeviceError({.what = fmt::format("{} and {} have the same card", first, name),
                         .detail = "Each process needs a card of its own.",
                         .hint = "Name no number: device='cuda' is the card of the local rank; or "
                                 "start as many processes as there are cards."});
    }
  }
}

std::byte* piece_of(const CardLinks::Pieces& pieces, int rank) {
  std::int64_t before = 0;
  for (int r = 0; r < rank; ++r) before += pieces.counts[static_cast<std::size_t>(r)];
  return pieces.data + before * pieces.element_bytes;
}

std::size_t piece_bytes(const CardLinks::Pieces& pieces, int rank) {
  return static_cast<std::size_t>(pieces.counts[static_cast<std::size_t>(rank)] *
                                  pieces.element_bytes);
}

Owned untimed_event() {
  Handle event = nullptr;
  check(driver().EventCreate(&event, kDisableTiming), "cuEventCreate");
  return {event, driver().EventDestroy};
}

int nccl_type(DataType dtype) { return dtype == DataType::kFloat64 ? kNcclFloat64 : kNcclFloat32; }

}  // namespace

void CardLinks::connect(const std::shared_ptr<Context>& context, std::shared_ptr<JobRanks> ranks) {
  if (of(*context) != nullptr) return;
  check_introductions(*ranks, ranks->gather(introduction(*context)));
  NcclUniqueId id;
  std::string failure;
  if (ranks->rank() == 0) {
    const int result = nccl().GetUniqueId(&id);
    if (result != kSuccess) failure = nccl().GetErrorString(result);
  }
  const std::string sent = failure.empty() ? std::string(id.bytes.data(), id.bytes.size())
                                           : std::string(kError) + failure;
  const std::string first = ranks->gather(ranks->rank() == 0 ? sent : std::string()).front();
  if (first.size() != id.bytes.size()) {
    throw DeviceError({.what = "ncclGetUniqueId on rank 0: " + first.substr(kError.size()),
                       .hint = "Set NCCL_DEBUG=INFO to see why, or use "
                               "DataParallel(exchange='host')."});
  }
  std::memcpy(id.bytes.data(), first.data(), first.size());
  const std::shared_ptr<CardLinks> made(new CardLinks(context, std::move(ranks)));
  made->open(id);
  // After the driver's own, and before it.
  static const bool closes = [] { return std::atexit(close_all) == 0; }();
  (void)closes;
  const std::scoped_lock lock(connected().mutex);
  connected().by_card[context->index()] = made;
}

std::shared_ptr<CardLinks> CardLinks::of(const Context& context) {
  const std::scoped_lock lock(connected().mutex);
  const auto found = connected().by_card.find(context.index());
  return found == connected().by_card.end() ? nullptr : found->second;
}

CardLinks::CardLinks(std::shared_ptr<Context> context, std::shared_ptr<JobRanks> ranks)
    : context_(std::move(context)), ranks_(std::move(ranks)) {
  int version = 0;
  nccl().GetVersion(&version);
  library_ = version_text(version);
  context_->make_current();
  Handle stream = nullptr;
  check(driver().StreamCreate(&stream, kNonBlocking), "cuStreamCreate");
  stream_ = Owned(stream, driver().StreamDestroy);
  begun_ = untimed_event();
}

CardLinks::~CardLinks() {
  try {
    close();
  } catch (const DeviceError&) {  // NOLINT(bugprone-empty-catch): the others see that it ends
  }
}

void CardLinks::open(const NcclUniqueId& id) {
  NcclConfig config;
  settle(nccl().CommInitRankConfig(&comm_, size(), id, rank(), &config), "ncclCommInitRankConfig");
}

// Ranks that end give the others time to read what they have sent.
void CardLinks::close() {
  if (comm_ == nullptr) return;
  context_->make_current();
  int result = nccl().CommFinalize(comm_);
  const Clock::time_point begin = Clock::now();
  while (result == kNcclInProgress && seconds_since(begin) < kToClose) {
    std::this_thread::sleep_for(std::chrono::duration<double>(kBetweenLooks));
    if (nccl().CommGetAsyncError(comm_, &result) != kSuccess) break;
  }
  const Handle comm = std::exchange(comm_, nullptr);
  if (result == kSuccess) {
    nccl().CommDestroy(comm);
  } else {
    nccl().CommAbort(comm);
  }
}

std::string CardLinks::last_error(int result) const {
  const char* const text = comm_ == nullptr ? nullptr : nccl().GetLastError(comm_);
  std::string detail = nccl().GetErrorString(result);
  if (text != nullptr && *text != '\0') detail += fmt::format(": {}", text);
  return detail;
}

void CardLinks::fail(std::string what, std::string detail, std::string hint) {
  problem_ = what;
  if (comm_ != nullptr) nccl().CommAbort(std::exchange(comm_, nullptr));
  throw DeviceError(
      {.what = std::move(what), .detail = std::move(detail), .hint = std::move(hint)});
}

void CardLinks::check_usable() const {
  if (problem_.empty()) return;
  throw DeviceError({.what = "the cards of the workers are no longer connected",
                     .detail = problem_,
                     .hint = "End this process; train on from the last checkpoint."});
}

void CardLinks::check_others(double waited_s) {
  int result = kSuccess;
  const int asked = nccl().CommGetAsyncError(comm_, &result);
  if (asked != kSuccess) result = asked;
  if (result != kSuccess && result != kNcclInProgress) {
    fail(fmt::format("an exchange of rank {} with other cards has failed", rank()),
         last_error(result),
         "Look at the output of the other ranks; set NCCL_DEBUG=INFO to see more.");
  }
  if (waited_s > ranks_->timeout_s()) {
    fail(fmt::format("an exchange of rank {} with other cards did not end within {} s", rank(),
                     ranks_->timeout_s()),
         "Another rank hangs, or does other steps.",
         "Look at the output of the other ranks, or raise the timeout of connect().");
  }
  try {
    ranks_->check();
    lost_since_s_ = -1;
  } catch (const DeviceError& error) {
    if (lost_since_s_ < 0) lost_since_s_ = waited_s;
    if (waited_s - lost_since_s_ < kPatience) return;
    fail(fmt::format("an exchange with other cards: {}", error.problem().what), {},
         "Look at the output of that rank; train on from the last checkpoint.");
  }
}

void CardLinks::settle(int result, const char* call) {
  const Clock::time_point begin = Clock::now();
  lost_since_s_ = -1;
  while (result == kNcclInProgress) {
    check_others(seconds_since(begin));
    const int asked = nccl().CommGetAsyncError(comm_, &result);
    if (asked != kSuccess) result = asked;
    if (result == kNcclInProgress) {
      std::this_thread::sleep_for(std::chrono::duration<double>(kBetweenLooks / 10));
    }
  }
  if (result == kSuccess) return;
  fail(fmt::format("{} on rank {}: {}", call, rank(), last_error(result)), {},
       "Set NCCL_DEBUG=INFO to see why, or use DataParallel(exchange='host').");
}

void CardLinks::begin(Handle stream) {
  check_usable();
  thread_ = std::this_thread::get_id();
  check(driver().EventRecord(begun_.get(), stream), "cuEventRecord");
  check(driver().StreamWaitEvent(stream_.get(), begun_.get(), 0), "cuStreamWaitEvent");
}

CardLinks::End& CardLinks::end_of(std::size_t number) {
  if (ends_.size() <= number) ends_.resize(number + 1);
  End& end = ends_[number];
  if (!end.event) end.event = untimed_event();
  return end;
}

void CardLinks::end(std::size_t number) {
  End& end = end_of(number);
  end.is_skipped = false;
  check(driver().EventRecord(end.event.get(), stream_.get()), "cuEventRecord");
}

void CardLinks::skip(std::size_t number) { end_of(number).is_skipped = true; }

void CardLinks::join(std::size_t number, Handle stream) {
  check_usable();
  const End& end = ends_.at(number);
  if (end.is_skipped) return;
  check(driver().StreamWaitEvent(stream, end.event.get(), 0), "cuStreamWaitEvent");
}

void CardLinks::add_up(std::byte* data, std::int64_t count, DataType dtype) {
  settle(nccl().AllReduce(data, data, static_cast<std::size_t>(count), nccl_type(dtype), kNcclSum,
                          comm_, stream_.get()),
         "ncclAllReduce");
}

void CardLinks::add_up_for_owners(const Pieces& pieces, DataType dtype) {
  settle(nccl().GroupStart(), "ncclGroupStart");
  for (int owner = 0; owner < size(); ++owner) {
    const auto count = static_cast<std::size_t>(pieces.counts[static_cast<std::size_t>(owner)]);
    std::byte* const piece = piece_of(pieces, owner);
    if (count == 0) continue;
    settle(
        nccl().Reduce(piece, piece, count, nccl_type(dtype), kNcclSum, owner, comm_, stream_.get()),
        "ncclReduce");
  }
  settle(nccl().GroupEnd(), "ncclGroupEnd");
}

void CardLinks::gather(const Pieces& pieces) {
  settle(nccl().GroupStart(), "ncclGroupStart");
  for (int owner = 0; owner < size(); ++owner) {
    std::byte* const piece = piece_of(pieces, owner);
    const std::size_t bytes = piece_bytes(pieces, owner);
    if (bytes == 0) continue;
    settle(nccl().Broadcast(piece, piece, bytes, kNcclInt8, owner, comm_, stream_.get()),
           "ncclBroadcast");
  }
  settle(nccl().GroupEnd(), "ncclGroupEnd");
}

void CardLinks::send_to_owners(const Pieces& pieces, std::byte* received) {
  settle(nccl().GroupStart(), "ncclGroupStart");
  const std::size_t own = piece_bytes(pieces, rank());
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    if (const std::size_t bytes = piece_bytes(pieces, peer); bytes > 0) {
      settle(nccl().Send(piece_of(pieces, peer), bytes, kNcclInt8, peer, comm_, stream_.get()),
             "ncclSend");
    }
    if (own == 0) continue;
    settle(nccl().Recv(received, own, kNcclInt8, peer, comm_, stream_.get()), "ncclRecv");
    received += own;
  }
  settle(nccl().GroupEnd(), "ncclGroupEnd");
}

// Other threads, which do their own work on the card, do not look after the ranks.
void CardLinks::wait_for(Handle event) {
  if (comm_ == nullptr || std::this_thread::get_id() != thread_) return;
  const Clock::time_point begin = Clock::now();
  double next_look = kBetweenLooks;
  lost_since_s_ = -1;
  for (int result = driver().EventQuery(event); result != kSuccess;
       result = driver().EventQuery(event)) {
    if (result != kNotReady) check(result, "cuEventQuery");
    const double waited = seconds_since(begin);
    if (waited < next_look) continue;
    next_look = waited + kBetweenLooks;
    check_others(waited);
  }
}

void CardLinks::wait(Handle stream) {
  const Owned event = untimed_event();
  check(driver().EventRecord(event.get(), stream), "cuEventRecord");
  wait_for(event.get());
  check(driver().StreamSynchronize(stream), "cuStreamSynchronize");
}

}  // namespace onnxgrad::device::cuda
