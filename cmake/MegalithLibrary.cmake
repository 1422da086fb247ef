# Flags that every target of the project gets: an interface target, no global flags.
add_library(megalith_flags INTERFACE)
target_compile_features(megalith_flags INTERFACE cxx_std_20)
target_include_directories(megalith_flags INTERFACE ${PROJECT_SOURCE_DIR})
set(cxx_flags -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  -Wno-restrict  # GCC bug 105651: false alarms on std::string operator+
  -ffp-contract=off -fno-math-errno
  $<$<BOOL:${MEGALITH_WERROR}>:-Werror>)
target_compile_options(megalith_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${cxx_flags}>")
if(MEGALITH_HAS_CUDA)
  # Code shared by host and device is constexpr (the generator of random numbers, the rules of a step's end).
  set(cuda_flags -std=c++20 --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-ffp-contract=off
    $<$<BOOL:${MEGALITH_WERROR}>:-Werror=all-warnings>)
  target_compile_options(megalith_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_flags}>")
endif()
# For the few targets whose C++ sources differ with and without GPUs (tensor/has_cuda.h) or include CUDA's headers. The
# commands that compile all others are the same in both builds.
add_library(megalith_gpu_code INTERFACE)
if(MEGALITH_COMPILE_CHECK)
  target_compile_options(megalith_gpu_code INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
endif()
target_compile_definitions(megalith_gpu_code INTERFACE MEGALITH_HAS_CUDA=$<BOOL:${MEGALITH_HAS_CUDA}>)
if(MEGALITH_HAS_CUDA)
  target_include_directories(megalith_gpu_code SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
endif()
target_link_libraries(megalith_flags INTERFACE Threads::Threads)
if(MEGALITH_HAS_OPENMP)
  target_link_libraries(megalith_flags INTERFACE OpenMP::OpenMP_CXX)  # CMake gives it to C++ sources only
else()
  target_compile_options(megalith_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-unknown-pragmas>)
endif()
if(MEGALITH_SANITIZE)
  target_compile_options(megalith_flags INTERFACE -fsanitize=${MEGALITH_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  if(MEGALITH_SANITIZE MATCHES undefined)
    # The address sanitizer stops at every access through a wrong pointer. These checks also find pointers that are never
    # read through, and take a quarter of the compiler's time.
    target_compile_options(megalith_flags INTERFACE -fno-sanitize=null,object-size,vptr)
  endif()
  target_link_options(megalith_flags INTERFACE -fsanitize=${MEGALITH_SANITIZE})
endif()

# megalith_compiles_fast(target): for code that runs little and compiles long. Sanitizer builds do not optimise it, which
# takes half of the compiler's time away.
function(megalith_compiles_fast target)
  if(MEGALITH_SANITIZE)
    target_compile_options(${target} PRIVATE -O0)
  endif()
endfunction()

# megalith_unity(target FILES): compiles FILES sources together where unity builds are on. Much of a source's time goes to
# headers and templates that the others use too.
function(megalith_unity target files)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${MEGALITH_UNITY} UNITY_BUILD_BATCH_SIZE ${files})
endfunction()

# megalith_shareable(target): its code can be a part of libmegalith. No function is replaced at load time, so that they
# are inlined as in the program.
function(megalith_shareable target)
  if(MEGALITH_LIBRARY)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-semantic-interposition>)
  endif()
endfunction()

# megalith_library(ops SOURCES a.cpp ... DEPS tensor ... [LIBRARIES PkgConfig::PCRE2 ...])
# One target per folder. DEPS are megalith folders, LIBRARIES are private third-party targets.
function(megalith_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LIBRARIES" ${ARGN})
  add_library(megalith_${name} STATIC ${ARG_SOURCES})
  add_library(megalith::${name} ALIAS megalith_${name})
  target_link_libraries(megalith_${name} PUBLIC megalith_flags PRIVATE ${ARG_LIBRARIES})
  megalith_unity(megalith_${name} 16)
  megalith_shareable(megalith_${name})
  foreach(dep IN LISTS ARG_DEPS)
    target_link_libraries(megalith_${name} PUBLIC megalith::${dep})
  endforeach()
endfunction()
