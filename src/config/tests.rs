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
    assert!(error("listen: h:1\netcd: x\n").starts_with("f.yaml:2:1: unknown key `etcd` in the file"));
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
    assert!(read("x --etcd http://e:2379").is_err());
}
