#include "ops/recurrent/cell_steps_simd.h"

#include <cstdint>
#include <limits>

#include "device/cpu/dispatch.h"
#include "device/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/recurrent/cell_steps_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "device/cpu/simd-inl.h"
#include "device/cpu/tile_functions-inl.h"
#include "ops/recurrent/quick_functions_simd.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::ops::recurrent::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace dn = onnxgrad::device::HWY_NAMESPACE;

template <class T>
HWY_INLINE Vector<T> set(double value) {
  return hn::Set(Tag<T>(), static_cast<T>(value));
}

// Access to a whole vector, or to the first lanes of one.
template <class T>
struct Whole {
  HWY_INLINE Vector<T> load(const T* from) const { return hn::LoadU(Tag<T>(), from); }
  HWY_INLINE void store(Vector<T> v, T* to) const { hn::StoreU(v, Tag<T>(), to); }
};

template <class T>
struct Part {
  hn::Mask<Tag<T>> mask;
  std::int64_t count;
  HWY_INLINE Vector<T> load(const T* from) const {
    return dn::load_first(Tag<T>(), mask, from, count);
  }
  HWY_INLINE void store(Vector<T> v, T* to) const { dn::store_first(v, Tag<T>(), mask, to, count); }
};

// Calls f(i, access) for the columns of a row.
template <class T, class F>
HWY_INLINE void visit_columns(std::int64_t columns, F f) {
  constexpr std::int64_t kLanes = hn::MaxLanes(Tag<T>());
  std::int64_t i = 0;
  for (; i + kLanes <= columns; i += kLanes) f(i, Whole<T>{});
  if (i == columns) return;
  f(i, Part<T>{hn::FirstN(Tag<T>(), static_cast<std::size_t>(columns - i)), columns - i});
}

// Not inlined: most models use none of these functions, and inlined they would cost registers.
template <class T>
HWY_NOINLINE Vector<T> value_of(const Activation& a, Vector<T> x) {
  const Tag<T> d;
  using V = Vector<T>;
  const V zero = hn::Zero(d);
  const V one = set<T>(1);
  switch (a.act) {
    case Act::kSigmoid:
      return dn::sigmoid_of(d, x);
    case Act::kTanh:
      return hn::Tanh(d, x);
    case Act::kRelu:
      return dn::max_or_nan(zero, x);
    case Act::kAffine:
      return hn::MulAdd(set<T>(a.alpha), x, set<T>(a.beta));
    case Act::kLeakyRelu:
      return hn::IfThenElse(hn::Lt(x, zero), hn::Mul(set<T>(a.alpha), x), x);
    case Act::kThresholdedRelu:
      return hn::IfThenElseZero(hn::Gt(x, set<T>(a.alpha)), x);
    case Act::kScaledTanh:
      return hn::Mul(set<T>(a.alpha), hn::Tanh(d, hn::Mul(set<T>(a.beta), x)));
    case Act::kHardSigmoid:
      return hn::Min(one, dn::max_or_nan(zero, hn::MulAdd(set<T>(a.alpha), x, set<T>(a.beta))));
    case Act::kElu: {
      const V below = hn::Mul(set<T>(a.alpha), hn::Expm1(d, hn::Min(x, zero)));
      return hn::IfThenElse(hn::Lt(x, zero), below, x);
    }
    case Act::kSoftsign:
      return hn::Div(x, hn::Add(one, hn::Abs(x)));
    case Act::kSoftplus:
      return dn::softplus_of(d, x);
  }
  return x;
}

