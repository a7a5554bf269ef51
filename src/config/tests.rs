//! Sources of settings, and the errors of invalid ones.

use super::*;
use fencegate_leader::etcd::EtcdPassword;
use fencegate_postgres::SslMode;
use std::path::Path;

/// The required arguments, and those of `line`.
fn arguments(line: &str) -> SettingsArguments {
    read(&format!("--upstream postgres://db --control postgres://gate:secret@db/ --policies policies {line}"))
}

fn read(line: &str) -> SettingsArguments {
    try_read(line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn try_read(line: &str) -> Result<SettingsArguments, clap::Error> {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        settings: SettingsArguments,
    }
    <Line as clap::Parser>::try_parse_from(["x"].into_iter().chain(line.split_whitespace())).map(|line| line.settings)
}

fn load(arguments: &SettingsArguments, file: &str) -> Result<Settings, ConfigError> {
    let file = match file {
        "" => Ok(Texts::default()),
        text => Texts::parse(Path::new("f.yaml"), text.as_bytes()),
    };
    let read = |file| Settings::read(Texts::join(&arguments.flags, file));
    file.and_then(read)
}

fn error(line: &str, file: &str) -> String {
    load(&arguments(line), file).unwrap_err().to_string()
}

const FILE: &str =
    "listen: [127.0.0.1:1, /run/gate]\nupstream: /run/pg\ncontrol: host=db user=filed\npolicies: filed\n";

#[test]
fn arguments_override_the_file_and_the_file_overrides_defaults() {
    let settings = load(&arguments(""), "").unwrap();
    assert_eq!(settings.listen[0].to_string(), "127.0.0.1:6432");
    let settings = load(&read(""), FILE).unwrap();
    assert_eq!(settings.listen.len(), 2);
    assert_eq!(settings.upstream.to_string(), "/run/pg:5432");
    assert_eq!((settings.control.get_user(), settings.policies.as_path()), (Some("filed"), Path::new("filed")));
    let settings = load(&arguments("--listen [::1]:7"), FILE).unwrap();
    assert_eq!((settings.listen.len(), settings.listen[0].to_string().as_str()), (1, "[::1]:7"));
    assert_eq!(settings.upstream.to_string(), "db:5432");
    assert_eq!((settings.control.get_user(), settings.policies.as_path()), (Some("gate"), Path::new("policies")));
    assert_eq!(load(&arguments(""), "listen: h:1\n").unwrap().listen[0].to_string(), "h:1");
}

#[test]
fn errors_in_the_file_have_a_position() {
    let error = |file: &str| error("", file);
    assert_eq!(error("listen: h:1\nhtpp: x\n"), "f.yaml:2:1: unknown key `htpp` in the file: did you mean `http`?");
    assert!(
        error("listen: h:1\nabc: x\n").starts_with("f.yaml:2:1: unknown key `abc` in the file; known are listen, ")
    );
    assert!(error("listen: [h:1, h]\n").starts_with("f.yaml:1:15: `listen` `h` has no port"));
    assert!(error("policies: [a]\n").starts_with("f.yaml:1:11: `policies` must be text"));
    assert!(error("http: /run\n").starts_with("f.yaml:1:7: `http` `/run` has no port"));
    assert!(error("max_connections: 0\n").starts_with("f.yaml:1:18: `max_connections` `0` is not a number from 1"));
    assert!(error("idle_timeout: 1.5\n").starts_with("f.yaml:1:15: `idle_timeout` must be text"));
    assert!(
        error("log_sessions: off\ntls: on\n").starts_with("f.yaml:2:6: `tls` `on` is not one of off, allow, require")
    );
    assert!(error("listen: [\n").starts_with("f.yaml:1:"));
}

#[test]
fn errors_in_arguments_name_the_flag_and_hide_the_password() {
    for bad in ["postgres://:secret@db", "postgres://u:secret@", "secret"] {
        let line = format!("--upstream postgres://db --policies p --control {bad}");
        let error = load(&read(&line), "").unwrap_err().to_string();
        assert!(error.starts_with("--control or FENCEGATE_CONTROL: ") && !error.contains("secret"), "{bad}: {error}");
        assert!(!error.contains('\n'));
    }
    let error = load(&read(""), "").unwrap_err().to_string();
    for (line, name) in error.lines().zip(["upstream", "control", "policies"]) {
        assert!(line.contains(&format!("`{name}` is not set: set --{name}, FENCEGATE_")), "{error}");
    }
    assert_eq!(error.lines().count(), 3, "{error}");
    let error = load(&read("--control postgres://u@db --policies p"), "").unwrap_err().to_string();
    assert!(error.starts_with("`upstream` is not set"), "{error}");
}

#[test]
fn etcd_settings_are_merged_by_key() {
    let file = "etcd: [https://a:1, https://b:2]\netcd_ca: ca.pem\netcd_user: gate\netcd_password: filed\n";
    let etcd = load(&arguments(""), file).unwrap().etcd.unwrap();
    assert_eq!((etcd.members.len(), etcd.ca.as_deref()), (2, Some(Path::new("ca.pem"))));
    assert!(etcd.credentials == Some(("gate".into(), EtcdPassword::Given("filed".into()))));
    assert_eq!(load(&arguments(""), "etcd: http://a:1\n").unwrap().etcd.unwrap().members, ["http://a:1"]);
    let given = arguments("--etcd http://flag:1 --etcd-password flagged");
    let mixed = load(&given, "etcd: http://a:1\netcd_user: gate\n").unwrap().etcd.unwrap();
    assert_eq!(mixed.members, ["http://flag:1"]);
    assert!(mixed.credentials == Some(("gate".into(), EtcdPassword::Given("flagged".into()))));
    let filed =
        load(&arguments("--etcd-password-file f"), "etcd: http://a:1\netcd_user: gate\n").unwrap().etcd.unwrap();
    assert!(filed.credentials == Some(("gate".into(), EtcdPassword::File("f".into()))));

    let error = |file: &str| error("", file);
    assert!(error("etcd: a:1\n").starts_with("f.yaml:1:7: `etcd` `a:1` is not an etcd member"));
    assert!(
        error("etcd_user: gate\n").starts_with("f.yaml:1:12: `etcd_user` needs etcd_password or etcd_password_file")
    );
    assert!(error("etcd_ca: [x]\n").starts_with("f.yaml:1:10: `etcd_ca` must be text"));
    assert!(error("etcd_ca: ca.pem\n").starts_with("f.yaml:1:10: `etcd_ca` needs etcd, the members"));
}

#[test]
fn the_console_is_for_the_control_role_unless_others_are_named() {
    assert_eq!(load(&arguments(""), "").unwrap().admin_roles, ["gate"]);
    assert_eq!(load(&arguments(""), "admin_roles: [ada, bob]\n").unwrap().admin_roles, ["ada", "bob"]);
    assert_eq!(load(&arguments("--admin-roles eve"), "admin_roles: ada\n").unwrap().admin_roles, ["eve"]);
}

#[test]
fn a_default_from_another_setting_is_shown() {
    let shown = |line: &str| {
        let settings = load(&arguments(line), "").unwrap();
        let shown = settings.shown.into_iter().find(|shown| shown.setting.key == "admin_roles").unwrap();
        (shown.value.unwrap(), shown.source)
    };
    assert_eq!(shown(""), ("gate".to_owned(), "default".to_owned()));
    assert_eq!(shown("--admin-roles eve"), ("eve".to_owned(), "flag or environment".to_owned()));
}

#[test]
fn a_changed_secret_is_reported_without_its_value() {
    let with = |password: &str, of_etcd: &str| {
        let file = format!("etcd: http://a:1\netcd_user: gate\netcd_password: {of_etcd}\n");
        let line = format!("--upstream postgres://db --policies p --control postgres://gate:{password}@db/");
        load(&read(&line), &file).unwrap()
    };
    let (settings, changes) = with("s3cret1", "s3cret2").reloaded(with("s3cret3", "s3cret4"));
    let said: Vec<_> = changes.iter().map(|it| (it.key, &*it.before, &*it.after, it.applied)).collect();
    let url = "postgres://gate:***@db/";
    assert_eq!(said, [("control", url, url, true), ("etcd_password", "***", "***", true)]);
    assert!(!format!("{settings:?} {changes:?}").contains("s3cret"));
    assert_eq!(settings.reloaded(with("s3cret3", "s3cret4")).1, []);
}

#[test]
fn a_reload_adds_replaces_and_removes_etcd() {
    let with = |file: &str| load(&arguments(""), file).unwrap();
    let (without, one, other) = (with(""), with("etcd: http://a:1\n"), with("etcd: http://b:1\n"));
    let members = |settings: Settings| settings.etcd.map(|etcd| etcd.members.concat());
    for (before, new, expected) in
        [(&without, &one, Some("http://a:1")), (&one, &without, None), (&one, &other, Some("http://b:1"))]
    {
        let (settings, changes) = before.reloaded(new.clone());
        assert_eq!((changes[0].applied, members(settings).as_deref()), (true, expected));
    }
}

#[test]
fn known_flags_are_read_and_unknown_ones_rejected() {
    let settings = load(&arguments("--listen h:1 --listen h:2,/run/x --http h:9432"), "").unwrap();
    let listen: Vec<_> = settings.listen.iter().map(ToString::to_string).collect();
    assert_eq!(listen, ["h:1", "h:2", "/run/x:6432"]);
    assert_eq!(settings.http.map(|it| it.to_string()).as_deref(), Some("h:9432"));
    assert!(try_read("--htpp 127.0.0.1:1").is_err());
}

#[test]
fn defaults_match_the_table() {
    let settings = load(&arguments(""), "").unwrap();
    assert_eq!((settings.limits.connections.get(), settings.limits.connections_per_user), (1000, None));
    assert_eq!((settings.limits.startup.as_secs(), settings.limits.idle), (60, None));
    assert_eq!((settings.tls, settings.http), (None, None));
    assert_eq!(settings.upstream_tls.mode, SslMode::Prefer);
    assert_eq!(settings.log_sessions, Some(tracing::Level::INFO));
}

#[test]
fn tls_settings_must_be_consistent() {
    let tls = |line: &str| load(&arguments(line), "").map(|settings| settings.tls);
    assert_eq!(tls("--tls off --tls-cert c --tls-key k").unwrap(), None);
    let allowed = tls("--tls-cert c --tls-key k").unwrap().unwrap();
    assert_eq!((allowed.encryption, allowed.client_certificates), (Encryption::Allow, ClientCertificates::Off));
    let required = tls("--tls require --tls-cert c --tls-key k --tls-client-certificates optional --tls-client-ca a");
    assert_eq!(required.unwrap().unwrap().client_certificates, ClientCertificates::Optional("a".into()));
    for (line, beginning) in [
        ("--tls require", "--tls or FENCEGATE_TLS: needs tls_cert and tls_key"),
        ("--tls-cert c", "--tls-cert or FENCEGATE_TLS_CERT: needs tls_key"),
        ("--tls-key k", "--tls-key or FENCEGATE_TLS_KEY: needs tls_cert"),
        ("--tls-client-certificates required", "--tls-client-certificates or "),
        ("--tls-client-certificates required --tls-client-ca a", "--tls-client-certificates or "),
        (
            "--tls-cert c --tls-key k --tls-client-ca a",
            "--tls-client-ca or FENCEGATE_TLS_CLIENT_CA: has no effect: set tls_client_certificates",
        ),
        ("--tls-min-version 1.1", "--tls-min-version or FENCEGATE_TLS_MIN_VERSION: `1.1` is not one of"),
        (
            "--upstream-sslmode verify-full",
            "--upstream-sslmode or FENCEGATE_UPSTREAM_SSLMODE: needs upstream_sslrootcert, which is required",
        ),
        ("--upstream-sslcert c", "--upstream-sslcert or FENCEGATE_UPSTREAM_SSLCERT: needs upstream_sslkey"),
    ] {
        assert!(error(line, "").starts_with(beginning), "{line}: {}", error(line, ""));
    }
    assert!(error("", "keepalive: 1\ntls: require\n").starts_with("f.yaml:2:6: `tls` needs tls_cert and tls_key"));
    let file = "upstream_sslmode: verify-full\n";
    assert!(error("", file).starts_with("f.yaml:1:19: `upstream_sslmode` needs upstream_sslrootcert"));
    // With client certificates off, the setting of the authorities is permitted.
    tls("--tls-cert c --tls-key k --tls-client-ca a --tls-client-certificates off").unwrap();
}

#[test]
fn an_empty_flag_is_rejected() {
    for line in [["--tls-cert", ""], ["--etcd", "http://a:1,"]] {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            _settings: SettingsArguments,
        }
        let error = <Line as clap::Parser>::try_parse_from(["x"].iter().chain(&line)).err().unwrap();
        assert!(error.to_string().contains(&format!("{} is empty", line[0])), "{error}");
    }
}

