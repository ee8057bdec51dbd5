#include "device/blas.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "base/check.h"
#include "onnxgrad/option_error.h"

namespace onnxgrad::device {
namespace {

const std::map<std::string, std::vector<std::string>>& known_files() {
  static const std::map<std::string, std::vector<std::string>> files = {
      {"mkl", {"libmkl_rt.so.3", "libmkl_rt.so.2", "libmkl_rt.so"}},
      {"openblas", {"libopenblas.so.0", "libopenblas.so"}},
  };
  return files;
}

struct Choice {
  std::mutex mutex;
  std::string library;
  std::vector<std::string> folders;
  const Blas* blas = nullptr;  // none, or not loaded yet
  std::deque<Blas> loaded;     // plans have their addresses

  void keep(Blas&& library) { blas = &loaded.emplace_back(std::move(library)); }
};

Choice& choice() {
  static auto* made = new Choice;  // plans may call the library until the process ends
  return *made;
}

std::vector<std::string> candidates(const std::string& library,
                                    const std::vector<std::string>& folders) {
  if (library.find('/') != std::string::npos) return {library};
  const auto known = known_files().find(library);
  if (known == known_files().end()) {
    std::vector<std::string> names;
    for (const auto& [name, files] : known_files()) names.push_back(name);
    throw OptionError({.what = fmt::format("unknown BLAS library '{}'", library),
                       .hint = base::nearest_or(library, names,
                                                "Known are 'mkl' and 'openblas'; for another one "
                                                "give the path of its file.")});
  }
  std::vector<std::string> paths;
  for (const std::string& folder : folders) {
    for (const std::string& file : known->second)
      paths.push_back(fmt::format("{}/{}", folder, file));
  }
  paths.insert(paths.end(), known->second.begin(), known->second.end());
  return paths;
}

template <class Function>
void find(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
}

/// Plans have threads of their own, each of which calls the library for its part.
void limit_threads(void* library, Blas& blas) {
  find(library, "MKL_Set_Num_Threads_Local", blas.set_threads_of_caller);
  void (*set_threads)(int) = nullptr;  // of the whole process
  find(library, "openblas_set_num_threads", set_threads);
  if (set_threads != nullptr) set_threads(1);
}

Blas load(const std::string& name, const std::vector<std::string>& folders) {
  std::string failure;
  for (const std::string& path : candidates(name, folders)) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* why = dlerror();  // NOLINT(concurrency-mt-unsafe): of this thread
      failure = why != nullptr ? why : path;
      continue;
    }
    Blas blas{.name = name.substr(name.rfind('/') + 1), .path = path};
    find(library, "cblas_sgemm", blas.sgemm);
    find(library, "cblas_dgemm", blas.dgemm);
    if (blas.sgemm == nullptr || blas.dgemm == nullptr) {
      dlclose(library);
      throw OptionError({.what = fmt::format("'{}' exports no cblas_sgemm and cblas_dgemm", path),
                         .hint = "Give the file of a BLAS library with the C interface and 32-bit "
                                 "integers."});
    }
    limit_threads(library, blas);
    return blas;
  }
  throw OptionError(
      {.what = fmt::format("the BLAS library '{}' cannot be loaded", name),
       .detail = failure,
       .hint =
           "Install it (pip install mkl; apt-get install libopenblas0-pthread), give the path of "
           "its file, or use onnxgrad's own kernels: leave ONNXGRAD_BLAS unset."});
}

}  // namespace

void choose_blas(const std::string& library, const std::vector<std::string>& folders) {
  Choice& made = choice();
  const std::scoped_lock lock(made.mutex);
  made.library = library;
  made.folders = folders;
  made.blas = nullptr;
}

void load_blas(const std::string& library, const std::vector<std::string>& folders) {
  std::optional<Blas> loaded;
  if (!library.empty()) loaded = load(library, folders);
  Choice& made = choice();
  const std::scoped_lock lock(made.mutex);
  made.library = library;
  made.folders = folders;
  made.blas = nullptr;
  if (loaded) made.keep(*std::move(loaded));
}

const Blas* blas() {
  Choice& made = choice();
  const std::scoped_lock lock(made.mutex);
  if (made.library.empty()) return nullptr;
  if (made.blas == nullptr) made.keep(load(made.library, made.folders));
  return made.blas;
}

}  // namespace onnxgrad::device
