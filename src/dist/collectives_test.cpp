#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/f16.h"
#include "dist/testing/ordered_values.h"
#include "dist/testing/threads.h"

namespace onnxgrad::dist {
namespace collectives_test {

struct Job {
  int size;
  int block_size = 0;
};

std::string job_name(const testing::TestParamInfo<Job>& info) {
  return std::to_string(info.param.size) + "_in_blocks_of_" + std::to_string(info.param.block_size);
}

using dist_test::element_of;
using dist_test::ordered_sum;
using dist_test::same_bits;
using dist_test::values_of;

class Collectives : public testing::TestWithParam<Job> {
 protected:
  int size() const { return GetParam().size; }
  int block_size() const {
    return GetParam().block_size != 0 ? GetParam().block_size : default_block_size(size());
  }
  void run(const std::function<void(Communicator&)>& worker) {
    ThreadGroup(size()).run(worker, {.timeout_s = 60, .block_size = GetParam().block_size});
  }

  template <class T>
  void check_all_reduce(Element element) {
    for (const std::int64_t count : {0, 1, 17, 5000}) {
      run([&](Communicator& workers) {
        const std::vector<T> mine = values_of<T>(workers.rank(), count);
        std::vector<T> sums(mine.size());
        std::vector<T> in_place = mine;
        const auto sum = workers.all_reduce(count, element);
        sum->run(mine.data(), sums.data());
        sum->run(in_place.data(), in_place.data());  // and once more
        EXPECT_EQ(mine, values_of<T>(workers.rank(), count));
        for (std::int64_t i = 0; i < count; ++i) {
          const T expected = ordered_sum<T>(size(), block_size(), i, element_of<T>);
          const auto k = static_cast<std::size_t>(i);
          ASSERT_TRUE(same_bits(sums[k], expected)) << i << ": " << sums[k] << ", " << expected;
          ASSERT_TRUE(same_bits(in_place[k], expected)) << i;
        }
      });
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Jobs, Collectives,
                         testing::Values(Job{1}, Job{2}, Job{3}, Job{4}, Job{5}, Job{7, 2},
                                         Job{7, 3}, Job{8, 4}, Job{9, 1}, Job{67}),
                         job_name);

TEST_P(Collectives, AllReduceAddsFloatsInTheOrderOfRanks) {
  check_all_reduce<float>(Element::kFloat32);
}

TEST_P(Collectives, AllReduceAddsDoublesInTheOrderOfRanks) {
  check_all_reduce<double>(Element::kFloat64);
}

TEST_P(Collectives, AllReduceAddsIntegers) {
  run([&](Communicator& workers) {
    std::vector<std::int64_t> values{workers.rank(), 1, std::int64_t{1} << 60};
    workers.all_reduce_now(std::span(values));
    EXPECT_EQ(values[0], size() * (size() - 1) / 2);
    EXPECT_EQ(values[1], size());
    EXPECT_EQ(static_cast<std::uint64_t>(values[2]),
              static_cast<std::uint64_t>(size()) << 60);  // wraps
  });
}

TEST_P(Collectives, AllReduceWithBfloat16OnTheWire) {
  const auto rounded = [](float value) { return base::to_float(base::to_bfloat16(value)); };
  run([&](Communicator& workers) {
    constexpr std::int64_t kCount = 3000;
    std::vector<float> values = values_of<float>(workers.rank(), kCount);
    const auto sum = workers.all_reduce(kCount, Element::kFloat32AsBfloat16);
    const auto exact = workers.all_reduce(kCount, Element::kFloat32);
    sum->run(values.data(), values.data());
    for (std::int64_t i = 0; i < kCount; ++i) {
      const auto element = [&](int rank, std::int64_t k) {
        const float value = element_of<float>(rank, k);
        return size() == 1 ? value : rounded(value);
      };
      float expected = ordered_sum<float>(size(), block_size(), i, element);
      if (size() > 1) expected = rounded(expected);
      ASSERT_TRUE(same_bits(values[static_cast<std::size_t>(i)], expected)) << i;
    }
    if (size() > 1 && block_size() == size()) {
      EXPECT_EQ(sum->bytes_sent() * 2, exact->bytes_sent());
    }
  });
}

TEST_P(Collectives, ReduceScatterGivesEachItsPiece) {
  run([&](Communicator& workers) {
    std::vector<std::int64_t> counts;  // 0, 7, 14, ...
    for (int rank = 0; rank < size(); ++rank) counts.push_back(rank * 7);
    const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    const std::vector<float> mine = values_of<float>(workers.rank(), total);
    const std::int64_t begin = 7 * workers.rank() * (workers.rank() - 1) / 2;
    const auto check = [&](const float* piece, auto element) {
      for (std::int64_t i = 0; i < 7 * workers.rank(); ++i) {
        const float expected = ordered_sum<float>(size(), block_size(), begin + i, element);
        ASSERT_TRUE(same_bits(piece[i], expected)) << i;
      }
    };
    std::vector<float> piece(static_cast<std::size_t>(workers.rank() * 7));
    workers.reduce_scatter(counts, Element::kFloat32)->run(mine.data(), piece.data());
    check(piece.data(), element_of<float>);
    std::vector<float> in_place = mine;
    workers.reduce_scatter(counts, Element::kFloat32)
        ->run(in_place.data(), in_place.data() + begin);
    check(in_place.data() + begin, element_of<float>);
    // The sum of what was rounded is not rounded.
    workers.reduce_scatter(counts, Element::kFloat32AsBfloat16)->run(mine.data(), piece.data());
    check(piece.data(), [&](int rank, std::int64_t i) {
      const float value = element_of<float>(rank, i);
      return size() == 1 ? value : base::to_float(base::to_bfloat16(value));
    });
  });
}

TEST_P(Collectives, AllGatherPutsPiecesInOrder) {
  run([&](Communicator& workers) {
    const std::string mine(static_cast<std::size_t>(workers.rank() % 3 * 5),
                           static_cast<char>('a' + workers.rank() % 26));
    const std::vector<std::string> all = workers.all_gather_texts(mine);
    ASSERT_EQ(std::ssize(all), size());
    for (int rank = 0; rank < size(); ++rank) {
      EXPECT_EQ(
          all[static_cast<std::size_t>(rank)],
          std::string(static_cast<std::size_t>(rank % 3 * 5), static_cast<char>('a' + rank % 26)));
    }
  });
}

TEST_P(Collectives, AllToAllWithCounts) {
  // Rank s sends r + 2 s integers s * 1000 + r to rank r.
  run([&](Communicator& workers) {
    const int rank = workers.rank();
    std::vector<std::int64_t> sent;
    std::vector<std::int64_t> received;
    std::vector<std::int32_t> input;
    std::vector<std::int32_t> expected;
    for (int peer = 0; peer < size(); ++peer) {
      sent.push_back((peer + 2 * rank) * 4);
      received.push_back((rank + 2 * peer) * 4);
      input.insert(input.end(), static_cast<std::size_t>(peer + 2 * rank), rank * 1000 + peer);
      expected.insert(expected.end(), static_cast<std::size_t>(rank + 2 * peer),
                      peer * 1000 + rank);
    }
    std::vector<std::int32_t> output(expected.size());
    workers.all_to_all(sent, received)->run(input.data(), output.data());
    EXPECT_EQ(output, expected);
  });
}

TEST_P(Collectives, BroadcastFromEveryRank) {
  run([&](Communicator& workers) {
    for (int root = 0; root < size(); root += 1 + size() / 5) {
      const std::string text = "the weights of rank " + std::to_string(workers.rank());
      EXPECT_EQ(workers.broadcast_text(text, root), "the weights of rank " + std::to_string(root));
    }
  });
}

TEST_P(Collectives, MessagesBetweenNeighboursKeepTheirOrder) {
  run([&](Communicator& workers) {
    if (size() == 1) return;
    const int next = (workers.rank() + 1) % size();
    const int previous = (workers.rank() + size() - 1) % size();
    const auto send = workers.send(4, next, 3);
    const auto receive = workers.receive(4, previous, 3);
    for (int i = 0; i < 5; ++i) {
      const std::int32_t mine = workers.rank() * 10 + i;
      std::int32_t theirs = -1;
      send->start(&mine, nullptr);
      receive->run(nullptr, &theirs);
      send->wait();
      EXPECT_EQ(theirs, previous * 10 + i);
    }
  });
}

TEST_P(Collectives, NobodyLeavesABarrierBeforeAllHaveEntered) {
  std::vector<std::atomic<int>> entered(20);
  run([&](Communicator& workers) {
    for (std::atomic<int>& round : entered) {
      ++round;
      workers.barrier_now();
      EXPECT_EQ(round, size());
    }
  });
}

TEST_P(Collectives, SeveralAtOnceCompletedInAnyOrder) {
  run([&](Communicator& workers) {
    std::vector<std::vector<double>> buckets;
    std::vector<std::unique_ptr<Collective>> sums;
    for (int b = 0; b < 6; ++b) {
      buckets.emplace_back(100 * b + 1, workers.rank() + b);
      sums.push_back(workers.all_reduce(100 * b + 1, Element::kFloat64));
    }
    for (int step = 0; step < 3; ++step) {
      for (std::size_t b = 0; b < 6; ++b) {
        for (double& value : buckets[b]) value = workers.rank() + step;
        sums[b]->start(buckets[b].data(), buckets[b].data());
        workers.progress();
      }
      for (std::size_t k = 0; k < 6; ++k) {
        const std::size_t b = (k * 5 + static_cast<std::size_t>(workers.rank())) % 6;
        sums[b]->wait();
        for (const double value : buckets[b]) {
          ASSERT_EQ(value, size() * (size() - 1) / 2 + size() * step);
        }
      }
      EXPECT_TRUE(workers.is_idle());
    }
  });
}

TEST(Ranks, KnowTheirPlaceOnTheirHost) {
  ThreadGroup group(5, {"a", "b", "a", "b", "b"});
  const std::vector<int> local_ranks{0, 0, 1, 1, 2};
  group.run([&](Communicator& workers) {
    const auto rank = static_cast<std::size_t>(workers.rank());
    EXPECT_EQ(workers.local_rank(), local_ranks[rank]);
    EXPECT_EQ(workers.local_size(), workers.hosts()[rank] == "a" ? 2 : 3);
    EXPECT_EQ(workers.rank_name(3), "rank 3 on host b");
    EXPECT_NEAR(workers.local_processors() * workers.local_size(), make_self()->local_processors(),
                1e-3);
  });
}

TEST(Divide, PiecesAreInUnitsAndComplete) {
  EXPECT_EQ(divide(100, 3, 16), (std::vector<std::int64_t>{32, 32, 36}));
  EXPECT_EQ(divide(0, 2), (std::vector<std::int64_t>{0, 0}));
  EXPECT_EQ(divide(5, 3, 16), (std::vector<std::int64_t>{0, 0, 5}));
  for (const int size : {1, 2, 7, 64, 1000}) {
    for (const std::int64_t count : {1, 15, 16, 1000, 123457}) {
      const auto pieces = divide(count, size);
      EXPECT_EQ(std::accumulate(pieces.begin(), pieces.end(), std::int64_t{0}), count);
    }
  }
}

TEST(Schedules, MessagesAreShortAndFew) {
  // 3 GB between two ranks: more than fits a message.
  const Schedule large = ScheduleBuilder(0, 2, 0).broadcast(3'000'000'000, 0);
  std::int64_t bytes = 0;
  for (const Message& message : large.phases[1].sends) {
    EXPECT_LE(message.slice.bytes, kMaxMessage);
    EXPECT_EQ(message.slice.offset, bytes);
    bytes += message.slice.bytes;
  }
  EXPECT_EQ(bytes, 3'000'000'000);
  // 1,024 ranks: blocks of 32; what is sent is 2 (n - 1) / n of the elements and little more.
  const std::int64_t count = 1 << 20;
  const Schedule wide = ScheduleBuilder(500, 1024, 0).all_reduce(count, Element::kFloat32);
  std::size_t messages = 0;
  for (const Phase& phase : wide.phases) messages += phase.sends.size();
  EXPECT_LE(messages, 130U);
  EXPECT_LE(wide.bytes_sent, 2 * count * 4 * 105 / 100);
}

}  // namespace collectives_test
}  // namespace onnxgrad::dist
