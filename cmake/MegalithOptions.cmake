# Options are AUTO (use it when found, say what is lost when not), ON (missing is fatal) or OFF.
function(megalith_option name doc)
  set(MEGALITH_${name} AUTO CACHE STRING "${doc} (AUTO, ON or OFF)")
  set_property(CACHE MEGALITH_${name} PROPERTY STRINGS AUTO ON OFF)
endfunction()

megalith_option(MPI "ranks as MPI processes")
megalith_option(OPENMP "several threads inside a rank")
megalith_option(ONEDNN "f32 matrix products by oneDNN")
option(MEGALITH_TESTS "build the tests" ON)
option(MEGALITH_WERROR "warnings are errors" OFF)
set(MEGALITH_SANITIZE "" CACHE STRING "sanitizers, as after -fsanitize=")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "build type" FORCE)
endif()

find_program(MEGALITH_CCACHE ccache)
if(MEGALITH_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${MEGALITH_CCACHE})
endif()

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
