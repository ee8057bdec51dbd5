// A ruler, not an engine: the w2_mlp training step (100-50-10-1, ReLU, squared error, batch 15,
// plain SGD) written by hand over matrix libraries, on one thread: what a compiled plan can hope
// for on this model. run.py builds it:
//
//   g++ -O3 -march=native -std=c++20 -ffast-math floor.cpp -I/usr/include/eigen3 -o floor
//       -lxsmm -lxsmmext -lxsmmnoblas -lpthread -ldl
//
// Debian: libxsmm-dev, and libeigen3-dev if Eigen is to be measured too. The steps go round over 50
// batches, as an epoch of w2_mlp does. Prints, as JSON, the shortest of 7 times 5000 steps in
// microseconds per step.
#include <libxsmm.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <random>
#include <vector>
#if __has_include(<Eigen/Dense>)
#include <Eigen/Dense>
#define FLOOR_HAS_EIGEN 1
#endif

constexpr int kBatch = 15, kBatches = 50, kLayers = 3, kSteps = 5000, kRepeats = 7;
constexpr std::array<int, 4> kWidth = {100, 50, 10, 1};
constexpr float kRate = 1e-5F;

struct Mlp {
  // Layer l maps activation l [kBatch, kWidth[l]] to activation l + 1; activation 0 is a batch of
  // `inputs`.
  std::array<std::vector<float>, kLayers> weight, bias, weight_grad, bias_grad;
  std::array<std::vector<float>, kLayers + 1> activation, grad;
  std::vector<float> inputs, targets;  // [kBatches * kBatch, 100], [kBatches * kBatch]

  Mlp() : inputs(kBatches * kBatch * kWidth[0]), targets(kBatches * kBatch) {
    std::mt19937 generator(0);
    std::normal_distribution<float> normal(0, 0.1F);
    for (int l = 0; l < kLayers; ++l) {
      weight[l].resize(static_cast<std::size_t>(kWidth[l] * kWidth[l + 1]));
      std::generate(weight[l].begin(), weight[l].end(), [&] { return normal(generator); });
      weight_grad[l].resize(weight[l].size());
      bias[l].resize(kWidth[l + 1]);
      bias_grad[l].resize(kWidth[l + 1]);
    }
    for (int l = 0; l <= kLayers; ++l) {
      activation[l].resize(kBatch * kWidth[l]);
      grad[l].resize(kBatch * kWidth[l]);
    }
    std::generate(inputs.begin(), inputs.end(), [&] { return normal(generator); });
    std::generate(targets.begin(), targets.end(), [&] { return normal(generator); });
  }
};

// gemm(layer, kind, m, n, k, a, b, c): row-major c[m, n] = a b (kForward), a^T b (kWeight), a b^T
// (kInput).
enum Kind { kForward, kWeight, kInput };

template <class Gemm>
void forward(Mlp& net, const float* input, const Gemm& gemm) {
  for (int l = 0; l < kLayers; ++l) {
    const int n = kWidth[l + 1];
    float* out = net.activation[l + 1].data();
    gemm(l, kForward, kBatch, n, kWidth[l], l == 0 ? input : net.activation[l].data(),
         net.weight[l].data(), out);
    for (int i = 0; i < kBatch; ++i) {
      for (int j = 0; j < n; ++j) {
        const float value = out[i * n + j] + net.bias[l][j];
        out[i * n + j] = l + 1 < kLayers ? std::max(value, 0.0F) : value;
      }
    }
  }
}

template <class Gemm>
void backward_and_update(Mlp& net, const float* input, const Gemm& gemm) {
  for (int l = kLayers - 1; l >= 0; --l) {
    const int m = kWidth[l], n = kWidth[l + 1];
    const float* upstream = net.grad[l + 1].data();
    const float* in = l == 0 ? input : net.activation[l].data();
    gemm(l, kWeight, m, n, kBatch, in, upstream, net.weight_grad[l].data());
    std::fill(net.bias_grad[l].begin(), net.bias_grad[l].end(), 0.0F);
    for (int i = 0; i < kBatch; ++i)
      for (int j = 0; j < n; ++j) net.bias_grad[l][j] += upstream[i * n + j];
    if (l > 0) {
      gemm(l, kInput, kBatch, m, n, upstream, net.weight[l].data(), net.grad[l].data());
      for (int i = 0; i < kBatch * m; ++i) net.grad[l][i] = in[i] > 0 ? net.grad[l][i] : 0;
    }
    for (std::size_t i = 0; i < net.weight[l].size(); ++i)
      net.weight[l][i] -= kRate * net.weight_grad[l][i];
    for (int j = 0; j < n; ++j) net.bias[l][j] -= kRate * net.bias_grad[l][j];
  }
}

