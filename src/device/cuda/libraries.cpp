#include "device/cuda/libraries.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <system_error>

#include "device/cuda_plugin.h"
#include "onnxgrad/error.h"

namespace onnxgrad::device::cuda {
namespace {

namespace fs = std::filesystem;

struct Library {
  std::vector<std::string> names;  ///< of its file, the newest version first
  const char* purpose;
  const char* install;  ///< how a user gets it
};

const Library kDriverLibrary{
    .names = {"libcuda.so.1"},
    .purpose = "NVIDIA's driver",
    .install =
        "Install the driver of the card (nvidia-smi shows it when it is there); start a "
        "container with 'docker run --gpus all'."};
const Library kNvrtcLibrary{.names = {"libnvrtc.so.13", "libnvrtc.so.12"},
                            .purpose = "CUDA's run-time compiler",
                            .install =
                                "Install it with 'pip install nvidia-cuda-nvrtc', or "
                                "CUDA's toolkit."};

const Library kBlasLtLibrary{
    .names = {"libcublasLt.so.13", "libcublasLt.so.12"},
    .purpose = "cuBLASLt",
    .install = "Install it with 'pip install nvidia-cublas', or CUDA's toolkit."};

const Library kDnnLibrary{.names = {"libcudnn.so.9"},
                          .purpose = "cuDNN",
                          .install = "Install it with 'pip install nvidia-cudnn-cu13'."};

const Library kNcclLibrary{.names = {"libnccl.so.2"},
                           .purpose = "NCCL",
                           .install = "Install it with 'pip install nvidia-nccl-cu13'."};

std::vector<std::string> split(const char* list) {
  std::vector<std::string> parts;
  std::string_view rest = list == nullptr ? "" : list;
  while (!rest.empty()) {
    const std::size_t colon = rest.find(':');
    if (colon != 0) parts.emplace_back(rest.substr(0, colon));
    rest = colon == std::string_view::npos ? "" : rest.substr(colon + 1);
  }
  return parts;
}

struct SitePackages {
  std::mutex mutex;
  std::vector<std::string> folders;
};

SitePackages& site_packages() {
  static SitePackages known;
  return known;
}

// nvidia/<package>/lib of all known site-packages, and of the virtual environment.
std::vector<std::string> wheel_folders() {
  std::vector<fs::path> sites;
  {
    const std::scoped_lock lock(site_packages().mutex);
    sites.assign(site_packages().folders.begin(), site_packages().folders.end());
  }
  std::erase_if(sites, [](const fs::path& site) { return !site.is_absolute(); });
  std::error_code error;
  if (const char* environment = std::getenv("VIRTUAL_ENV")) {
    for (const auto& entry : fs::directory_iterator(fs::path(environment) / "lib", error)) {
      sites.push_back(entry.path() / "site-packages");
    }
  }
  std::vector<std::string> folders;
  for (const fs::path& site : sites) {
    for (const auto& package : fs::directory_iterator(site / "nvidia", error)) {
      const fs::path folder = package.path() / "lib";
      if (fs::is_directory(folder, error)) folders.push_back(folder.string());
    }
  }
  return folders;
}

std::vector<std::string> search_folders(const Library& library) {
  std::vector<std::string> folders = split(std::getenv("ONNXGRAD_CUDA_PATH"));
  if (!folders.empty() && &library != &kDriverLibrary) return folders;
  const bool is_driver = &library == &kDriverLibrary;
  if (is_driver) folders.emplace_back();  // the linker's own search
  for (std::string& folder : wheel_folders()) folders.push_back(std::move(folder));
  if (!is_driver) folders.emplace_back();
  for (const char* folder : {"/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib",
                             "/usr/local/cuda/targets/sbsa-linux/lib", "/usr/local/nvidia/lib64"}) {
    folders.emplace_back(folder);
  }
  return folders;
}

std::string places(const Library& library) {
  const char* const own = std::getenv("ONNXGRAD_CUDA_PATH");
  if (own != nullptr && *own != '\0' && &library != &kDriverLibrary) {
    return fmt::format("ONNXGRAD_CUDA_PATH ({})", own);
  }
  return "NVIDIA's wheels, the linker's search and the toolkit";
}

// Libraries stay loaded: threads of theirs may run until the process ends.
void* open(const Library& library) {
  std::string problem;
  const std::vector<std::string> folders = search_folders(library);
  for (const std::string& name : library.names) {
    for (const std::string& folder : folders) {
      const std::string path = folder.empty() ? name : (fs::path(folder) / name).string();
      std::error_code error;
      if (!folder.empty() && !fs::exists(path, error)) continue;
      if (void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
      const char* reason = ::dlerror();
      const std::string_view text = reason == nullptr ? "" : reason;
      if (text.find("No such file") == std::string_view::npos) problem = text;
    }
  }
  throw DeviceError({.what = fmt::format("{} was not found", library.purpose),
                     .detail = problem.empty()
                                   ? fmt::format("No {} in {}.", fmt::join(library.names, " or "),
                                                 places(library))
                                   : problem,
                     .hint = library.install});
}

template <class Function>
void load(void* library, const Library& described, Function*& function, const char* symbol) {
  function = reinterpret_cast<Function*>(::dlsym(library, symbol));
  if (function != nullptr) return;
  throw DeviceError({.what = fmt::format("{} is too old: it has no {}", described.purpose, symbol),
                     .hint = "Install a version for CUDA 12.4 or newer."});
}

#define ONNXGRAD_CUDA_LOAD(member, symbol, ...) load(library, described, table.member, #symbol);

Driver load_driver() {
  const Library& described = kDriverLibrary;
  void* const library = open(described);
  Driver table;
  ONNXGRAD_CUDA_DRIVER(ONNXGRAD_CUDA_LOAD)
  int version = 0;
  constexpr int kOldest = 12040;
  if (table.Init(0) != kSuccess || table.DriverGetVersion(&version) != kSuccess) {
    throw DeviceError({.what = "NVIDIA's driver does not start",
                       .hint = "Run nvidia-smi, which says why; a card that it does not list is "
                               "not visible to this process."});
  }
  if (version < kOldest) {
    throw DeviceError({.what = fmt::format("NVIDIA's driver is for CUDA {}.{}, which is too old",
                                           version / 1000, version % 1000 / 10),
                       .hint = "Install a driver for CUDA 12.4 or newer (550 or newer)."});
  }
  return table;
}

Nvrtc load_nvrtc() {
  const Library& described = kNvrtcLibrary;
  void* const library = open(described);
  Nvrtc table;
  ONNXGRAD_CUDA_NVRTC(ONNXGRAD_CUDA_LOAD)
  load(library, described, table.GetErrorString, "nvrtcGetErrorString");
  return table;
}

BlasLt load_blas_lt() {
  const Library& described = kBlasLtLibrary;
  void* const library = open(described);
  BlasLt table;
  ONNXGRAD_CUDA_BLAS_LT(ONNXGRAD_CUDA_LOAD)
  load(library, described, table.GetVersion, "cublasLtGetVersion");
  load(library, described, table.GetStatusName, "cublasLtGetStatusName");
  return table;
}

Dnn load_dnn() {
  const Library& described = kDnnLibrary;
  void* const library = open(described);
  Dnn table;
  ONNXGRAD_CUDA_DNN(ONNXGRAD_CUDA_LOAD)
  load(library, described, table.GetVersion, "cudnnGetVersion");
  load(library, described, table.GetErrorString, "cudnnGetErrorString");
  return table;
}

Nccl load_nccl() {
  const Library& described = kNcclLibrary;
  void* const library = open(described);
  Nccl table;
  ONNXGRAD_CUDA_NCCL(ONNXGRAD_CUDA_LOAD)
  load(library, described, table.GetErrorString, "ncclGetErrorString");
  load(library, described, table.GetLastError, "ncclGetLastError");
  return table;
}

#undef ONNXGRAD_CUDA_LOAD

// Message of the exception that loading a library throws; empty: there is none.
template <class Load>
std::string problem_of(Load&& load) {
  try {
    load();
    return {};
  } catch (const DeviceError& error) {
    return error.what();
  }
}

}  // namespace

const Driver& driver() {
  static const Driver loaded = load_driver();
  return loaded;
}

const Nvrtc& nvrtc() {
  static const Nvrtc loaded = load_nvrtc();
  return loaded;
}

const BlasLt& blas_lt() {
  static const BlasLt loaded = load_blas_lt();
  return loaded;
}

std::string blas_lt_problem() {
  static const std::string problem = problem_of([] { blas_lt(); });
  return problem;
}

const Dnn& dnn() {
  static const Dnn loaded = load_dnn();
  return loaded;
}

const Nccl& nccl() {
  static const Nccl loaded = load_nccl();
  return loaded;
}

std::string dnn_problem() {
  static const std::string problem = problem_of([] { dnn(); });
  return problem;
}

std::string driver_problem() {
  static const std::string problem = problem_of([] { driver(); });
  return problem;
}

void add_site_packages(const std::vector<std::string>& folders) {
  const std::scoped_lock lock(site_packages().mutex);
  std::vector<std::string>& known = site_packages().folders;
  known.insert(known.end(), folders.begin(), folders.end());
}

}  // namespace onnxgrad::device::cuda
