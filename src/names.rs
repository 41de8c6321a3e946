//! How a static binary looks up names of hosts: by what it brings along.
//!
//! Only clients ask for names; the server never does.

/// Keeps glibc to /etc/hosts and DNS, which are in the binary. Other modules that /etc/nsswitch.conf may
/// name would be loaded from the image that the binary was put into, whose glibc is another.
pub(crate) fn look_up_without_modules() {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    {
        unsafe extern "C" {
            fn __nss_configure_lookup(
                database: *const std::ffi::c_char,
                modules: *const std::ffi::c_char,
            ) -> std::ffi::c_int;
        }
        // SAFETY: both are strings that end with a zero and are only read, and no other thread
        // is there yet. Whether it failed matters to nobody: then it is as it would have been.
        unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
    }
}
