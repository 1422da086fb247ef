# `cmake --install BUILD --prefix PREFIX`: a program, its vocabulary, recipes and docs that can be moved. CPack makes a .deb
# of the same (scripts/package).
include(GNUInstallDirs)
set(data ${CMAKE_INSTALL_DATADIR}/megalith)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/share/gpt2 DESTINATION ${data})  # where apps/vocabulary.cpp looks for it
install(DIRECTORY ${PROJECT_SOURCE_DIR}/recipes DESTINATION ${data})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

install(TARGETS megalith DESTINATION ${CMAKE_INSTALL_BINDIR})
if(MEGALITH_HAS_CUDA)  # its libraries are often not in the linker's path
  set_target_properties(megalith PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
endif()

set(CPACK_PACKAGE_NAME megalith)
set(CPACK_PACKAGE_VENDOR megalith)
set(CPACK_PACKAGE_CONTACT "The authors of megalith")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Trains GPT-style language models on any grid of CPUs and GPUs")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
if(MEGALITH_HAS_MPI)
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS openmpi-bin)  # mpirun
endif()
include(CPack)
