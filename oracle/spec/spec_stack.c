#include "oracle/spec/spec_internal.h"
