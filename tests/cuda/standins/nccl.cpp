// Stands in for NCCL (libnccl.so.2) between processes of one host, whose messages are files in a
// folder that the unique id names. Stricter than the library: ranks that submit different
// operations, counts or types, addresses that are not of the card, and calls while an earlier one
// is in progress end the process. Every call of a group returns before it is done, operations are
// done when their stream is, sums are taken in an order that is not that of the ranks, and a rank
// that has ended leaves the others waiting until they abort.

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/nccl_api.h"
#include "hooks.h"

namespace {

namespace fs = std::filesystem;
namespace cuda = onnxgrad::device::cuda;
using onnxgrad::cuda_standin::card_memory;
using onnxgrad::cuda_standin::injected_error;
using onnxgrad::cuda_standin::kNotYet;
using onnxgrad::cuda_standin::submit_work;

enum Status : int { kOk = 0, kInvalidArgument = 4, kInvalidUsage = 5, kInProgress = 7 };

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "stand-in of NCCL: %s\n", what.c_str());
  std::abort();
}

struct Operation {
  std::string kind;  // "AllReduce"
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::size_t count = 0;
  int type = 0;
  int peer = -1;  // the root, or the other rank

  // Ranks must agree on it.
  std::string text() const {
    return kind + " of " + std::to_string(count) + " of type " + std::to_string(type) + ", root " +
           std::to_string(peer);
  }
  bool is_message() const { return kind == "Send" || kind == "Recv"; }
};

std::size_t bytes_of(int type) {
  switch (type) {
    case cuda::kNcclInt8:
      return 1;
    case cuda::kNcclFloat32:
      return 4;
    case cuda::kNcclFloat64:
      return 8;
    default:
      die("type " + std::to_string(type));
  }
}

struct Comm {
  fs::path folder;
  int rank = 0;
  int size = 1;
  std::string awaited;  // files of all ranks, which the call in progress waits for
  int polls_left = 0;   // until the call in progress has been done
  std::uint64_t submitted = 0;
  std::map<std::pair<int, int>, std::uint64_t> messages;  // by sender and receiver
  bool is_aborted = false;
  std::string problem;
};

void write(const fs::path& file, const std::string& bytes) {
  const fs::path part = file.string() + ".part";
  {
    std::ofstream out(part, std::ios::binary);
    out << bytes;
    if (!out.flush()) die("cannot write " + part.string());
  }
  fs::rename(part, file);
}

