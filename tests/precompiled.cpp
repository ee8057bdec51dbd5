// Exists so that tests/precompiled.h has a target of its own to be compiled in.
