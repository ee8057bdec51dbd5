// A rank of a job that a launcher starts: `mpirun -n 4 onnxgrad_dist_rank sums`.
//
//   sums               checks sums against their definition; rank 0 prints a hash of all bits
//   time BYTES...      rank 0 prints microseconds of an all_reduce of so many bytes, float32
//   missing RANK       that rank never arrives; the others report it after some seconds
//   exit RANK CODE     that rank exits with this code while the others wait
//   kill RANK          that rank is killed
//   late RANK HOW      that rank does not begin with MPI: it sleeps, stops or exits (with 0); the
//                      others report it after some seconds
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "dist/connect.h"
#include "dist/testing/ordered_values.h"
#include "onnxgrad/error.h"

namespace onnxgrad::dist_test {
namespace {

using dist::Communicator;
using dist::Element;

template <class T>
std::uint64_t check_sums(Communicator& workers, Element element, std::int64_t count) {
  std::vector<T> values = values_of<T>(workers.rank(), count);
  workers.all_reduce(count, element)->run(values.data(), values.data());
  std::uint64_t hash = 1469598103934665603U;  // FNV-1a
  for (std::int64_t i = 0; i < count; ++i) {
    const T& value = values[static_cast<std::size_t>(i)];
    const T expected =
        ordered_sum<T>(workers.size(), dist::default_block_size(workers.size()), i, element_of<T>);
    if (element != Element::kFloat32AsBfloat16 && !same_bits(value, expected)) {
      throw InternalError(fmt::format("element {} of {}: {}, not {}", i, count, value, expected));
    }
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    hash = (hash ^ bits) * 1099511628211U;
  }
  return hash;
}

void check(Communicator& workers) {
  std::uint64_t hash = 0;
  for (const std::int64_t count : {1, 1000, 1'000'003}) {
    hash ^= check_sums<float>(workers, Element::kFloat32, count);
    hash ^= check_sums<double>(workers, Element::kFloat64, count);
    hash ^= check_sums<float>(workers, Element::kFloat32AsBfloat16, count);
  }
  if (workers.broadcast_text(std::to_string(workers.rank()), workers.size() - 1) !=
      std::to_string(workers.size() - 1)) {
    throw InternalError("broadcast");
  }
  const std::vector<std::string> hashes = workers.all_gather_texts(std::to_string(hash));
  if (std::count(hashes.begin(), hashes.end(), hashes[0]) != workers.size()) {
    throw InternalError("the ranks have different sums");
  }
  if (workers.rank() == 0) {
    fmt::print("{} ranks on {} hosts, {}: sums {:016x}\n", workers.size(),
               workers.size() / workers.local_size(), workers.transport_name(), hash);
  }
}

void time(Communicator& workers, std::int64_t bytes) {
  using Clock = std::chrono::steady_clock;
  std::vector<float> values(static_cast<std::size_t>(bytes / 4), 1);
  const auto sum = workers.all_reduce(bytes / 4, Element::kFloat32);
  std::vector<double> seconds;
  const auto end = Clock::now() + std::chrono::seconds(1);
  std::int64_t goes_on = 1;
  while (goes_on > 0) {
    workers.barrier_now();
    const auto begin = Clock::now();
    for (int i = 0; i < 5; ++i) sum->run(values.data(), values.data());
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count() / 5);
    std::fill(values.begin(), values.end(), 1.0F);
    goes_on = workers.rank() == 0 && Clock::now() < end ? 1 : 0;
    workers.all_reduce_now(std::span(&goes_on, 1));
  }
  std::sort(seconds.begin(), seconds.end());
  if (workers.rank() == 0) {
    fmt::print("{:>10} bytes  median {:10.1f} us  least {:10.1f} us\n", bytes,
               seconds[seconds.size() / 2] * 1e6, seconds[0] * 1e6);
  }
}

int run(const std::vector<std::string>& arguments) {
  const std::string& what = arguments.at(0);
  const auto number = [&](std::size_t i) { return std::stoll(arguments.at(i)); };
  if (what == "late") {
    const std::string& how = arguments.at(2);
    if (dist::find_job(dist::process_environment()).rank == number(1)) {
      if (how == "exits") return 0;
      if (how == "stops") std::raise(SIGSTOP);
      std::this_thread::sleep_for(std::chrono::seconds(60));
      return 0;
    }
    dist::connect({.timeout_s = 4});
  }
  const auto workers = dist::connect({.timeout_s = what == "missing" ? 8.0 : 60.0});
  if (what == "sums") check(*workers);
  if (what == "time") {
    for (std::size_t i = 1; i < arguments.size(); ++i) time(*workers, number(i));
  }
  if (what == "missing" || what == "exit" || what == "kill") {
    if (workers->rank() == number(1)) {
      if (what == "exit") return static_cast<int>(number(2));
      if (what == "kill") std::raise(SIGKILL);
      std::this_thread::sleep_for(std::chrono::seconds(30));
    }
    std::vector<double> values(1000, 1);
    workers->all_reduce_now(std::span(values));
  }
  return 0;
}

}  // namespace
}  // namespace onnxgrad::dist_test

int main(int count, char** texts) {
  try {
    return onnxgrad::dist_test::run({texts + 1, texts + count});
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
