//! Names of the errors that starting a process meets. Pure.

macro_rules! names {
    ($($name:ident)*) => {
        /// The name of an error, as "ENOENT"; none: it is not among those that are met.
        pub(super) fn name(errno: i32) -> Option<&'static str> {
            match errno {
                $(libc::$name => Some(stringify!($name)),)*
                _ => None,
            }
        }
    };
}

names! {
    E2BIG EACCES EAGAIN EBADF EBUSY EEXIST EFAULT EINTR EINVAL EIO EISDIR ELIBBAD ELOOP EMFILE
    ENAMETOOLONG ENFILE ENODEV ENOENT ENOEXEC ENOMEM ENOSPC ENOSYS ENOTDIR ENOTTY ENXIO EOPNOTSUPP
    EPERM EROFS ESRCH ESTALE ETXTBSY EUSERS
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn an_error_has_its_name() {
        assert_eq!((name(2), name(13), name(7)), (Some("ENOENT"), Some("EACCES"), Some("E2BIG")));
        assert_eq!(name(0), None);
    }
}
