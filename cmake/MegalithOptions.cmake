# Options are AUTO (use it when found, say what is lost when not), ON (missing is fatal) or OFF.
function(megalith_option name doc)
  set(MEGALITH_${name} AUTO CACHE STRING "${doc} (AUTO, ON or OFF)")
  set_property(CACHE MEGALITH_${name} PROPERTY STRINGS AUTO ON OFF)
endfunction()

megalith_option(CUDA "GPUs")
megalith_option(CUDNN "attention on GPUs by cuDNN")
megalith_option(NCCL "communication between GPUs")
megalith_option(MPI "ranks as MPI processes")
megalith_option(OPENMP "what oneDNN is kept on one thread by")
megalith_option(ONEDNN "f32 matrix products by oneDNN")
megalith_option(SENTENCEPIECE "sentencepiece vocabularies")
option(MEGALITH_TESTS "build the tests" ON)
option(MEGALITH_WERROR "warnings are errors" OFF)
option(MEGALITH_UNITY "several source files at a time: builds from nothing take half as long, changes longer" OFF)
option(MEGALITH_BUNDLE "what is installed brings the libraries that it needs" OFF)
set(MEGALITH_SANITIZE "" CACHE STRING "sanitizers, as after -fsanitize=")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "build type" FORCE)
endif()

find_program(MEGALITH_CCACHE ccache)
if(MEGALITH_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${MEGALITH_CCACHE})
endif()
if(MEGALITH_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # What ccache wants before it keeps anything of files with a precompiled header, which those of tests have.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${MEGALITH_CCACHE})
endif()

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