// Returns the derivative at x, where y is the value.
template <class T>
HWY_NOINLINE Vector<T> slope_of(const Activation& a, Vector<T> x, Vector<T> y) {
  const Tag<T> d;
  using V = Vector<T>;
  const V zero = hn::Zero(d);
  const V one = set<T>(1);
  switch (a.act) {
    case Act::kSigmoid:
      return hn::Mul(y, hn::Sub(one, y));
    case Act::kTanh:
      return hn::NegMulAdd(y, y, one);
    case Act::kRelu:
      return hn::IfThenElseZero(hn::Gt(x, zero), one);
    case Act::kAffine:
      return set<T>(a.alpha);
    case Act::kLeakyRelu:
      return hn::IfThenElse(hn::Lt(x, zero), set<T>(a.alpha), one);
    case Act::kThresholdedRelu:
      return hn::IfThenElseZero(hn::Gt(x, set<T>(a.alpha)), one);
    case Act::kScaledTanh: {
      const V t = hn::Tanh(d, hn::Mul(set<T>(a.beta), x));
      return hn::Mul(set<T>(a.alpha * a.beta), hn::NegMulAdd(t, t, one));
    }
    case Act::kHardSigmoid:
      return hn::IfThenElseZero(hn::And(hn::Gt(y, zero), hn::Lt(y, one)), set<T>(a.alpha));
    case Act::kElu: {
      const V below = hn::Mul(set<T>(a.alpha), dn::exp_of(d, hn::Min(x, zero)));
      return hn::IfThenElse(hn::Lt(x, zero), below, one);
    }
    case Act::kSoftsign: {
      const V size = hn::Add(one, hn::Abs(x));
      return hn::Div(one, hn::Mul(size, size));
    }
    case Act::kSoftplus:
      return dn::sigmoid_of(d, x);
  }
  return one;
}

// Applies a function to its clipped argument.
template <class T>
struct AnyFunction {
  Activation activation;
  T clip;  // infinity: no clipping

  AnyFunction(const Activation& a, double bound)
      : activation(a),
        clip(bound > 0 ? static_cast<T>(bound) : std::numeric_limits<T>::infinity()) {}

  HWY_INLINE Vector<T> bounded(Vector<T> x) const {
    const auto bound = hn::Set(Tag<T>(), clip);
    const auto inside = hn::Min(hn::Max(x, hn::Neg(bound)), bound);
    return hn::IfThenElse(hn::IsNaN(x), x, inside);
  }
  HWY_INLINE Vector<T> value(Vector<T> x) const { return value_of<T>(activation, bounded(x)); }
  HWY_INLINE Vector<T> slope(Vector<T> x, Vector<T> y) const {
    const auto passes = hn::Le(hn::Abs(x), hn::Set(Tag<T>(), clip));
    return hn::IfThenElseZero(passes, slope_of<T>(activation, bounded(x), y));
  }
};

// Default activation functions, inlined.
template <class T>
struct SigmoidFunction {
  HWY_INLINE Vector<T> value(Vector<T> x) const {
    if constexpr (sizeof(T) == 4) {
      return quick_sigmoid(x);
    } else {
      return dn::sigmoid_of(Tag<T>(), x);
    }
  }
  HWY_INLINE Vector<T> slope(Vector<T> /*x*/, Vector<T> y) const {
    return hn::Mul(y, hn::Sub(set<T>(1), y));
  }
};

template <class T>
struct TanhFunction {
  HWY_INLINE Vector<T> value(Vector<T> x) const {
    if constexpr (sizeof(T) == 4) {
      return quick_tanh(x);
    } else {
      return hn::Tanh(Tag<T>(), x);
    }
  }
  HWY_INLINE Vector<T> slope(Vector<T> /*x*/, Vector<T> y) const {
    return hn::NegMulAdd(y, y, set<T>(1));
  }
};

// Function whose values are already in the gates.
template <class Function>
struct Known {
  Function function = {};

  template <class V>
  HWY_INLINE V value(V y) const {
    return y;
  }
  template <class V>
  HWY_INLINE V slope(V x, V y) const {
    return function.slope(x, y);
  }
};

bool are_usual(const CellFunctions& functions) {
  return functions.f.act == Act::kSigmoid && functions.g.act == Act::kTanh &&
         functions.h.act == Act::kTanh && functions.clip == 0;
}

