#ifndef ONNXGRAD_DIST_COMMUNICATOR_H_
#define ONNXGRAD_DIST_COMMUNICATOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dist/roll_call.h"
#include "dist/schedule.h"
#include "dist/transport.h"
#include "onnxgrad/error.h"

// Messages and collectives between the workers of a data-parallel job. Start reading at
// Communicator: it prepares Collectives, each a fixed list of messages and sums (a Schedule), that
// are started as often as wanted.
//
//   const auto sum = workers.all_reduce(count, Element::kFloat32);   // once
//   sum->start(gradient, gradient);                                  // in every step
//   ...  workers.progress();  ...                                    // between other work
//   sum->wait();
//
// The ranks of a job prepare what they like, but start the same collectives in the same order.

namespace onnxgrad::dist {

class Communicator;

/// A collective on buffers of fixed sizes. Must not outlive its Communicator. One thread at a time.
class Collective {
 public:
  ~Collective();
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  /// Starts the collective; an earlier start must be done. `input` and `output` have the sizes that
  /// it was prepared for, may be equal if its maker allows it, and belong to it until it is done.
  /// Allocates nothing. Throws: DeviceError.
  void start(const void* input, void* output);
  /// Advances the collective; true if it is done, or not started. Throws: DeviceError naming the
  /// rank whose message failed, or that stopped the job.
  bool test();
  /// Waits until the collective is done. Throws: as test(), and DeviceError naming the ranks that
  /// did not arrive if nothing happened for the communicator's timeout; Interrupted.
  void wait();
  /// Calls start() and wait().
  void run(const void* input, void* output);
  /// Bytes that this rank sends in one run.
  std::int64_t bytes_sent() const { return schedule_.bytes_sent; }
  /// Seconds spent in wait() so far, over all runs.
  double seconds_waited() const { return seconds_waited_; }

 private:
  friend class Communicator;
  struct Pending {
    Request request = nullptr;
    int peer = 0;
  };
  Collective(Communicator& workers, Schedule schedule, int fixed_tag);
  void start_phase();
  bool advance();
  void give_up() noexcept;
  void add(const Sum& sum);
  std::byte* address(const Slice& slice) const;
  [[noreturn]] void fail(const Pending& pending, const DeviceError& error);

  Communicator& workers_;
  Schedule schedule_;
  std::vector<std::byte> scratch_;
  std::vector<Pending> pending_;           // capacity: maximum messages of a phase
  std::vector<const std::byte*> sources_;  // operands of a sum
  const std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  std::size_t phase_ = 0;
  bool active_ = false;
  int fixed_tag_ = -1;  // tag of messages between two ranks; -1: from sequence_
  int tag_ = 0;
  std::int64_t sequence_ = 0;
  std::int64_t num_events_ = 0;  // messages completed: what the timeout looks at
  double seconds_waited_ = 0;
};

struct CommunicatorOptions {
  /// A wait in which nothing arrives for so long ends with an error that names the missing ranks.
  double timeout_s = 600;
  /// Ranks of a block, see schedule.h; 0: all of them up to 64, about the square root above.
  int block_size = 0;
};

/// The ranks of a job. One thread at a time; collectives are started in the same order on all.
class Communicator {
 public:
  /// Exchanges the names of hosts: all ranks construct theirs at the same time. Throws:
  /// DeviceError.
  explicit Communicator(std::unique_ptr<Transport> transport, CommunicatorOptions options = {});
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }
  /// Among the ranks of the same host, in the order of ranks.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  /// Processors for this rank: each that it may use, divided among the local ranks that may use it.
  double local_processors() const { return local_processors_; }
  /// Host of each rank.
  const std::vector<std::string>& hosts() const { return hosts_; }
  /// "rank 3 on host node-2".
  std::string rank_name(int rank) const;
  std::string transport_name() const { return transport_->name(); }
  const CommunicatorOptions& options() const { return options_; }

