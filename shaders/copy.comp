#version 460
#extension GL_GOOGLE_include_directive : require
#include "buffers.glsl"

// Copies the first strips of positions from one region to another, in all planes of K and V. planes: of each its
// address, its heads, and the units of a strip of one head. A region has `region_strips` strips.
// Groups: (ceil(units that are copied of a head / (LANES * EACH)), heads, planes), the most of any plane.

const uint LANES = 64;
const uint EACH = 8;

layout(local_size_x = 64) in;

layout(push_constant) uniform Push {
    Units planes;
    uint source;
    uint target;
    uint strips;
    uint region_strips;
} push;

void main() {
    uvec4 entry = push.planes.value[gl_WorkGroupID.z];
    MutableUnits plane = MutableUnits(entry.xy);
    uint heads = entry.z;
    uint strip_units = entry.w;
    uint head = gl_WorkGroupID.y;
    if (head >= heads) {
        return;
    }
    uint head_units = push.region_strips * strip_units;
    uint source = (push.source * heads + head) * head_units;
    uint target = (push.target * heads + head) * head_units;
    uint first = gl_WorkGroupID.x * LANES * EACH + gl_LocalInvocationID.x;
    uint last = min(first + LANES * EACH, push.strips * strip_units);
    for (uint unit = first; unit < last; unit += LANES) {
        plane.value[target + unit] = plane.value[source + unit];
    }
}