template <class T, class F, class G, class H>
HWY_INLINE void lstm_forward(const F& f, const G& g, const H& h, bool coupled,
                             const LstmForward<T>& at) {
  const std::int64_t n = at.hidden;
  for (std::int64_t row = 0; row < at.rows; ++row) {
    T* gates = at.gates + row * 4 * n;
    visit_columns<T>(n, [&](std::int64_t i, const auto& access) HWY_ATTR {
      T* c_at = at.c + row * n + i;
      const auto before = access.load(c_at);
      auto s_i = access.load(gates + i);
      auto s_o = access.load(gates + n + i);
      auto s_u = access.load(gates + 2 * n + i);
      const auto s_n = access.load(gates + 3 * n + i);
      if (at.peepholes != nullptr) {
        s_i = hn::MulAdd(access.load(at.peepholes + i), before, s_i);
        s_u = hn::MulAdd(access.load(at.peepholes + 2 * n + i), before, s_u);
      }
      const auto gate_i = f.value(s_i);
      const auto gate_u = coupled ? hn::Sub(set<T>(1), gate_i) : f.value(s_u);
      const auto gate_n = g.value(s_n);
      const auto c = hn::MulAdd(gate_u, before, hn::Mul(gate_i, gate_n));
      if (at.peepholes != nullptr) s_o = hn::MulAdd(access.load(at.peepholes + n + i), c, s_o);
      const auto gate_o = f.value(s_o);
      const auto y = hn::Mul(gate_o, h.value(c));
      if (at.keeps_values) {
        access.store(gate_i, gates + i);
        access.store(gate_o, gates + n + i);
        access.store(gate_u, gates + 2 * n + i);
        access.store(gate_n, gates + 3 * n + i);
      }
      access.store(c, c_at);
      access.store(y, at.h + row * n + i);
      if (at.y != nullptr) access.store(y, at.y + row * n + i);
      if (at.cells != nullptr) access.store(c, at.cells + row * n + i);
    });
  }
}

template <class T, class F, class G, class H>
HWY_INLINE void lstm_backward(const F& f, const G& g, const H& h, bool coupled,
                              const LstmBackward<T>& at) {
  constexpr std::int64_t kLanes = hn::MaxLanes(Tag<T>());
  const std::int64_t n = at.hidden;
  for (std::int64_t row = 0; row < at.rows; ++row) {
    const T* gates = at.gates + row * 4 * n;
    T* dgates = at.dgates + row * 4 * n;
    visit_columns<T>(n, [&](std::int64_t i, const auto& access) HWY_ATTR {
      const std::int64_t k = row * n + i;
      for (std::int64_t gate = 4; gate < 8; ++gate) {  // prefetch the next row
        __builtin_prefetch(gates + gate * n + i);
        __builtin_prefetch(dgates + gate * n + i, 1);
      }
      const auto c = access.load(at.cells + k);
      const auto before = at.before == nullptr ? set<T>(0) : access.load(at.before + k);
      auto s_i = access.load(gates + i);
      auto s_o = access.load(gates + n + i);
      auto s_u = access.load(gates + 2 * n + i);
      const auto s_n = access.load(gates + 3 * n + i);
      if (at.peepholes != nullptr) {
        s_i = hn::MulAdd(access.load(at.peepholes + i), before, s_i);
        s_o = hn::MulAdd(access.load(at.peepholes + n + i), c, s_o);
        s_u = hn::MulAdd(access.load(at.peepholes + 2 * n + i), before, s_u);
      }
      const auto gate_o = f.value(s_o);
      const auto squashed = h.value(c);
      auto dh = access.load(at.dh + k);
      if (at.dy != nullptr) dh = hn::Add(dh, access.load(at.dy + k));
      const auto ds_o = hn::Mul(hn::Mul(dh, squashed), f.slope(s_o, gate_o));
      auto dc = hn::MulAdd(hn::Mul(dh, gate_o), h.slope(c, squashed), access.load(at.dc + k));
      if (at.peepholes != nullptr) dc = hn::MulAdd(ds_o, access.load(at.peepholes + n + i), dc);
      const auto gate_i = f.value(s_i);
      const auto gate_n = g.value(s_n);
      auto gate_u = hn::Sub(set<T>(1), gate_i);
      auto di = gate_n;
      auto ds_u = set<T>(0);
      if (coupled) {
        di = hn::Sub(gate_n, before);
      } else {
        gate_u = f.value(s_u);
        ds_u = hn::Mul(hn::Mul(dc, before), f.slope(s_u, gate_u));
      }
      const auto ds_i = hn::Mul(hn::Mul(dc, di), f.slope(s_i, gate_i));
      const auto ds_n = hn::Mul(hn::Mul(dc, gate_i), g.slope(s_n, gate_n));
      auto dc_before = hn::Mul(dc, gate_u);
      if (at.peepholes != nullptr) {
        dc_before = hn::MulAdd(ds_i, access.load(at.peepholes + i), dc_before);
        dc_before = hn::MulAdd(ds_u, access.load(at.peepholes + 2 * n + i), dc_before);
      }
      access.store(dc_before, at.dc + k);
      access.store(ds_i, dgates + i);
      access.store(ds_o, dgates + n + i);
      access.store(ds_u, dgates + 2 * n + i);
      access.store(ds_n, dgates + 3 * n + i);
      if (at.panels == nullptr) return;
      T* panel = at.panels + row * kLanes + i / kLanes * at.panel_size;
      const std::int64_t next = n / kLanes * at.panel_size;
      access.store(ds_i, panel);
      access.store(ds_o, panel + next);
      access.store(ds_u, panel + 2 * next);
      access.store(ds_n, panel + 3 * next);
    });
  }
}

