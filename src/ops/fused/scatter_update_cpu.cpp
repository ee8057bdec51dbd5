#include <fmt/format.h>
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "device/cpu/scratch_layout.h"
#include "device/cpu/threads.h"
#include "device/cpu/update.h"
#include "device/cpu_options.h"
#include "ir/builder.h"
#include "opdef/fused.h"
#include "opdef/kernel.h"
#include "opdef/scatter_update.h"
#include "ops/fused/part_update_cpu.h"
#include "ops/kernel_support.h"

// onnxgrad.fused.ScatterWeightUpdate and ScatterDescent. The positions at which a row of the weight
// occurs among the indices form a linked list (ScatterLists); the gradient of a row is summed in
// their order, as a scatter into a dense gradient would, and is passed to the update at once.
// Threads split the rows of the weight.

namespace onnxgrad::ops::scatter_update_cpu {
namespace {

using device::UpdateArrays;
using device::UpdateFn;
using opdef::WeightUpdate;

constexpr std::int64_t kParallelElements = 1 << 16;  // minimum per thread
constexpr std::int32_t kNone = -1;

/// Linked lists: for each row of the weight its first position among the indices, for each position
/// the next.
struct ScatterLists {
  std::int32_t* first = nullptr;  ///< [rows]
  std::int32_t* next = nullptr;   ///< [places]
};

template <class T>
struct ScatterData {
  WeightUpdate spec;
  UpdateFn<T> update = nullptr;
  bool is_descent = false;
  std::int64_t rows = 0, columns = 0, places = 0;
  int threads = 1;
  UpdatePlaces at;
  device::ScratchArray<std::int32_t> first = {}, next = {};  ///< ScatterLists
  device::ScratchBlocks thread_rows = {};
  IndexSource source;
};

/// Builds the lists, in ascending order. All indices are checked before anything is written: the
/// Gather of the forward pass has done so.
template <class T>
ScatterLists link(const ScatterData<T>& data, const std::int64_t* indices, std::byte* scratch) {
  const ScatterLists lists{data.first.in(scratch), data.next.in(scratch)};
  std::fill_n(lists.first, data.rows, kNone);
  for (std::int64_t place = data.places - 1; place >= 0; --place) {
    const std::int64_t row = checked_index(indices[place], data.rows, data.source, place);
    lists.next[place] = lists.first[row];
    lists.first[row] = static_cast<std::int32_t>(place);
  }
  return lists;
}

/// Computes sum = the gradient rows of a list, added in their order.
template <class T>
void sum_rows(const ScatterLists& lists, std::int32_t place, const T* rows, std::int64_t columns,
              T* sum) {
  std::fill_n(sum, columns, T(0));
  for (; place != kNone; place = lists.next[place]) {
    const T* row = rows + place * columns;
    for (std::int64_t j = 0; j < columns; ++j) sum[j] += row[j];
  }
}

template <class T>
struct Step {
  const ScatterData<T>& data;
  ScatterLists lists;
  const T* rows = nullptr;
  UpdateArrays<T> arrays;

  /// Updates rows [begin, end) of the weight; `scratch` holds two rows.
  void run(std::int64_t begin, std::int64_t end, T* scratch) const {
    if (begin >= end) return;
    T* sum = scratch;
    T* zeros = scratch + data.columns;
    std::fill_n(zeros, data.columns, T(0));
    for (std::int64_t row = begin; row < end;) {
      std::int64_t same = row;
      while (same < end && lists.first[same] == kNone) ++same;
      if (same > row) {
        if (!data.is_descent) update_rows(row, same - row, zeros);
        row = same;
        continue;
      }
      sum_rows(lists, lists.first[row], rows, data.columns, sum);
      update_rows(row, 1, sum);
      ++row;
    }
  }

