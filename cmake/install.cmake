include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set_target_properties(corun_lib PROPERTIES EXPORT_NAME corun) # corun::corun for find_package(corun)
install(TARGETS corun_lib EXPORT corunTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} PUBLIC_HEADER DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET corun)
  install(TARGETS corun RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(EXPORT corunTargets NAMESPACE corun:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/corun)
configure_package_config_file(cmake/corunConfig.cmake.in ${CMAKE_BINARY_DIR}/corunConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/corun)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/corunConfigVersion.cmake
  COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_BINARY_DIR}/corunConfig.cmake ${CMAKE_BINARY_DIR}/corunConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/corun)
# The prefix as seen from the file, so that `cmake --install --prefix` and moved folders work.
file(RELATIVE_PATH CORUN_PC_TO_PREFIX /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
configure_file(cmake/corun.pc.in ${CMAKE_BINARY_DIR}/corun.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/corun.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
# In a wheel (pyproject.toml) the library lies beside the Python files, under one plain name.
if(SKBUILD)
  install(FILES $<TARGET_FILE:corun_lib> DESTINATION corun RENAME libcorun.so COMPONENT python)
endif()