std::optional<std::string> read(const fs::path& file) {
  std::error_code error;
  if (!fs::exists(file, error)) return std::nullopt;
  std::ifstream in(file, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::string name(const std::string& kind, std::uint64_t number, std::size_t place, int rank) {
  return kind + "-" + std::to_string(number) + "-" + std::to_string(place) + "." +
         std::to_string(rank);
}

std::byte* memory(std::uint64_t address, std::size_t bytes, const Operation& op) {
  std::byte* const pointer = card_memory(address, bytes);
  if (pointer == nullptr) die(op.text() + ": an operand is not in the memory of the card");
  return pointer;
}

std::string bytes_at(std::uint64_t address, std::size_t bytes, const Operation& op) {
  return {reinterpret_cast<const char*>(memory(address, bytes, op)), bytes};
}

template <class T>
void add(std::string& sum, const std::string& more) {
  for (std::size_t at = 0; at < sum.size(); at += sizeof(T)) {
    T a{};
    T b{};
    std::memcpy(&a, sum.data() + at, sizeof a);
    std::memcpy(&b, more.data() + at, sizeof b);
    a += b;
    std::memcpy(sum.data() + at, &a, sizeof a);
  }
}

/// A group of operations, which a stream does when all ranks have come to it.
class Group {
 public:
  Group(Comm& comm, std::uint64_t number, std::vector<Operation> operations)
      : comm_(comm), number_(number), operations_(std::move(operations)) {
    for (const Operation& op : operations_) {
      if (!op.is_message()) continue;
      const bool is_sent = op.kind == "Send";
      const std::pair way{is_sent ? comm.rank : op.peer, is_sent ? op.peer : comm.rank};
      numbers_.push_back(comm.messages[way]++);
    }
  }

  int run() {
    if (comm_.is_aborted) return kOk;
    if (!std::exchange(has_sent_, true)) send();
    return receive() ? kOk : kNotYet;
  }

 private:
  fs::path file(const Operation& op, std::size_t place, std::size_t message, int rank) const {
    if (!op.is_message()) return comm_.folder / name("group", number_, place, rank);
    const bool is_sent = op.kind == "Send";
    const int from = is_sent ? comm_.rank : op.peer;
    const int to = is_sent ? op.peer : comm_.rank;
    return comm_.folder / name("message", numbers_[message], static_cast<std::size_t>(from), to);
  }

  void send() const {
    std::size_t message = 0;
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      const Operation& op = operations_[i];
      const std::size_t at = op.is_message() ? message++ : 0;
      if (op.kind == "Recv") continue;
      std::string text = (op.is_message() ? std::to_string(op.count) : op.text()) + "\n";
      const bool has_data = op.kind != "Broadcast" || op.peer == comm_.rank;
      if (has_data) text += bytes_at(op.from, op.count * bytes_of(op.type), op);
      write(file(op, i, at, comm_.rank), text);
    }
  }

  // The data that a file has, if that is there.
  static std::optional<std::string> data(const fs::path& file, const std::string& expected,
                                         const Operation& op) {
    const std::optional<std::string> all = read(file);
    if (!all) return std::nullopt;
    const std::string said = all->substr(0, all->find('\n'));
    if (said != expected) die("ranks differ: " + op.text() + " here, elsewhere " + said);
    return all->substr(said.size() + 1);
  }

  bool receive() {
    std::vector<std::pair<const Operation*, std::string>> results;
    std::size_t message = 0;
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      const Operation& op = operations_[i];
      const std::size_t at = op.is_message() ? message++ : 0;
      if (op.kind == "Send") continue;
      if (op.kind == "Recv") {
        auto got = data(file(op, i, at, 0), std::to_string(op.count), op);
        if (!got) return false;
        results.emplace_back(&op, std::move(*got));
        continue;
      }
      std::vector<std::string> all;
      for (int rank = 0; rank < comm_.size; ++rank) {
        auto got = data(file(op, i, at, rank), op.text(), op);
        if (!got) return false;
        all.push_back(std::move(*got));
      }
      std::string result = combined(op, all);
      const bool is_kept = op.kind != "Reduce" || op.peer == comm_.rank;
      if (is_kept) results.emplace_back(&op, std::move(result));
    }
    for (const auto& [op, result] : results) {
      std::memcpy(memory(op->to, result.size(), *op), result.data(), result.size());
    }
    return true;
  }

  // The last rank first.
  std::string combined(const Operation& op, const std::vector<std::string>& all) const {
    if (op.kind == "Broadcast") return all[static_cast<std::size_t>(op.peer)];
    std::string sum = all.back();
    for (std::size_t r = all.size() - 1; r > 0; --r) {
      if (op.type == cuda::kNcclFloat64) {
        add<double>(sum, all[r - 1]);
      } else {
        add<float>(sum, all[r - 1]);
      }
    }
    return sum;
  }

  Comm& comm_;
  std::uint64_t number_;
  std::vector<Operation> operations_;
  std::vector<std::uint64_t> numbers_;  // of the messages
  bool has_sent_ = false;
};

struct Open {
  int depth = 0;
  Comm* comm = nullptr;
  void* stream = nullptr;
  std::vector<Operation> operations;
};
thread_local Open open_group;

int submit(Open group) {
  if (group.operations.empty()) return kOk;
  Comm& comm = *group.comm;
  auto work = std::make_shared<Group>(comm, comm.submitted++, std::move(group.operations));
  if (submit_work(group.stream, [work] { return work->run(); }) != kOk) return 1;
  comm.polls_left = 2;
  return kInProgress;
}

int enqueue(const char* function, void* handle, void* stream, Operation op) {
  if (const int error = injected_error(function)) return error;
  auto& comm = *static_cast<Comm*>(handle);
  if (comm.is_aborted) die(std::string(function) + " on an aborted communicator");
  if (comm.polls_left > 0 || !comm.awaited.empty()) {
    die(std::string(function) + " while another call is in progress");
  }
  if (op.peer >= comm.size) return kInvalidArgument;
  if (open_group.depth == 0) {
    return submit({.comm = &comm, .stream = stream, .operations = {std::move(op)}});
  }
  const bool is_first = open_group.operations.empty();
  if (!is_first && (open_group.comm != &comm || open_group.stream != stream)) {
    die("a group has two communicators or streams");
  }
  open_group.comm = &comm;
  open_group.stream = stream;
  open_group.operations.push_back(std::move(op));
  return kOk;
}

