# usage: cmake -DOUT=FILE.c -DPAGE=FILE.html -P write_page.cmake
# The policy lets run only the one script and the one style that the page holds, by their digests,
# and lets the page talk to its own server only. Trusted types: no text becomes HTML.
cmake_policy(VERSION 3.25)
file(READ ${PAGE} html)
file(READ ${PAGE} hex HEX)

# The SHA-256 digest of what stands between <tag> and </tag>, in base64.
function(digest_of tag out)
  string(REGEX MATCHALL "<${tag}[ >]" all "${html}")
  list(LENGTH all n)
  string(FIND "${html}" "<${tag}>" from)
  string(FIND "${html}" "</${tag}>" to)
  if(NOT n EQUAL 1 OR from LESS 0 OR to LESS from)
    message(FATAL_ERROR "${PAGE}: not exactly one <${tag}> without attributes")
  endif()
  string(LENGTH "<${tag}>" skip)
  math(EXPR from "${from} + ${skip}")
  math(EXPR n "${to} - ${from}")
  string(SUBSTRING "${html}" ${from} ${n} text)
  string(SHA256 digest "${text}")
  set(alphabet ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/)
  set(base64 "")
  foreach(at RANGE 0 60 6) # 32 bytes and one that is padding
    string(SUBSTRING "${digest}00" ${at} 6 bytes)
    foreach(shift 18 12 6 0)
      math(EXPR k "(0x${bytes} >> ${shift}) & 63")
      string(SUBSTRING ${alphabet} ${k} 1 letter)
      string(APPEND base64 ${letter})
    endforeach()
  endforeach()
  string(SUBSTRING ${base64} 0 43 base64)
  set(${out} "${base64}=" PARENT_SCOPE)
endfunction()

digest_of(script script)
digest_of(style style)
string(CONCAT policy "default-src 'none'; script-src 'sha256-${script}'; style-src 'sha256-${style}'; "
  "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
  "require-trusted-types-for 'script'; trusted-types 'none'")

string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "/* written by cmake/write_page.cmake */
#include \"app/serve_page.h\"

const unsigned char page_html[] = {
${bytes}};
const size_t page_html_len = sizeof page_html;
const char page_policy[] = \"${policy}\";
")