template <class T, class F>
HWY_INLINE void gru_reset(const F& f, const GruForward<T>& at, T* q) {
  const std::int64_t n = at.hidden;
  for (std::int64_t row = 0; row < at.rows; ++row) {
    const T* gates = at.gates + row * 3 * n;
    visit_columns<T>(n, [&](std::int64_t i, const auto& access) HWY_ATTR {
      const auto r = f.value(access.load(gates + n + i));
      access.store(hn::Mul(r, access.load(at.h + row * n + i)), q + row * n + i);
    });
  }
}

template <class T, class F, class G>
HWY_INLINE void gru_forward(const F& f, const G& g, const GruForward<T>& at) {
  const std::int64_t n = at.hidden;
  for (std::int64_t row = 0; row < at.rows; ++row) {
    const T* gates = at.gates + row * 3 * n;
    visit_columns<T>(n, [&](std::int64_t i, const auto& access) HWY_ATTR {
      const std::int64_t k = row * n + i;
      const auto z = f.value(access.load(gates + i));
      auto s_n = access.load(gates + 2 * n + i);
      if (at.linear != nullptr) {
        s_n = hn::MulAdd(f.value(access.load(gates + n + i)), access.load(at.linear + k), s_n);
      }
      const auto gate_n = g.value(s_n);
      const auto y = hn::MulAdd(z, hn::Sub(access.load(at.h + k), gate_n), gate_n);
      access.store(y, at.h + k);
      if (at.y != nullptr) access.store(y, at.y + k);
    });
  }
}

