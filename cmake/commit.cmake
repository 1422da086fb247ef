# cmake -DGIT=... -DSOURCE=... -DFILE=... -P commit.cmake: writes into FILE which commit SOURCE is at, and whether tracked files
# differ from it. A FILE that has it already stays as it is.
set(commit "")
if(GIT)
  execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --short=7 HEAD
                  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  execute_process(COMMAND ${GIT} -C ${SOURCE} status --porcelain --untracked-files=no
                  OUTPUT_VARIABLE changes OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT commit)
  set(commit "unknown commit")
else()
  string(PREPEND commit "commit ")
  if(changes)
    string(APPEND commit " with changes")
  endif()
endif()
file(CONFIGURE OUTPUT ${FILE} CONTENT "#define MEGALITH_COMMIT \"${commit}\"\n" @ONLY)
