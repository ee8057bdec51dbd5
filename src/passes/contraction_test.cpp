#include "passes/contraction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <vector>

namespace onnxgrad::passes {
namespace {

using ir::Node;
using ir::Value;

// A graph of nodes that only have edges.
class Edges {
 public:
  explicit Edges(std::size_t count) : reads_(count) {}

  void read(std::size_t node, std::size_t producer) { reads_[node].push_back(producer); }

  void build() {
    for (const std::vector<std::size_t>& producers : reads_) {
      std::vector<Value*> inputs;
      for (const std::size_t i : producers) inputs.push_back(graph.nodes[i]->outputs[0]);
      graph.add_node("Node", inputs, 1);
    }
  }

  // True if the units, given by number for each node, have no cycle: they can be taken away one
  // after the other, always one that reads no other that is left.
  bool is_acyclic(const std::vector<std::size_t>& unit) const {
    std::vector<bool> is_left(reads_.size(), true);
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t u = 0; u < reads_.size(); ++u) {
        bool is_member = false;
        bool waits = false;
        for (std::size_t i = 0; i < reads_.size(); ++i) {
          if (unit[i] != u || !is_left[i]) continue;
          is_member = true;
          for (const std::size_t j : reads_[i]) waits = waits || (unit[j] != u && is_left[j]);
        }
        if (!is_member || waits) continue;
        for (std::size_t i = 0; i < reads_.size(); ++i) {
          if (unit[i] == u) is_left[i] = false;
        }
        changed = true;
      }
    }
    return std::ranges::none_of(is_left, [](bool left) { return left; });
  }

  ir::Graph graph;

 private:
  std::vector<std::vector<std::size_t>> reads_;
};

TEST(Contraction, MergesNeighboursButNoPathAround) {
  Edges edges(3);  // 0 -> 1 -> 2, 0 -> 2
  edges.read(1, 0);
  edges.read(2, 1);
  edges.read(2, 0);
  edges.build();
  const std::vector<Node*>& nodes = edges.graph.nodes;
  Contraction contraction(edges.graph);
  EXPECT_FALSE(contraction.merge(nodes[0], nodes[2]));
  EXPECT_TRUE(contraction.merge(nodes[0], nodes[1]));
  EXPECT_TRUE(contraction.merge(nodes[2], nodes[0]));
}

// The path leads over a unit whose members lie on both sides of the nodes in question.
TEST(Contraction, APathMayLeadOverANodeThatComesEarlier) {
  Edges edges(5);
  edges.read(1, 0);  // 1 reads the unit {0, 3}, which reads 2
  edges.read(3, 2);
  edges.read(4, 1);
  edges.read(4, 2);
  edges.build();
  const std::vector<Node*>& nodes = edges.graph.nodes;
  Contraction contraction(edges.graph);
  EXPECT_TRUE(contraction.merge(nodes[0], nodes[3]));
  EXPECT_FALSE(contraction.merge(nodes[2], nodes[4]));
}

TEST(Contraction, AgreesWithTheDefinitionOnRandomGraphs) {
  std::mt19937 random(7);
  const auto below = [&random](std::size_t n) { return random() % n; };
  int merges = 0;
  int refusals = 0;
  for (int round = 0; round < 200; ++round) {
    const std::size_t count = 4 + below(20);
    Edges edges(count);
    for (std::size_t i = 1; i < count; ++i) {
      for (std::size_t k = below(3); k > 0; --k) edges.read(i, i - 1 - below(std::min(i, count)));
    }
    edges.build();
    Contraction contraction(edges.graph);
    std::vector<std::size_t> unit(count);
    for (std::size_t i = 0; i < count; ++i) unit[i] = i;
    for (int attempt = 0; attempt < 30; ++attempt) {
      const std::size_t a = below(count);
      const std::size_t b = below(count);
      std::vector<std::size_t> merged = unit;
      std::ranges::replace(merged, unit[b], unit[a]);
      const bool expected = edges.is_acyclic(merged);
      ASSERT_EQ(contraction.merge(edges.graph.nodes[a], edges.graph.nodes[b]), expected)
          << "round " << round << ": " << a << " and " << b;
      if (expected) unit = merged;
      (expected ? merges : refusals) += 1;
    }
  }
  EXPECT_GT(merges, 1000);
  EXPECT_GT(refusals, 1000);
}

// 100,000 nodes in a row: every merge looks at its neighbours only.
TEST(Contraction, LongChainsAreMergedInLinearTime) {
  constexpr std::size_t kCount = 100'000;
  Edges edges(kCount);
  for (std::size_t i = 1; i < kCount; ++i) edges.read(i, i - 1);
  edges.build();
  Contraction contraction(edges.graph);
  const std::vector<Node*>& nodes = edges.graph.nodes;
  for (std::size_t i = 1; i < kCount; ++i) {
    if (i % 40 == 0) continue;
    ASSERT_TRUE(contraction.merge(nodes[i - 1], nodes[i]));
  }
  EXPECT_FALSE(contraction.merge(nodes[0], nodes[kCount - 1]));
}

}  // namespace
}  // namespace onnxgrad::passes
