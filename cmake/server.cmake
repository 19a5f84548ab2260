# The server (corun serve). Without it the program needs neither libevent nor SQLite; `corun serve`
# then says so. Its files: those of src/app/ with these names, their tests and fuzz targets.
set(CORUN_SERVER_FILES "/(fuzz_|test_)?(http|serve|service|store|multipart)(_[a-z_]*)?[.]c$")
if(CORUN_SERVER)
  pkg_check_modules(EVENT REQUIRED IMPORTED_TARGET libevent_core>=2.1.12)
  pkg_check_modules(SQLITE REQUIRED IMPORTED_TARGET sqlite3>=3.34)
  list(APPEND CORUN_SMALL_LIBRARIES EVENT:event_core SQLITE:sqlite3)
endif()

function(corun_without_server list)
  if(NOT CORUN_SERVER)
    list(FILTER ${list} EXCLUDE REGEX "${CORUN_SERVER_FILES}")
    set(${list} "${${list}}" PARENT_SCOPE)
  endif()
endfunction()

function(corun_add_server target)
  if(CORUN_SERVER)
    target_compile_definitions(${target} PUBLIC CORUN_SERVER=1)
    target_link_libraries(${target} PUBLIC PkgConfig::EVENT PkgConfig::SQLITE)
  endif()
endfunction()