 private:
  /// Updates `count` rows of the weight with one gradient.
  void update_rows(std::int64_t row, std::int64_t count, const T* gradient) const {
    UpdateArrays<T> part = arrays.from(row * data.columns, data.columns);
    part.gradient = gradient;
    part.rows = count;
    part.row = data.columns;
    data.update(data.spec, part);
  }
};

template <class T>
void run_scatter_update(const ScatterData<T>& data, KernelArgs args) {
  std::byte* scratch = args[data.at.scratch];
  const Step<T> step{.data = data,
                     .lists = link(data, args.at<const std::int64_t>(0), scratch),
                     .rows = args.at<const T>(1),
                     .arrays = data.at.template arrays<T>(args)};
  if (data.is_descent && args[data.at.w] != args[data.at.new_w]) {
    std::memcpy(args[data.at.new_w], args[data.at.w],
                static_cast<std::size_t>(data.rows * data.columns) * sizeof(T));
  }
  const auto own_rows = [&](std::int64_t thread) {
    return reinterpret_cast<T*>(data.thread_rows.in(scratch, thread));
  };
  const std::int64_t chunks = device::chunks_of(data.threads, data.rows);
  device::on_threads(data.threads, chunks, [&](const device::Chunk& chunk) {
    step.run(chunk.first(data.rows), chunk.last(data.rows), own_rows(chunk.thread));
  });
}

template <class T>
KernelOffer offer_typed(const KernelRequest& request, bool is_descent) {
  auto data = std::make_shared<ScatterData<T>>();
  data->is_descent = is_descent;
  if (!is_descent) data->spec = WeightUpdate::read(request.node);
  const device::Isa isa = device::isa_of(request);
  data->update =
      is_descent ? device::find_descent<T>(isa) : device::find_update<T>(isa, data->spec);
  data->at = UpdatePlaces::of(is_descent ? nullptr : &data->spec, request, 2);
  const Dims& dims = request.outputs[0].dims;
  data->rows = dims[0];
  data->columns = dims.product(1, dims.rank());
  data->places = request.inputs[0].dims.num_elements();
  data->source = index_source(request, 0);
  const std::int64_t touched = is_descent ? data->places * data->columns : dims.num_elements();
  data->threads =
      static_cast<int>(std::clamp<std::int64_t>(touched / kParallelElements, 1, request.threads));
  device::ScratchLayout all, own;
  data->first = all.reserve<std::int32_t>(data->rows);
  data->next = all.reserve<std::int32_t>(data->places);
  own.reserve<T>(2 * data->columns);
  data->thread_rows = all.reserve_blocks(data->threads, own);
  KernelOffer offer;
  offer.kernel.fn = kKernel<run_scatter_update<T>>;
  offer.kernel.scratch_bytes = all.size_bytes();
  offer.kernel.label = fmt::format(
      "{} of {} rows in {}", is_descent ? "descent" : opdef::update_rule_name(data->spec.rule),
      data->places, dims.to_string());
  offer.kernel.in_place = data->at.in_place();
  offer.kernel.data = std::move(data);
  return offer;
}

KernelOffer offer_any(const KernelRequest& request, bool is_descent) {
  const Dims& dims = request.outputs[0].dims;
  const TensorDesc& rows = request.inputs[1];
  const std::int64_t places = request.inputs[0].dims.num_elements();
  if (dims.rank() < 1 || rows.dims.num_elements() != places * dims.product(1, dims.rank())) {
    return KernelOffer::decline(request.node.describe() + ": shapes do not match");
  }
  if (std::max(dims[0], places) > INT32_MAX) {
    return KernelOffer::decline("more rows than a 32-bit number counts");
  }
  const DataType dtype = request.outputs[0].dtype;
  if (rows.dtype != dtype) return decline_dtype(request, rows.dtype);
  if (dtype == DataType::kFloat32) return offer_typed<float>(request, is_descent);
  if (dtype == DataType::kFloat64) return offer_typed<double>(request, is_descent);
  return decline_dtype(request, dtype);
}

KernelOffer offer_weight_update(const KernelRequest& request) {
  return offer_any(request, /*is_descent=*/false);
}

KernelOffer offer_descent(const KernelRequest& request) {
  return offer_any(request, /*is_descent=*/true);
}

}  // namespace

void register_scatter_update_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kScatterWeightUpdate, 1, offer_weight_update);
  registry.add(ir::kFusedDomain, opdef::kScatterDescent, 1, offer_descent);
}

}  // namespace onnxgrad::ops::scatter_update_cpu
