//! Invalid TLS settings: exit code 2 and one line that names the file.

use super::world::leak;
use crate::support::certificates::{Authority, text};
use crate::support::guardian::Folder;
use crate::support::programs::run;
use crate::support::proxy::fencegate;
use std::fs;
use std::process::Command;

#[test]
fn files_that_cannot_be_used() {
    let authority = Authority::new("authority");
    let [one, other] = ["one", "other"].map(|name| authority.sign_local(name));
    let folder = Folder::new("settings");
    fs::create_dir(folder.join("policies")).unwrap();
    fs::write(folder.join("policies/p.yaml"), "version: 1\nresources: []\n").unwrap();
    fs::write(folder.join("empty.pem"), "").unwrap();
    fs::write(folder.join("bad.pem"), "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n").unwrap();
    // Without extensions, openssl creates a version 1 certificate.
    let request =
        "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=old -keyout old.key -out old.csr";
    run(Command::new("openssl").current_dir(folder.path()).args(request.split(' ')));
    let sign = "x509 -req -in old.csr -signkey old.key -days 2 -out old.pem";
    run(Command::new("openssl").current_dir(folder.path()).args(sign.split(' ')));
    let path = |name: &str| leak(text(&folder.join(name)));
    let [pem, key, other_key] = [&one.pem, &one.key, &other.key].map(|path| leak(text(path)));
    for (arguments, message) in [
        (["--tls-cert", path("none.pem"), "--tls-key", key], "tls_cert: PATH: cannot read the file: No such file"),
        (["--tls-cert", pem, "--tls-key", path("policies")], "tls_key: PATH: cannot read the file: Is a directory"),
        (["--tls-cert", path("empty.pem"), "--tls-key", key], "tls_cert: PATH: contains no certificate"),
        (["--tls-cert", path("bad.pem"), "--tls-key", key], "tls_cert: PATH: is not a PEM file of certificates"),
        (["--tls-cert", pem, "--tls-key", pem], "tls_key: PATH: contains no readable private key"),
        (["--tls-cert", pem, "--tls-key", other_key], "tls_key: PATH: is not the key of the certificate in"),
        (
            ["--tls-cert", path("old.pem"), "--tls-key", path("old.key")],
            "tls_cert: PATH: contains a certificate that cannot be used: X.509 version 3",
        ),
        (["--upstream-sslcert", pem, "--upstream-sslkey", other_key], "upstream_sslkey: PATH: is not the key of"),
        (
            ["--upstream-sslmode", "verify-ca", "--upstream-sslrootcert", path("empty.pem")],
            "upstream_sslrootcert: PATH: contains no",
        ),
        (["--upstream-sslmode", "require", "--upstream-sslrootcert", "system"], "requires verify-full"),
        (
            ["--upstream-sslmode", "require", "--control", "postgres://u:p@h?sslrootcert=system&sslmode=allow"],
            "--control",
        ),
    ] {
        let mut command = fencegate();
        command.args(["proxy", "--upstream", "postgres://localhost", "--policies", path("policies")]);
        if !arguments.contains(&"--control") {
            command.args(["--control", "postgres://postgres@localhost"]);
        }
        let output = command.args(arguments).args(["--listen", "127.0.0.1:0"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{arguments:?}: {said}");
        let expected = arguments.map(|argument| message.replace("PATH", argument));
        assert!(expected.iter().any(|message| said.contains(message)), "{arguments:?}: {said}");
    }
    // The proxy does not read files that it does not use.
    let arguments = ["--tls", "off", "--tls-cert", "/none", "--tls-key", "/none", "--upstream-sslmode", "disable"];
    let mut command = fencegate();
    command.args(["proxy", "--upstream", "postgres://localhost", "--policies", "/none", "--control", "postgres://u@h"]);
    let output = command.args(arguments).args(["--upstream-sslrootcert", "/none"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stderr).contains("ssl"), "{output:?}");
}
