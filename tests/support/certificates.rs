//! Certificate authorities for tests, created with openssl.

use super::guardian::Folder;
use super::programs::run;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const NEW_KEY: &str = "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

/// A certificate authority with the certificates that it has signed.
pub struct Authority(Arc<Folder>);

/// Validity period of a certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    Now,
    Expired,
    NotYet,
}

/// A certificate and its key.
#[derive(Clone)]
pub struct Certificate {
    pub pem: PathBuf,
    pub key: PathBuf,
    /// Keeps the folder of the files.
    _folder: Arc<Folder>,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let authority = Self(Arc::new(Folder::new("authority")));
        authority.openssl(&format!("{NEW_KEY} -x509 -days 2 -subj /CN={name} -keyout ca.key -out ca.pem"));
        let settings = "[ca]\ndefault_ca=d\n[d]\ndatabase=index\nserial=serial\nnew_certs_dir=.\npolicy=p\n\
            default_md=sha256\ncertificate=ca.pem\nprivate_key=ca.key\nunique_subject=no\n[p]\ncommonName=supplied\n";
        for (file, text) in [("settings", settings), ("index", ""), ("serial", "1000\n")] {
            fs::write(authority.file(file), text).unwrap();
        }
        authority
    }

    /// The authority's own certificate.
    pub fn pem(&self) -> PathBuf {
        self.file("ca.pem")
    }

    /// Signs a certificate for these alternative names, as in `DNS:localhost,IP:127.0.0.1`.
    pub fn sign(&self, name: &str, alternative_names: &str, validity: Validity) -> Certificate {
        self.openssl(&format!("{NEW_KEY} -subj /CN={name} -keyout {name}.key -out {name}.csr"));
        fs::write(self.file("extensions"), format!("subjectAltName={alternative_names}\n")).unwrap();
        let (start, end) = match validity {
            Validity::Now => ("20200101000000Z", "20900101000000Z"),
            Validity::Expired => ("20200101000000Z", "20200102000000Z"),
            Validity::NotYet => ("20890101000000Z", "20900101000000Z"),
        };
        let sign = "ca -batch -notext -config settings -extfile extensions";
        self.openssl(&format!("{sign} -startdate {start} -enddate {end} -in {name}.csr -out {name}.pem"));
        let [pem, key] = ["pem", "key"].map(|kind| self.file(&format!("{name}.{kind}")));
        Certificate { pem, key, _folder: self.0.clone() }
    }

    /// Signs a certificate for this machine, valid now.
    pub fn sign_local(&self, name: &str) -> Certificate {
        self.sign(name, "DNS:localhost,IP:127.0.0.1", Validity::Now)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn openssl(&self, arguments: &str) {
        run(Command::new("openssl").current_dir(self.0.path()).args(arguments.split(' ')));
    }
}

/// A path as an argument.
pub fn text(path: &Path) -> String {
    path.display().to_string()
}
