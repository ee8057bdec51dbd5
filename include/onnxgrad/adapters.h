#ifndef ONNXGRAD_ADAPTERS_H_
#define ONNXGRAD_ADAPTERS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "onnxgrad/model.h"

// Parameter-efficient fine-tuning: a few small weights are added to a model, and only these are
// trained. The result is an ordinary ONNX model that lists its adapters in its metadata, so that
// sessions, trainers and gradients train them by default, and merge_adapters() and save_adapter()
// know them.

namespace [[gnu::visibility("default")]] onnxgrad {

enum class AdapterKind : std::uint8_t {
  /// y + scale * x A B beside a layer y = x W (+ b): LoRA, Hu et al., arXiv:2106.09685. Also for
  /// convolutions without groups, and embeddings if they are named as targets.
  kLora,
  /// m * V / |V| instead of W, V = W + scale * A B with a norm for each output, which is a
  /// constant for the gradient: DoRA, Liu et al., arXiv:2402.09353. Linear layers.
  kDora,
  /// Factors on keys, values and the inputs of the last layer of an MLP: (IA)^3, Liu et al.,
  /// arXiv:2205.05638. Linear layers.
  kIa3,
  kBias,  ///< the biases of the model, nothing is added: BitFit, arXiv:2106.10199
  kNorm,  ///< scales and shifts of normalisations, nothing is added
};

/// Parses "lora", "dora", "ia3", "bitfit", "norms"; throws OptionError naming the nearest.
AdapterKind adapter_kind_from_name(std::string_view name);
std::string_view adapter_kind_name(AdapterKind kind);

struct AdapterOptions {
  AdapterKind kind = AdapterKind::kLora;
  std::int64_t rank = 8;  ///< columns of A
  /// The scale is alpha / rank, with `rank_stabilized` alpha / sqrt(rank) (arXiv:2312.03732);
  /// 0: `rank`, for a scale of 1.
  double alpha = 0;
  bool rank_stabilized = false;
  /// Fraction of the elements of x that training drops before A; in [0, 1).
  double dropout = 0;
  /// Layers to adapt: glob patterns of names of their weights, modules ("encoder.layer.0.query") or
  /// nodes; the last parts of a module ("q_proj"); or what a layer is by the structure of the
  /// graph: "attention", "query", "key", "value", "attention_output", "mlp", "mlp_up", "mlp_down",
  /// "head", "linear" (all linear layers), "conv", "embedding". Empty: linear layers without the
  /// head; in a model that has none convolutions; for kIa3 "key", "value" and "mlp_down".
  std::vector<std::string> targets = {};
  std::vector<std::string> exclude = {};  ///< layers to leave out, in the same forms
  /// Patterns of weights of the model to train as well, such as a new head.
  std::vector<std::string> full = {};
  std::string name = "default";
  std::uint64_t seed = 0;  ///< of A, uniform in ±1/sqrt(inputs); B is 0, factors are 1
};

/// One adapted layer of a model.
struct AdapterLayer {
  std::string module;                ///< name of the layer: of its weight without ".weight"
  std::string weight;                ///< name of the weight in the model
  std::string role;                  ///< "query", "mlp_up", ..., as for AdapterOptions::targets
  std::vector<std::string> tensors;  ///< names of the adapter's weights: A, B; A, B, m; or factors
  std::int64_t rank = 0;             ///< AdapterInfo::rank, unless PEFT made it with patterns
  double scale = 1;
};

struct AdapterInfo {
  std::string name;
  AdapterKind kind = AdapterKind::kLora;
  std::int64_t rank = 0;
  double alpha = 0;
  double scale = 1;
  double dropout = 0;
  bool rank_stabilized = false;
  std::vector<AdapterLayer> layers;
  std::vector<std::string> full;  ///< weights of the model that are trained beside the adapter
};

/// `model` with an adapter; it computes what `model` computes until it is trained. The weights of
/// `model` are shared, not copied, and not trained by default. Throws: ModelError (a target that
/// matches no layer, no layer to adapt, a layer that cannot be adapted, a name in use),
/// OptionError.
Model add_adapter(const Model& model, const AdapterOptions& options = {});

/// The adapters of a model, in the order in which they were added. Throws: ModelError (a damaged
/// record).
std::vector<AdapterInfo> adapters(const Model& model);

/// The model without adapters whose weights do what the adapted ones did: the file that
/// add_adapter() was given, byte for byte but for these weights, if the model was not saved in
/// between. Throws: ModelError (no adapters; a weight that cannot take them: quantized, see
/// dequantize_weights() of quantized_weights.h, or shared).
Model merge_adapters(const Model& model);

/// The tensors of an adapter under the names and in the shapes of PEFT:
/// "base_model.model.<module>.lora_A.weight" [rank, in]. Empty `name`: the only adapter.
/// Throws: ModelError (no adapter of that name, or several and no name).
NamedTensors adapter_state(const Model& model, std::string_view name = "");

/// `model` with these tensors of adapter_state() in its adapter; names may lack or have further
/// modules in front. Throws: ModelError (a missing or unknown tensor, another shape).
Model set_adapter_state(const Model& model, const NamedTensors& tensors,
                        std::string_view name = "");

/// Writes an adapter as PEFT does: adapter_config.json and adapter_model.safetensors in `folder`,
/// which is made if it is not there. Throws: ModelError (as adapter_state(); an adapter that PEFT
/// does not have: of biases or normalisations alone), CheckpointError (a file cannot be written).
void save_adapter(const Model& model, const std::string& folder, std::string_view name = "");

/// `model` with the adapter of such a folder, which PEFT or save_adapter() wrote for the same
/// network. The layers are those that the tensors name. An adapter `name` that the model has gets
/// the tensors if it has the same layers and no smaller rank: then nothing has to be compiled
/// again, and its scale stays (B is multiplied). Throws: ModelError (a layer that the model does
/// not have), CheckpointError (a damaged file, a kind of adapter that is not in AdapterKind).
Model load_adapter(const Model& model, const std::string& folder,
                   std::string_view name = "default");

/// `model` with the weights of its adapters as inputs of their names, after its own. They have
/// their values as defaults; the rank is a symbol, "<name>_rank". This is the form that runtimes
/// which swap adapters take.
Model adapters_as_inputs(const Model& model);

}  // namespace onnxgrad

#endif  // ONNXGRAD_ADAPTERS_H_
