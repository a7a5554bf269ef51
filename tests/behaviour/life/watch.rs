//! With `watch_files`, the proxy reloads when files change in the way that a kubelet changes them: each path leads
//! through the symbolic link `..data`, and a rename replaces this link.

use crate::support::certificates::{Authority, Certificate};
use crate::support::fenced::code;
use crate::support::guardian::Folder;
use crate::support::{DEADLINE, Options, Postgres, Proxy, ProxyOptions, Wire, wait_until};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const WRITE: &str = "INSERT INTO jobs VALUES (1)";

/// A ConfigMap or Secret volume, in a kubelet's layout.
struct Volume {
    folder: PathBuf,
    version: u32,
}

impl Volume {
    fn new(folder: PathBuf, files: &[(&str, &[u8])]) -> Self {
        fs::create_dir_all(&folder).unwrap();
        let mut volume = Self { folder, version: 0 };
        volume.update(files);
        for (name, _) in files {
            let link = volume.folder.join("..link");
            symlink(Path::new("..data").join(name), &link).unwrap();
            fs::rename(&link, volume.folder.join(name)).unwrap();
        }
        volume
    }

    /// The steps of the kubelet's atomic writer: create a directory and a link, rename the link, remove the old
    /// directory.
    fn update(&mut self, files: &[(&str, &[u8])]) {
        let directory = |version: u32| format!("..2026_11_28_12_00_00.{version}");
        self.version += 1;
        let new = directory(self.version);
        fs::create_dir(self.folder.join(&new)).unwrap();
        files.iter().for_each(|(name, content)| fs::write(self.folder.join(&new).join(name), content).unwrap());
        let link = self.folder.join("..data_tmp");
        symlink(&new, &link).unwrap();
        fs::rename(&link, self.folder.join("..data")).unwrap();
        if self.version > 1 {
            fs::remove_dir_all(self.folder.join(directory(self.version - 1))).unwrap();
        }
    }
}

fn policies(mode: &str) -> String {
    format!("version: 1\nresources: [{{name: jobs, tables: [public.jobs], mode: {mode}}}]\n")
}

fn login(proxy: &Proxy) -> Wire {
    Wire::login(&proxy.address(), "postgres", "postgres")
}

fn server() -> Postgres {
    let postgres = Postgres::start(Options::default());
    postgres.sql("CREATE TABLE jobs (id int)");
    postgres
}

#[test]
fn policies_of_a_swapped_directory_are_loaded() {
    let postgres = server();
    let proxy = Proxy::start(&postgres, &policies("observe"), &["--watch-files", "50ms"]);
    login(&proxy).rows(WRITE).unwrap();

    let mut volume = Volume::new(proxy.policies(), &[("policies.yaml", policies("enforce").as_bytes())]);
    wait_until("the new policy is enforced", DEADLINE, || login(&proxy).rows(WRITE).is_err());
    assert_eq!(code(&mut login(&proxy), WRITE), "LF002");

    // A faulty version changes nothing. The next version is loaded.
    volume.update(&[("policies.yaml", policies("enforced").as_bytes())]);
    proxy.wait_for_log("reload_failed", DEADLINE);
    assert_eq!(code(&mut login(&proxy), WRITE), "LF002");
    volume.update(&[("policies.yaml", policies("observe").as_bytes())]);
    wait_until("the corrected policy is loaded", DEADLINE, || login(&proxy).rows(WRITE).is_ok());
}

#[test]
fn certificates_of_a_swapped_directory_are_used() {
    let (folder, postgres) = (Folder::new("volume"), server());
    let authority = Authority::new("issuer");
    let files = |certificate: &Certificate| [&certificate.pem, &certificate.key].map(|path| fs::read(path).unwrap());
    let [pem, key] = files(&authority.sign_local("first"));
    let mut volume = Volume::new(folder.join("tls"), &[("tls.crt", &pem), ("tls.key", &key)]);
    let [pem, key] = ["tls.crt", "tls.key"].map(|name| volume.folder.join(name).display().to_string());
    let arguments = ["--watch-files", "50ms", "--tls-cert", &pem, "--tls-key", &key];
    let proxy = Proxy::start_with(&postgres, &ProxyOptions::default().arguments(&arguments));

    let [pem, key] = files(&authority.sign_local("renewed"));
    volume.update(&[("tls.crt", &pem), ("tls.key", &key)]);
    proxy.wait_for_log(r#"certificate_changed key="tls_cert""#, DEADLINE);
    proxy.wait_for_log(r#"certificate_changed key="tls_key""#, DEADLINE);
    assert!(!proxy.log().contains("reload_failed"), "{}", proxy.log());
}

#[test]
fn unchanged_files_are_not_loaded_again() {
    let postgres = server();
    let text = policies("enforce");
    let proxy = Proxy::start(&postgres, &text, &["--watch-files", "10ms"]);
    let reloads = || proxy.log().matches("policies_loaded").count();
    let before = reloads();
    let mut volume = Volume::new(proxy.policies(), &[("policies.yaml", text.as_bytes())]);
    for number in 1..4 {
        wait_until("the new version is loaded", DEADLINE, || reloads() >= before + number);
        volume.update(&[("policies.yaml", text.as_bytes())]);
    }
    wait_until("the last version is loaded", DEADLINE, || reloads() >= before + 4);
    // Many intervals have passed.
    assert_eq!(reloads(), before + 4);
}
