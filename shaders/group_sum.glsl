// The sum over a group of 256 lanes, in one fixed order. Include this behind the entry's `layout(local_size_x = 256) in`.

#ifndef GROUP_SUM_GLSL
#define GROUP_SUM_GLSL

const uint GROUP_SUMS = 16;

shared float group_part[256];
shared float group_sums[GROUP_SUMS];
shared float group_total;

// Lane i's number is added to sum i % 16, in ascending order of i; then the sums are added, in ascending order.
// Every lane of the group must call it and gets the same sum; the group meets in it.
float group_sum(float x) {
    uint lane = gl_LocalInvocationID.x;
    group_part[lane] = x;
    barrier();
    if (lane < GROUP_SUMS) {
        precise float sum = 0.0;
        for (uint i = lane; i < 256; i += GROUP_SUMS) {
            sum += group_part[i];
        }
        group_sums[lane] = sum;
    }
    barrier();
    if (lane == 0) {
        precise float total = 0.0;
        for (uint i = 0; i < GROUP_SUMS; i++) {
            total += group_sums[i];
        }
        group_total = total;
    }
    barrier();
    return group_total;
}

#endif
