#include "harness/operations/op_support.h"
