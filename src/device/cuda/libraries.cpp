#include "device/cuda/libraries.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <mutex>
#include <string_view>
#include <system_error>

#include "device/cuda_plugin.h"
#include "onnxgrad/error.h"

namespace onnxgrad::device::cuda {
namespace {

namespace fs = std::filesystem;

struct Library {
  std::string file;
  std::vector<int> versions;   ///< of the file, the newest first
  bool follows_driver = true;  ///< they are CUDA's: none may be newer than the driver's
  const char* purpose;
  const char* package_13 = nullptr;  ///< of pip, for CUDA 13
  const char* package_12 = nullptr;
};

const Library kDriverLibrary{
    .file = "libcuda.so", .versions = {1}, .follows_driver = false, .purpose = "NVIDIA's driver"};
const Library kNvrtcLibrary{.file = "libnvrtc.so",
                            .versions = {13, 12},
                            .purpose = "CUDA's run-time compiler",
                            .package_13 = "nvidia-cuda-nvrtc",
                            .package_12 = "nvidia-cuda-nvrtc-cu12"};
const Library kBlasLtLibrary{.file = "libcublasLt.so",
                             .versions = {13, 12},
                             .purpose = "cuBLASLt",
                             .package_13 = "nvidia-cublas",
                             .package_12 = "nvidia-cublas-cu12"};
const Library kDnnLibrary{.file = "libcudnn.so",
                          .versions = {9},
                          .follows_driver = false,
                          .purpose = "cuDNN",
                          .package_13 = "nvidia-cudnn-cu13",
                          .package_12 = "nvidia-cudnn-cu12"};

constexpr int kNewestCuda = 13;

// CUDA's version that the driver is for; the newest known, if it is newer.
int cuda_of_driver() { return std::min(driver().cuda_version / 1000, kNewestCuda); }

std::vector<std::string> names_of(const Library& library) {
  std::vector<std::string> names;
  for (const int version : library.versions) {
    if (library.follows_driver && version > cuda_of_driver()) continue;
    names.push_back(fmt::format("{}.{}", library.file, version));
  }
  return names;
}

std::string how_to_install(const Library& library) {
  if (library.package_13 == nullptr) {
    return "Install the driver of the card (nvidia-smi shows it when it is there); start a "
           "container with 'docker run --gpus all'.";
  }
  return fmt::format("Install it with 'pip install {}', or CUDA's toolkit.",
                     cuda_of_driver() < 13 ? library.package_12 : library.package_13);
}

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
  const std::vector<std::string> names = names_of(library);
  for (const std::string& name : names) {
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
  throw DeviceError(
      {.what = fmt::format("{} was not found", library.purpose),
       .detail = problem.empty()
                     ? fmt::format("No {} in {}.", fmt::join(names, " or "), places(library))
                     : problem,
       .hint = how_to_install(library)});
}

/// A function of a library's table: its symbol, and what keeps its address there.
template <class Table>
struct Entry {
  const char* symbol;
  void (*keep)(Table& table, void* function);
};

template <class Table>
Table load(const Library& library, std::initializer_list<Entry<Table>> entries) {
  void* const handle = open(library);
  Table table;
  for (const Entry<Table>& entry : entries) {
    void* const function = ::dlsym(handle, entry.symbol);
    if (function == nullptr) {
      throw DeviceError(
          {.what = fmt::format("{} is too old: it has no {}", library.purpose, entry.symbol),
           .hint = "Install a version for CUDA 12.4 or newer."});
    }
    entry.keep(table, function);
  }
  return table;
}

#define ONNXGRAD_CUDA_ENTRY(member, symbol, ...)                        \
  {#symbol, [](auto& table, void* function) {                           \
     table.member = reinterpret_cast<decltype(table.member)>(function); \
   }},

Driver load_driver() {
  auto table = load<Driver>(kDriverLibrary, {ONNXGRAD_CUDA_DRIVER(ONNXGRAD_CUDA_ENTRY)});
  constexpr int kOldest = 12040;
  int& version = table.cuda_version;
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
  static const auto loaded =
      load<Nvrtc>(kNvrtcLibrary, {ONNXGRAD_CUDA_NVRTC(ONNXGRAD_CUDA_ENTRY)
                                      ONNXGRAD_CUDA_ENTRY(GetErrorString, nvrtcGetErrorString)});
  return loaded;
}

const BlasLt& blas_lt() {
  static const auto loaded = load<BlasLt>(
      kBlasLtLibrary, {ONNXGRAD_CUDA_BLAS_LT(ONNXGRAD_CUDA_ENTRY)
                           ONNXGRAD_CUDA_ENTRY(GetVersion, cublasLtGetVersion)
                               ONNXGRAD_CUDA_ENTRY(GetStatusName, cublasLtGetStatusName)});
  return loaded;
}

const Dnn& dnn() {
  static const auto loaded =
      load<Dnn>(kDnnLibrary, {ONNXGRAD_CUDA_DNN(ONNXGRAD_CUDA_ENTRY)
                                  ONNXGRAD_CUDA_ENTRY(GetVersion, cudnnGetVersion)
                                      ONNXGRAD_CUDA_ENTRY(GetErrorString, cudnnGetErrorString)});
  return loaded;
}

#undef ONNXGRAD_CUDA_ENTRY

std::string blas_lt_problem() {
  static const std::string problem = problem_of([] { blas_lt(); });
  return problem;
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