  /// output on every rank = input of `root`; `bytes` each. On the root, input may be output.
  std::unique_ptr<Collective> broadcast(std::int64_t bytes, int root);
  /// output = the inputs of all ranks in order, bytes[r] of rank r. The input may lie at its place
  /// in the output.
  std::unique_ptr<Collective> all_gather(std::vector<std::int64_t> bytes);
  /// input = pieces for each rank in order, sent[r] bytes for rank r; output = pieces from each
  /// rank in order, received[r] bytes; what r sends to me is what I receive from r. Not in place.
  std::unique_ptr<Collective> all_to_all(std::vector<std::int64_t> sent,
                                         std::vector<std::int64_t> received);
  /// output: [counts[rank]] = own piece of the sum of input: [sum of counts]. The output may be its
  /// place in the input, which has unspecified values elsewhere then.
  std::unique_ptr<Collective> reduce_scatter(std::vector<std::int64_t> counts, Element element);
  /// output: [count] = sum of input: [count] over all ranks, equal bits on all of them. In place
  /// or not.
  std::unique_ptr<Collective> all_reduce(std::int64_t count, Element element);
  /// Done when all ranks have started it; start(nullptr, nullptr).
  std::unique_ptr<Collective> barrier();
  /// A message to `peer`, start(bytes, nullptr), and from it, start(nullptr, bytes). Messages with
  /// one tag in [0, 8192) arrive in the order sent; they are not counted in the sequence.
  std::unique_ptr<Collective> send(std::int64_t bytes, int peer, int tag = 0);
  std::unique_ptr<Collective> receive(std::int64_t bytes, int peer, int tag = 0);

  // Run a rare collective at once, without preparing it. They throw as Collective::wait does.
  void broadcast_now(std::span<std::byte> values, int root);
  void all_reduce_now(std::span<double> values);
  void all_reduce_now(std::span<std::int64_t> values);
  void barrier_now();
  /// The texts of all ranks, in order; of any lengths.
  std::vector<std::string> all_gather_texts(const std::string& mine);
  std::string broadcast_text(const std::string& text, int root);

  /// Moves all started collectives on: the back ends do nothing by themselves. A call that finds
  /// none costs nothing. Throws: as Collective::test.
  void progress();
  /// Looks for ranks that have ended, as far as the transport sees that: MPI ends the whole job
  /// itself. Throws: DeviceError, naming one.
  void check_ranks();
  /// Totals of all collectives so far: bytes sent by this rank, and seconds in Collective::wait().
  std::int64_t bytes_sent() const { return bytes_sent_; }
  double seconds_waited() const { return seconds_waited_; }
  bool is_idle() const { return active_.empty(); }
  /// Ends the job on all ranks; with processes it does not return. The others' next call throws.
  void abort(int exit_code, std::string_view reason) noexcept;
  /// Whether a collective failed: then the ranks are no longer in step, and no other can start.
  bool is_broken() const { return broken_; }

 private:
  friend class Collective;
  std::unique_ptr<Collective> make(Schedule schedule, int fixed_tag = -1);
  ScheduleBuilder builder() const;
  void answer_roll_call(const Collective& waiting);
  [[noreturn]] void report_missing(const Collective& waiting);

  std::unique_ptr<Transport> transport_;
  CommunicatorOptions options_;
  std::vector<std::string> hosts_;
  int local_rank_ = 0;
  int local_size_ = 1;
  double local_processors_ = 1;
  std::int64_t next_sequence_ = 0;
  std::vector<Collective*> active_;
  std::unique_ptr<RollCall> roll_call_;
  bool broken_ = false;
  std::int64_t bytes_sent_ = 0;
  double seconds_waited_ = 0;
};

/// The one worker of a job without others.
std::shared_ptr<Communicator> make_self();

}  // namespace onnxgrad::dist

#endif  // ONNXGRAD_DIST_COMMUNICATOR_H_
