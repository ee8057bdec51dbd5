// Carries the precompiled header; see cmake/OnnxgradTargets.cmake.
