// The largest of 256 lanes' keys. Include this behind the entry's `layout(local_size_x = 256) in`.

#ifndef GROUP_MAX_GLSL
#define GROUP_MAX_GLSL

const uint GROUP_PEAKS = 16;

shared uint group_key[256];
shared uint group_peaks[GROUP_PEAKS];
shared uint group_peak;

// Every lane of the group must call it and gets the same; the group meets in it.
uint group_max(uint key) {
    uint lane = gl_LocalInvocationID.x;
    group_key[lane] = key;
    barrier();
    if (lane < GROUP_PEAKS) {
        uint most = 0;
        for (uint i = lane; i < 256; i += GROUP_PEAKS) {
            most = max(most, group_key[i]);
        }
        group_peaks[lane] = most;
    }
    barrier();
    if (lane == 0) {
        uint most = 0;
        for (uint i = 0; i < GROUP_PEAKS; i++) {
            most = max(most, group_peaks[i]);
        }
        group_peak = most;
    }
    barrier();
    return group_peak;
}

#endif