#[test]
fn settings_are_shown_without_secrets() {
    let line = "--etcd http://a:1 --etcd-user gate --etcd-password secret";
    let settings = load(&arguments(line), "keepalive: 5\n").unwrap();
    let shown = |key| settings.shown.iter().find(|shown| shown.setting.key == key).unwrap();
    assert_eq!(shown("control").value.as_deref(), Some("postgres://gate:***@db/"));
    assert_eq!(shown("etcd_password").value.as_deref(), Some("***"));
    assert_eq!((shown("keepalive").value.as_deref(), shown("keepalive").source.as_str()), (Some("5"), "f.yaml:1:12"));
    assert_eq!((shown("http").value.as_deref(), shown("http").source.as_str()), (None, "default"));
    assert_eq!(shown("upstream").source, "flag or environment");
    for control in ["host=db user=u password=secret", "postgres://u@db/?password=secret", "postgres://u:se@cret@db"] {
        let mut given = arguments("");
        given.flags = given.flags.with("control", &[control.to_owned()]);
        let settings = load(&given, "").unwrap();
        let shown = settings.shown.iter().find(|shown| shown.setting.key == "control").unwrap();
        assert!(!shown.value.as_ref().unwrap().contains("cret"), "{shown:?}");
    }
}

#[test]
fn a_reload_applies_reloadable_settings() {
    let settings = load(&arguments(""), "max_connections: 10\nworkers: 1\n").unwrap();
    let new = load(&arguments(""), "max_connections: 20\nworkers: 2\nidle_timeout: 5min\n").unwrap();
    let (reloaded, changes) = settings.reloaded(new);
    assert_eq!((reloaded.limits.connections.get(), reloaded.workers.get()), (20, 1));
    let changes: Vec<_> =
        changes.iter().map(|it| (it.key, it.before.as_str(), it.after.as_str(), it.applied)).collect();
    assert_eq!(
        changes,
        [("max_connections", "10", "20", true), ("workers", "1", "2", false), ("idle_timeout", "0", "5min", true)]
    );
    let (_, again) =
        reloaded.reloaded(load(&arguments(""), "max_connections: 20\nworkers: 1\nidle_timeout: 5min\n").unwrap());
    assert_eq!(again, []);
}
