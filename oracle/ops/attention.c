#include "oracle/ops/attention.h"
