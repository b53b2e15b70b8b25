// How far attention is from double precision: `attention_errors prompts` and `attention_errors int8`. One program,
// since to compile attention takes longer than to try it. Ends with 1 if a row's bits depend on its company.
#include <cstring>

#include "int8_keys.h"
#include "prompts.h"

int main(int, char** words) {
  return (std::strcmp(words[1], "int8") == 0 ? int8_keys::try_int8() : prompts::try_prompts()) ? 0 : 1;
}
