# `cmake --install BUILD --prefix PREFIX`: a program, its vocabulary, recipes and docs that can be moved. CPack makes a .deb
# and a .tar.gz of the same (scripts/package).
include(GNUInstallDirs)
set(data ${CMAKE_INSTALL_DATADIR}/megalith)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/share/ DESTINATION ${data})  # where apps/program/vocabulary.cpp looks for it
install(DIRECTORY ${PROJECT_SOURCE_DIR}/recipes DESTINATION ${data})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

if(MEGALITH_BUNDLE)
  # For machines without the libraries' packages: all but the C library's come along, with their licences. RPATH, not
  # RUNPATH, which would not reach what the libraries need themselves.
  set_target_properties(megalith PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/megalith")
  target_link_options(megalith PRIVATE -Wl,--disable-new-dtags)
  install(TARGETS megalith RUNTIME_DEPENDENCY_SET megalith_libraries DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(RUNTIME_DEPENDENCY_SET megalith_libraries DESTINATION lib/megalith
    PRE_EXCLUDE_REGEXES "^(ld-linux.*|lib(c|m|dl|rt|pthread|cuda))\\.so")
  install(CODE "set(licences ${CMAKE_INSTALL_DOCDIR}/licences)
    set(multiarch ${CMAKE_LIBRARY_ARCHITECTURE})")
  install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/bundle_licences.cmake)
else()
  install(TARGETS megalith DESTINATION ${CMAKE_INSTALL_BINDIR})
  if(MEGALITH_HAS_CUDA)  # its libraries are often not in the linker's path
    set_target_properties(megalith PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
  endif()
endif()

if(MEGALITH_LIBRARY)  # python/megalith looks for it in lib beside the program's bin
  set_target_properties(libmegalith PROPERTIES INSTALL_RPATH "$ORIGIN/megalith")
  if(MEGALITH_BUNDLE)
    target_link_options(libmegalith PRIVATE -Wl,--disable-new-dtags)
  endif()
  install(TARGETS libmegalith LIBRARY DESTINATION lib)
  install(FILES ${PROJECT_SOURCE_DIR}/include/megalith.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endif()

set(CPACK_PACKAGE_NAME megalith)
set(CPACK_PACKAGE_VENDOR megalith)
set(CPACK_PACKAGE_CONTACT "The authors of megalith")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Trains GPT-style language models on any grid of CPUs and GPUs")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_SYSTEM_NAME ${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
if(MEGALITH_HAS_MPI)
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS openmpi-bin)  # mpirun
endif()
include(CPack)
