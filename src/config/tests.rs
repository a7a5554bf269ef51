//! Where each setting comes from, and what a mistake in one is told.

use super::*;

fn arguments() -> SettingsArguments {
    SettingsArguments {
        upstream: Some("postgres://db".to_owned()),
        control: Some("postgres://gate:secret@db/".to_owned()),
        policies: Some("policies".into()),
        ..SettingsArguments::default()
    }
}

fn load(arguments: SettingsArguments, file: &str) -> Result<Settings, String> {
    let file = match file {
        "" => Ok(File::default()),
        text => File::parse(Path::new("f.yaml"), text.as_bytes()),
    };
    file.and_then(|file| Settings::join(arguments, file, Passwords::default())).map_err(|error| error.to_string())
}

const FILE: &str =
    "listen: [127.0.0.1:1, /run/gate]\nupstream: /run/pg\ncontrol: host=db user=filed\npolicies: filed\n";

#[test]
fn an_argument_beats_the_file_and_the_file_the_default() {
    let settings = load(arguments(), "").unwrap();
    assert_eq!(settings.listen[0].to_string(), "127.0.0.1:6432");
    let settings = load(SettingsArguments::default(), FILE).unwrap();
    assert_eq!(settings.listen.len(), 2);
    assert_eq!(settings.upstream.to_string(), "/run/pg:5432");
    assert_eq!((settings.control.get_user(), settings.policies.as_path()), (Some("filed"), Path::new("filed")));
    let given = SettingsArguments { listen: vec!["[::1]:7".to_owned()], ..arguments() };
    let settings = load(given, FILE).unwrap();
    assert_eq!((settings.listen.len(), settings.listen[0].to_string().as_str()), (1, "[::1]:7"));
    assert_eq!(settings.upstream.to_string(), "db:5432");
    assert_eq!((settings.control.get_user(), settings.policies.as_path()), (Some("gate"), Path::new("policies")));
    assert_eq!(load(arguments(), "listen: h:1\n").unwrap().listen[0].to_string(), "h:1");
}

#[test]
fn mistakes_in_the_file_have_a_place() {
    let error = |file: &str| load(arguments(), file).unwrap_err();
    assert!(error("listen: h:1\nhttp: x\n").starts_with("f.yaml:2:1: unknown key `http` in the file"));
    assert!(error("listen: [h:1, h]\n").starts_with("f.yaml:1:15: `listen` `h` has no port"));
    assert!(error("policies: [a]\n").starts_with("f.yaml:1:11: `policies` must be text"));
    assert!(error("listen: [\n").starts_with("f.yaml:1:"));
}

#[test]
fn mistakes_in_arguments_name_the_flag_and_keep_the_password() {
    let control =
        |text: &str| load(SettingsArguments { control: Some(text.to_owned()), ..arguments() }, "").unwrap_err();
    for bad in ["postgres://:secret@db", "postgres://u:secret@", "secret", "postgres://u:secret@db/?sslmode=require"] {
        let error = control(bad);
        assert!(error.starts_with("--control or FENCEGATE_CONTROL: ") && !error.contains("secret"), "{bad}: {error}");
        assert!(!error.contains('\n'));
    }
    let error = load(SettingsArguments::default(), "").unwrap_err();
    assert!(error.starts_with("`policies` is not set: give --policies, FENCEGATE_POLICIES or"), "{error}");
    let error = load(SettingsArguments { upstream: None, ..arguments() }, "").unwrap_err();
    assert!(error.starts_with("`upstream` is not set"), "{error}");
}

#[test]
fn etcd_is_told_apart_by_key() {
    let settings =
        load(arguments(), "etcd: [https://a:1, https://b:2]\netcd_ca: ca.pem\netcd_user: gate\netcd_password: filed\n");
    let etcd = settings.unwrap().etcd.unwrap();
    assert_eq!((etcd.members.len(), etcd.ca.as_deref()), (2, Some(Path::new("ca.pem"))));
    assert_eq!(etcd.credentials, Some(("gate".into(), "filed".into())));
    assert_eq!(load(arguments(), "etcd: http://a:1\n").unwrap().etcd.unwrap().members, ["http://a:1"]);
    let given = EtcdArguments {
        etcd: vec!["http://flag:1".into()],
        etcd_password: Some("flagged".into()),
        ..EtcdArguments::default()
    };
    let mixed = load(SettingsArguments { etcd: given, ..arguments() }, "etcd: http://a:1\netcd_user: gate\n")
        .unwrap()
        .etcd
        .unwrap();
    assert_eq!(
        (mixed.members, mixed.credentials),
        (vec!["http://flag:1".into()], Some(("gate".into(), "flagged".into())))
    );

    let error = |file: &str| load(arguments(), file).unwrap_err();
    assert!(error("etcd: a:1\n").starts_with("f.yaml:1:7: `etcd` `a:1` is no member"));
    assert!(error("etcd_user: gate\n").starts_with("--etcd-password or FENCEGATE_ETCD_PASSWORD: is missing"));
    assert!(error("etcd_ca: [x]\n").starts_with("f.yaml:1:10: `etcd_ca` must be text"));
    assert!(error("etcd_ca: ca.pem\n").starts_with("--etcd or FENCEGATE_ETCD: is missing"));
}

#[test]
fn the_console_is_for_the_control_role_unless_others_are_named() {
    assert_eq!(load(arguments(), "").unwrap().admin_roles, ["gate"]);
    assert_eq!(load(arguments(), "admin_roles: [ada, bob]\n").unwrap().admin_roles, ["ada", "bob"]);
    let given = SettingsArguments { admin_roles: vec!["eve".into()], ..arguments() };
    assert_eq!(load(given, "admin_roles: ada\n").unwrap().admin_roles, ["eve"]);
}

#[test]
fn a_control_connection_of_another_database_keeps_the_rest() {
    let settings = load(arguments(), "").unwrap();
    let config = settings.control_for("app");
    assert_eq!((config.get_dbname(), config.get_password()), (Some("app"), Some(b"secret".as_slice())));
    assert!(!format!("{settings:?}").contains("secret"));
}

#[test]
fn the_flags_are_read_and_unknown_ones_refused() {
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        settings: SettingsArguments,
    }
    let read = |line: &str| Line::try_parse_from(line.split(' ')).map(|line| line.settings);
    let settings = read("x --listen h:1 --listen h:2,/run/x --policies p").unwrap();
    assert_eq!(settings.listen, ["h:1", "h:2", "/run/x"]);
    assert_eq!(settings.policies.as_deref(), Some(Path::new("p")));
    assert!(read("x --http 127.0.0.1:1").is_err());
}
