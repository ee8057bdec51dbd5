#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {

std::vector<OpCase> roi_align_cases() {
  std::vector<OpCase> cases;
  const CaseInput regions = values({0.3171, 0.4432, 3.1293, 2.7414, 1.2335, 0.6196, 4.8877, 3.3618,
                                    -2.1739, -1.7311, 1.4372, 1.9193},
                                   {3, 4});
  const auto add = [&](std::string name, const std::string& attributes, CaseInput rois) {
    const std::int64_t count = rois.dims[0];
    cases.push_back(
        {.name = std::move(name),
         .model = "y = RoiAlign <" + attributes + "> (x, rois, image)",
         .inputs = {uniform({2, 2, 4, 5}, -1, 1), std::move(rois), integers({count}, 0, 1)}});
  };
  for (const std::string mode : {"avg", "max"}) {
    for (const std::string coordinates : {"half_pixel", "output_half_pixel"}) {
      for (const std::string ratio : {"0", "2"}) {
        add(mode + "_" + coordinates + "_" + ratio,
            "mode = \"" + mode + "\", coordinate_transformation_mode = \"" + coordinates +
                "\", sampling_ratio = " + ratio + ", output_height = 2, output_width = 3",
            regions);
      }
    }
    add(mode + "_scaled",
        "mode = \"" + mode +
            "\", spatial_scale = 0.5, output_height = 1, output_width = 2, "
            "sampling_ratio = 3",
        values({1.3171, 2.1292, 8.7313, 6.9434}, {1, 4}));
    add(mode + "_no_regions", "mode = \"" + mode + "\", sampling_ratio = 1", values({}, {0, 4}));
  }
  cases.push_back(
      {.name = "default",
       .model = "y = RoiAlign (x, rois, image)",
       .inputs = {uniform({1, 1, 4, 5}, -1, 1), values({0.3171, 0.4432, 3.1293, 2.7414}, {1, 4}),
                  integers({1}, 0, 0)}});
  const auto pool = [&](std::string name, const std::string& attributes, std::vector<double> rois) {
    const auto count = static_cast<std::int64_t>(rois.size()) / 5;
    cases.push_back({.name = std::move(name),
                     .model = "y = MaxRoiPool <" + attributes + "> (x, rois)",
                     .inputs = {uniform({2, 2, 5, 6}, -1, 1), values(std::move(rois), {count, 5})},
                     .wrt = {"x"}});
  };
  const std::vector<double> boxes = {0, 0, 1, 3, 4, 1, 2, 0, 5, 2, 0, 4, 4, 9, 8};
  pool("pool", "pooled_shape = [2, 2]", boxes);
  pool("pool_one", "pooled_shape = [1, 3]", boxes);
  pool("pool_scaled", "pooled_shape = [2, 2], spatial_scale = 0.5", {1, 1, 3, 9, 7});
  pool("pool_no_regions", "pooled_shape = [1, 1]", {});
  return cases;
}

std::vector<ErrorCase> roi_align_error_cases() {
  return {{.name = "mode",
           .model = "[regions] y = RoiAlign <mode = \"sum\"> (x, rois, image)",
           .inputs = {uniform({1, 1, 4, 4}, -1, 1), uniform({1, 4}, 0, 2), integers({1}, 0, 0)},
           .error = "ModelError",
           .fragments = {"regions", "mode"}},
          {.name = "pooled_shape",
           .model = "[regions] y = MaxRoiPool <pooled_shape = [2]> (x, rois)",
           .inputs = {uniform({1, 1, 4, 4}, -1, 1), uniform({1, 5}, 0, 2)},
           .error = "ModelError",
           .fragments = {"regions", "pooled_shape"}}};
}

}  // namespace onnxgrad::ops_test