template <class T, class F, class G>
HWY_INLINE void gru_backward(const F& f, const G& g, const GruBackward<T>& at) {
  const std::int64_t n = at.hidden;
  for (std::int64_t row = 0; row < at.rows; ++row) {
    const T* gates = at.gates + row * 3 * n;
    T* dzr = at.dzr + row * 2 * n;
    visit_columns<T>(n, [&](std::int64_t i, const auto& access) HWY_ATTR {
      const std::int64_t k = row * n + i;
      const auto s_z = access.load(gates + i);
      const auto s_r = access.load(gates + n + i);
      auto s_n = access.load(gates + 2 * n + i);
      const auto z = f.value(s_z);
      auto dh = access.load(at.dh + k);
      if (at.dy != nullptr) dh = hn::Add(dh, access.load(at.dy + k));
      auto r = set<T>(0);
      auto m = set<T>(0);
      if (at.linear != nullptr) {
        r = f.value(s_r);
        m = access.load(at.linear + k);
        s_n = hn::MulAdd(r, m, s_n);
      }
      const auto gate_n = g.value(s_n);
      const auto dz = hn::Mul(dh, hn::Sub(access.load(at.before + k), gate_n));
      const auto dn = hn::Mul(hn::Mul(dh, hn::Sub(set<T>(1), z)), g.slope(s_n, gate_n));
      access.store(hn::Mul(dh, z), at.dh + k);
      access.store(hn::Mul(dz, f.slope(s_z, z)), dzr + i);
      access.store(dn, at.dn + k);
      if (at.linear != nullptr) {
        access.store(hn::Mul(hn::Mul(dn, m), f.slope(s_r, r)), dzr + n + i);
        access.store(hn::Mul(dn, r), at.dm + k);
      }
    });
  }
}

template <class T, class F>
HWY_INLINE void gru_reset_back(const F& f, const GruBackward<T>& at) {
  const std::int64_t n = at.hidden;
  for (std::int64_t row = 0; row < at.rows; ++row) {
    const T* gates = at.gates + row * 3 * n;
    visit_columns<T>(n, [&](std::int64_t i, const auto& access) HWY_ATTR {
      const std::int64_t k = row * n + i;
      const auto s_r = access.load(gates + n + i);
      const auto r = f.value(s_r);
      const auto before = access.load(at.before + k);
      const auto dq = access.load(at.dq + k);
      access.store(hn::Mul(hn::Mul(dq, before), f.slope(s_r, r)), at.dzr + row * 2 * n + n + i);
      access.store(hn::MulAdd(dq, r, access.load(at.dh + k)), at.dh + k);
      access.store(hn::Mul(r, before), at.q + k);
    });
  }
}

template <class T, class F>
HWY_INLINE void rnn_forward(const F& f, const RnnStep<T>& at) {
  visit_columns<T>(at.rows * at.hidden, [&](std::int64_t i, const auto& access) HWY_ATTR {
    const auto y = f.value(access.load(at.gates + i));
    access.store(y, at.h + i);
    if (at.y != nullptr) access.store(y, at.y + i);
  });
}

template <class T, class F>
HWY_INLINE void rnn_backward(const F& f, const RnnStep<T>& at) {
  visit_columns<T>(at.rows * at.hidden, [&](std::int64_t i, const auto& access) HWY_ATTR {
    const auto s = access.load(at.gates + i);
    auto dh = access.load(at.dh + i);
    if (at.dy != nullptr) dh = hn::Add(dh, access.load(at.dy + i));
    access.store(hn::Mul(dh, f.slope(s, f.value(s))), at.dgates + i);
  });
}

template <class T>
HWY_ATTR void column_sums(const T* x, std::int64_t x_row, const T* y, std::int64_t rows,
                          std::int64_t columns, T* sums) {
  visit_columns<T>(columns, [&](std::int64_t i, const auto& access) HWY_ATTR {
    auto sum = set<T>(0);
    if (y == nullptr) {
      for (std::int64_t row = 0; row < rows; ++row) {
        sum = hn::Add(sum, access.load(x + row * x_row + i));
      }
    } else {
      for (std::int64_t row = 0; row < rows; ++row) {
        sum = hn::MulAdd(access.load(x + row * x_row + i), access.load(y + row * columns + i), sum);
      }
    }
    access.store(hn::Add(access.load(sums + i), sum), sums + i);
  });
}

