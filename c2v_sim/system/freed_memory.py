"""keep_freed_memory: freed tensors stay in the process instead of going back to the system.

glibc maps every block above 32 MiB afresh and unmaps it when it is freed, and it gives back the
end of the heap. A training step that makes the same tensors as the one before it then spends up
to half of its time on page faults. Keeping the memory costs its peak amount until the process
ends, which is what a simulation needs anyway.
"""

import ctypes

# mallopt's parameters, from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGEST = 2**31 - 1  # mallopt takes a C int


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory for reuse; True if it accepted, False without glibc.

    For the whole process; call it at start-up, before threads and large tensors exist. All
    threads share one arena afterwards: only that one can hold a large tensor's memory, the
    arenas of threads are cut into heaps of 64 MiB.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):  # musl, macOS: other allocators, other knobs
        return False
    settings = {_M_TRIM_THRESHOLD: _LARGEST, _M_MMAP_THRESHOLD: _LARGEST, _M_ARENA_MAX: 1}
    accepted = [libc.mallopt(parameter, value) for parameter, value in settings.items()]
    return all(accepted)
