//! An authority of its own for each test, and certificates that it signs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType, date_time_ymd,
};

static NAMES: AtomicU64 = AtomicU64::new(0);

/// Whoever signs.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

/// A certificate and its key, in PEM.
pub struct Signed {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // By which certificates name who signed them.
        let name = format!("authority {}", NAMES.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate with these names: URIs have a colon.
    pub fn sign(&self, names: &[&str]) -> Signed {
        self.sign_with(names, |_| {})
    }

    /// The same, out of date.
    pub fn sign_expired(&self, names: &[&str]) -> Signed {
        self.sign_with(names, |params| params.not_after = date_time_ymd(2001, 1, 1))
    }

    fn sign_with(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Signed {
        let mut params = CertificateParams::default();
        let name = |name: &&str| match name.contains(':') {
            true => SanType::URI((*name).try_into().unwrap()),
            false => SanType::DnsName((*name).try_into().unwrap()),
        };
        params.subject_alt_names = names.iter().map(name).collect();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Signed { certificate, key: key.serialize_pem() }
    }
}

impl Signed {
    /// Writes both as files: `cert.pem`, and `key.pem` that only its owner can read. What was there
    /// is replaced as a whole.
    pub fn write(&self, directory: &Path) -> (PathBuf, PathBuf) {
        let write = |name: &str, text: &str| {
            let (path, new) = (directory.join(name), directory.join(format!("{name}.new")));
            fs::write(&new, text).unwrap();
            fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
            fs::rename(&new, &path).unwrap();
            path
        };
        (write("cert.pem", &self.certificate), write("key.pem", &self.key))
    }
}
