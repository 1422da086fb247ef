#pragma once

/// Only sources of targets that link megalith_gpu_code may include this. The objects of all others are the same in
/// builds with and without GPUs, so that ccache serves both. Others look whether device::code_architectures() is empty.
namespace megalith::build {

inline constexpr bool has_cuda = MEGALITH_HAS_CUDA != 0;

}  // namespace megalith::build