template <class T>
HWY_ATTR void any_lstm(const CellFunctions& functions, const LstmForward<T>& at) {
  if (are_usual(functions)) {
    lstm_forward(SigmoidFunction<T>(), TanhFunction<T>(), TanhFunction<T>(), functions.input_forget,
                 at);
  } else {
    lstm_forward(AnyFunction<T>(functions.f, functions.clip),
                 AnyFunction<T>(functions.g, functions.clip), AnyFunction<T>(functions.h, 0),
                 functions.input_forget, at);
  }
}

template <class T>
HWY_ATTR void any_lstm_back(const CellFunctions& functions, const LstmBackward<T>& at) {
  if (at.has_values) {
    lstm_backward(Known<SigmoidFunction<T>>(), Known<TanhFunction<T>>(), TanhFunction<T>(),
                  functions.input_forget, at);
  } else if (are_usual(functions)) {
    lstm_backward(SigmoidFunction<T>(), TanhFunction<T>(), TanhFunction<T>(),
                  functions.input_forget, at);
  } else {
    lstm_backward(AnyFunction<T>(functions.f, functions.clip),
                  AnyFunction<T>(functions.g, functions.clip), AnyFunction<T>(functions.h, 0),
                  functions.input_forget, at);
  }
}

template <class T>
HWY_ATTR void any_gru(const CellFunctions& functions, const GruForward<T>& at) {
  if (are_usual(functions)) {
    gru_forward(SigmoidFunction<T>(), TanhFunction<T>(), at);
  } else {
    gru_forward(AnyFunction<T>(functions.f, functions.clip),
                AnyFunction<T>(functions.g, functions.clip), at);
  }
}

template <class T>
HWY_ATTR void any_gru_back(const CellFunctions& functions, const GruBackward<T>& at) {
  if (are_usual(functions)) {
    gru_backward(SigmoidFunction<T>(), TanhFunction<T>(), at);
  } else {
    gru_backward(AnyFunction<T>(functions.f, functions.clip),
                 AnyFunction<T>(functions.g, functions.clip), at);
  }
}

template <class T>
HWY_ATTR void any_reset(const CellFunctions& functions, const GruForward<T>& at, T* q) {
  gru_reset(AnyFunction<T>(functions.f, functions.clip), at, q);
}

template <class T>
HWY_ATTR void any_reset_back(const CellFunctions& functions, const GruBackward<T>& at) {
  gru_reset_back(AnyFunction<T>(functions.f, functions.clip), at);
}

template <class T>
HWY_ATTR void any_rnn(const CellFunctions& functions, const RnnStep<T>& at) {
  rnn_forward(AnyFunction<T>(functions.f, functions.clip), at);
}

template <class T>
HWY_ATTR void any_rnn_back(const CellFunctions& functions, const RnnStep<T>& at) {
  rnn_backward(AnyFunction<T>(functions.f, functions.clip), at);
}

template <class T>
StepTable<T> make_table() {
  return {.lstm = any_lstm<T>,
          .lstm_back = any_lstm_back<T>,
          .gru = any_gru<T>,
          .gru_reset = any_reset<T>,
          .gru_back = any_gru_back<T>,
          .gru_reset_back = any_reset_back<T>,
          .rnn = any_rnn<T>,
          .rnn_back = any_rnn_back<T>,
          .column_sums = column_sums<T>};
}

const StepTable<float>* float_table() {
  static const StepTable<float> table = make_table<float>();
  return &table;
}

const StepTable<double>* double_table() {
  static const StepTable<double> table = make_table<double>();
  return &table;
}

}  // namespace onnxgrad::ops::recurrent::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::ops::recurrent {

HWY_EXPORT(float_table);
HWY_EXPORT(double_table);

template <>
const StepTable<float>& step_table<float>(device::Isa isa) {
  return *device::chosen(HWY_DISPATCH_TABLE(float_table), isa)();
}

template <>
const StepTable<double>& step_table<double>(device::Isa isa) {
  return *device::chosen(HWY_DISPATCH_TABLE(double_table), isa)();
}

}  // namespace onnxgrad::ops::recurrent
#endif  // HWY_ONCE
