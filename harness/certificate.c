#include "harness/golden.h"
