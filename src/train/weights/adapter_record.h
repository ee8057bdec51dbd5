#ifndef ONNXGRAD_TRAIN_ADAPTER_RECORD_H_
#define ONNXGRAD_TRAIN_ADAPTER_RECORD_H_

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "onnxgrad/adapters.h"

// The adapters of a model as its metadata list them, in JSON.

namespace onnxgrad::train {

/// Where an adapter changes a value.
struct AdapterSite {
  std::string plain;        ///< the value without the adapter
  std::string adapted;      ///< the value that its readers read instead
  bool is_renamed = false;  ///< `adapted` has the name that `plain` had in the model
  std::string bias = {};    ///< input 2 of the Gemm of `plain`, which is added after the adapter
};

struct RecordedLayer {
  std::string module;
  std::string weight;          ///< the matrix, kernel or table of the model
  std::string role;            ///< see AdapterLayer
  bool is_transposed = false;  ///< a linear layer's matrix is stored as [out, in]
  std::string a = {};          ///< [in, rank], [rank, in, ...] of a convolution, [rows, rank]
  std::string b = {};          ///< [rank, out], [out, rank, 1, ...] of a convolution
  std::string magnitude = {};  ///< DoRA's m, [out]
  std::string factors = {};    ///< (IA)^3's, [out] or [in]
  bool scales_inputs = false;  ///< `factors` are those of inputs
  std::int64_t rank = 0;       ///< 0: the adapter's
  double scale = 0;            ///< 0: the adapter's
  std::string norm = {};       ///< DoRA's norm, a value that no gradient flows through
  std::vector<AdapterSite> sites = {};  ///< one for each node that reads the weight
};

struct RecordedAdapter {
  AdapterOptions options;  ///< without targets and seed; `full` are names
  double scale = 1;
  std::vector<RecordedLayer> layers;
};

/// The factor of x A B: alpha / rank, or alpha / sqrt(rank) (rsLoRA).
inline double low_rank_scale(double alpha, double rank, bool rank_stabilized) {
  return alpha / (rank_stabilized ? std::sqrt(rank) : rank);
}
inline std::int64_t rank_of(const RecordedAdapter& adapter, const RecordedLayer& layer) {
  return layer.rank == 0 ? adapter.options.rank : layer.rank;
}
inline double scale_of(const RecordedAdapter& adapter, const RecordedLayer& layer) {
  return layer.scale == 0 ? adapter.scale : layer.scale;
}

/// How one layer of an adapter is adapted, where the adapter's options do not say it.
struct LayerForm {
  std::int64_t rank = 0;
  double scale = 1;
  bool scales_inputs = false;  ///< (IA)^3
  bool is_embedding = false;
};
using LayerForms = std::map<std::string, LayerForm>;  ///< by module

/// The key of the metadata that has the record.
inline constexpr std::string_view kAdapterEntry = "onnxgrad.adapters";

/// True if the model has adapters.
bool has_adapters(const ir::Model& model);
/// The adapters of a model; empty if there are none. Throws: ModelError (a damaged record).
std::vector<RecordedAdapter> read_adapters(const ir::Model& model);
/// Replaces the record; an empty one is removed.
void write_adapters(ir::Model& model, const std::vector<RecordedAdapter>& adapters);

/// Names of a layer's own tensors: A, B; A, B, m; or factors.
std::vector<std::string> tensor_names(const RecordedLayer& layer);
/// Names of all weights that are trained by default: the adapters' and RecordedAdapter's `full`.
std::vector<std::string> trained_names(const std::vector<RecordedAdapter>& adapters);
/// Names of the values that no gradient flows through.
std::vector<std::string> stopped_names(const ir::Model& model);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_ADAPTER_RECORD_H_
