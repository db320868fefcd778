/* Functions of numbers one by one, and what is made of the numbers along an axis: what steps of programs name (maps.inc). */
#pragma once

#define MAP(name, value, slope) GRAPH_MAP_##name,
typedef enum graph_map {
#include "oracle/graph/maps.inc"
    GRAPH_MAP_COUNT
} graph_map;

#define BINARY(name, value, by_a, by_b) GRAPH_BINARY_##name,
typedef enum graph_binary {
#include "oracle/graph/maps.inc"
    GRAPH_BINARY_COUNT
} graph_binary;

#define REDUCTION(name) GRAPH_REDUCTION_##name,
typedef enum graph_reduction {
#include "oracle/graph/maps.inc"
    GRAPH_REDUCTION_COUNT
} graph_reduction;