template <class Gemm>
void step(Mlp& net, int batch, const Gemm& gemm) {
  const float* input = net.inputs.data() + batch * kBatch * kWidth[0];
  const float* target = net.targets.data() + batch * kBatch;
  forward(net, input, gemm);
  for (int i = 0; i < kBatch; ++i)
    net.grad[kLayers][i] = 2.0F / kBatch * (net.activation[kLayers][i] - target[i]);
  backward_and_update(net, input, gemm);
}

template <class Gemm>
double step_us(const Gemm& gemm) {
  Mlp net;
  double best = 1e9;
  for (int i = 0; i < 200; ++i) step(net, i % kBatches, gemm);
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kSteps; ++i) step(net, i % kBatches, gemm);
    const std::chrono::duration<double, std::micro> elapsed =
        std::chrono::steady_clock::now() - start;
    best = std::min(best, elapsed.count() / kSteps);
  }
  return best;
}

void plain(int, Kind kind, int m, int n, int k, const float* a, const float* b, float* c) {
  for (int i = 0; i < m; ++i) {
    std::fill(c + i * n, c + i * n + n, 0.0F);
    for (int p = 0; p < k; ++p) {
      const float left = kind == kWeight ? a[p * m + i] : a[i * k + p];
      for (int j = 0; j < n; ++j)
        c[i * n + j] += left * (kind == kInput ? b[j * k + p] : b[p * n + j]);
    }
  }
}

#ifdef FLOOR_HAS_EIGEN
void eigen(int, Kind kind, int m, int n, int k, const float* a, const float* b, float* c) {
  using Matrix = Eigen::Matrix<float, -1, -1, Eigen::RowMajor>;
  using View = Eigen::Map<const Matrix>;
  Eigen::Map<Matrix> out(c, m, n);
  if (kind == kForward) out.noalias() = View(a, m, k) * View(b, k, n);
  if (kind == kWeight) out.noalias() = View(a, k, m).transpose() * View(b, k, n);
  if (kind == kInput) out.noalias() = View(a, m, k) * View(b, n, k).transpose();
}
#endif

// libxsmm is column-major, so it is asked for c^T = b^T a^T. It has no kernel for a transposed
// second operand of this kind: kInput, the smallest of the three, is the plain loop.
class Xsmm {
 public:
  Xsmm() {
    libxsmm_init();
    const float one = 1, zero = 0;
    for (int l = 0; l < kLayers; ++l) {
      const int m = kWidth[l], n = kWidth[l + 1];
      int flags = LIBXSMM_GEMM_FLAG_NONE;
      forward_[l] = libxsmm_smmdispatch(n, kBatch, m, &n, &m, &n, &one, &zero, &flags, nullptr);
      flags = LIBXSMM_GEMM_FLAG_TRANS_B;
      weight_[l] = libxsmm_smmdispatch(n, m, kBatch, &n, &m, &n, &one, &zero, &flags, nullptr);
    }
  }

  void operator()(int l, Kind kind, int m, int n, int k, const float* a, const float* b,
                  float* c) const {
    if (kind == kForward) return forward_[l](b, a, c);
    if (kind == kWeight) return weight_[l](b, a, c);
    plain(l, kind, m, n, k, a, b, c);
  }

 private:
  std::array<libxsmm_smmfunction, kLayers> forward_, weight_;
};

int main() {
  std::printf("{\"libxsmm\": %.3f", step_us(Xsmm()));
#ifdef FLOOR_HAS_EIGEN
  std::printf(", \"eigen\": %.3f", step_us(eigen));
#endif
  std::printf(", \"plain\": %.3f}\n", step_us(plain));
}