std::uint64_t number(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

bool have_all(const Comm& comm, const std::string& kind) {
  std::error_code error;
  for (int rank = 0; rank < comm.size; ++rank) {
    if (!fs::exists(comm.folder / (kind + "." + std::to_string(rank)), error)) return false;
  }
  return true;
}

void note(const Comm& comm, const std::string& kind, const std::string& text) {
  write(comm.folder / (kind + "." + std::to_string(comm.rank)), text);
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = 22809;
  return kOk;
}

const char* ncclGetErrorString(int result) {
  return result == kOk             ? "no error"
         : result == 6             ? "remote process exited or there was a network error"
         : result == kInProgress   ? "NCCL operation in progress"
         : result == kInvalidUsage ? "invalid usage"
                                   : "unhandled system error";
}

const char* ncclGetLastError(void* comm) { return static_cast<Comm*>(comm)->problem.c_str(); }

int ncclGetUniqueId(cuda::NcclUniqueId* id) {
  if (const int error = injected_error("ncclGetUniqueId")) return error;
  std::random_device random;
  std::string text = "onnxgrad-nccl-" + std::to_string(::getpid()) + "-" + std::to_string(random());
  id->bytes.fill('\0');
  std::copy(text.begin(), text.end(), id->bytes.begin());
  return kOk;
}

int ncclCommInitRankConfig(void** made, int size, cuda::NcclUniqueId id, int rank,
                           cuda::NcclConfig* config) {
  if (const int error = injected_error("ncclCommInitRankConfig")) return error;
  if (config->magic != 0xcafebeef || config->size != sizeof *config || config->blocking != 0) {
    return kInvalidArgument;
  }
  if (rank < 0 || rank >= size) return kInvalidArgument;
  auto* comm = new Comm;  // never deleted: work that is queued refers to it
  comm->folder = fs::temp_directory_path() / id.bytes.data();
  comm->rank = rank;
  comm->size = size;
  fs::create_directories(comm->folder);
  note(*comm, "init", std::to_string(size));
  comm->awaited = "init";
  *made = comm;
  return kInProgress;
}

int ncclCommGetAsyncError(void* handle, int* result) {
  auto& comm = *static_cast<Comm*>(handle);
  if (const int error = injected_error("ncclCommGetAsyncError")) {
    comm.problem = "NET/Socket: connection closed by a peer";
    *result = error;
    return kOk;
  }
  if (!comm.awaited.empty() && have_all(comm, comm.awaited)) comm.awaited.clear();
  if (comm.awaited.empty() && comm.polls_left > 0) --comm.polls_left;
  *result = comm.awaited.empty() && comm.polls_left == 0 ? kOk : kInProgress;
  return kOk;
}

int ncclCommFinalize(void* handle) {
  auto& comm = *static_cast<Comm*>(handle);
  note(comm, "final", "");
  comm.awaited = "final";
  return kInProgress;
}

int ncclCommDestroy(void* handle) {
  auto& comm = *static_cast<Comm*>(handle);
  comm.is_aborted = true;
  note(comm, "gone", "");
  std::error_code error;
  if (have_all(comm, "gone")) fs::remove_all(comm.folder, error);
  return kOk;
}

int ncclCommAbort(void* handle) {
  static_cast<Comm*>(handle)->is_aborted = true;
  return kOk;
}

int ncclGroupStart() {
  ++open_group.depth;
  return kOk;
}

int ncclGroupEnd() {
  if (open_group.depth == 0) return kInvalidUsage;
  if (--open_group.depth > 0) return kOk;
  if (const int error = injected_error("ncclGroupEnd")) {
    open_group = {};
    return error;
  }
  return submit(std::exchange(open_group, {}));
}

int ncclAllReduce(const void* from, void* to, std::size_t count, int type, int operation,
                  void* comm, void* stream) {
  if (operation != cuda::kNcclSum) return kInvalidArgument;
  return enqueue(
      "ncclAllReduce", comm, stream,
      {.kind = "AllReduce", .from = number(from), .to = number(to), .count = count, .type = type});
}

int ncclReduce(const void* from, void* to, std::size_t count, int type, int operation, int root,
               void* comm, void* stream) {
  if (operation != cuda::kNcclSum) return kInvalidArgument;
  return enqueue("ncclReduce", comm, stream,
                 {.kind = "Reduce",
                  .from = number(from),
                  .to = number(to),
                  .count = count,
                  .type = type,
                  .peer = root});
}

int ncclBroadcast(const void* from, void* to, std::size_t count, int type, int root, void* comm,
                  void* stream) {
  return enqueue("ncclBroadcast", comm, stream,
                 {.kind = "Broadcast",
                  .from = number(from),
                  .to = number(to),
                  .count = count,
                  .type = type,
                  .peer = root});
}

int ncclSend(const void* from, std::size_t count, int type, int peer, void* comm, void* stream) {
  return enqueue(
      "ncclSend", comm, stream,
      {.kind = "Send", .from = number(from), .count = count, .type = type, .peer = peer});
}

int ncclRecv(void* to, std::size_t count, int type, int peer, void* comm, void* stream) {
  return enqueue("ncclRecv", comm, stream,
                 {.kind = "Recv", .to = number(to), .count = count, .type = type, .peer = peer});
}

}  // extern "C"
