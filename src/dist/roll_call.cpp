#include "dist/roll_call.h"

#include <chrono>
#include <span>
#include <thread>

#include "onnxgrad/error.h"

namespace onnxgrad::dist {
namespace {

constexpr int kCallTag = kNumTags - 2;
constexpr int kAnswerTag = kNumTags - 1;

std::span<std::byte> bytes_of(Waiting& waiting) {
  return std::as_writable_bytes(std::span(&waiting, 1));
}

}  // namespace

RollCall::RollCall(Transport& transport)
    : transport_(transport), peers_(static_cast<std::size_t>(transport.size())) {
  for (int rank = 0; rank < transport.size(); ++rank) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (rank == transport.rank()) continue;
    peer.call = transport.receive(rank, kCallTag, std::span(&peer.call_byte, 1));
  }
}

RollCall::~RollCall() {
  for (Peer& peer : peers_) {
    transport_.cancel(peer.call);
    transport_.cancel(peer.answer);
    transport_.cancel(peer.my_call);
    transport_.cancel(peer.my_answer);
  }
}

void RollCall::serve(const Waiting& mine) {
  for (int rank = 0; rank < transport_.size(); ++rank) {
    if (rank == transport_.rank()) continue;
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (!peer.is_reachable) continue;
    try {
      serve(rank, mine);
    } catch (const DeviceError&) {  // the connection to it is lost: it is missing
      peer.is_reachable = false;
    }
  }
}

void RollCall::serve(int rank, const Waiting& mine) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (!transport_.test(peer.my_answer) || !transport_.test(peer.call)) return;
  peer.my_answer_text = mine;
  peer.my_answer = transport_.send(rank, kAnswerTag, bytes_of(peer.my_answer_text));
  peer.call = transport_.receive(rank, kCallTag, std::span(&peer.call_byte, 1));
}

std::vector<Waiting> RollCall::call(const Waiting& mine, double seconds) {
  for (int rank = 0; rank < transport_.size(); ++rank) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (rank == transport_.rank() || !peer.is_reachable) continue;
    try {
      peer.answer = transport_.receive(rank, kAnswerTag, bytes_of(peer.answer_text));
      peer.my_call = transport_.send(rank, kCallTag, std::span(&peer.my_call_byte, 1));
    } catch (const DeviceError&) {
      peer.is_reachable = false;
    }
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  bool all_answered = false;
  while (!all_answered && std::chrono::steady_clock::now() < end) {
    all_answered = true;
    serve(mine);
    for (int rank = 0; rank < transport_.size(); ++rank) {
      Peer& peer = peers_[static_cast<std::size_t>(rank)];
      if (rank == transport_.rank() || !peer.is_reachable) continue;
      try {
        transport_.test(peer.my_call);
        all_answered = transport_.test(peer.answer) && all_answered;
      } catch (const DeviceError&) {
        peer.is_reachable = false;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::vector<Waiting> answers;
  for (Peer& peer : peers_) {
    const bool answered = peer.is_reachable && peer.answer == nullptr;
    answers.push_back(answered ? peer.answer_text : Waiting{});
  }
  answers[static_cast<std::size_t>(transport_.rank())] = mine;
  return answers;
}

}  // namespace onnxgrad::dist
