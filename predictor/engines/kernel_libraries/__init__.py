"""Libraries of kernels that engines share, a file each."""
