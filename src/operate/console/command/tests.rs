use super::*;

fn reset(resource: &str, database: Option<&str>, token: Token, force: bool) -> Command {
    let database = database.map(str::to_owned);
    Command::FenceReset(FenceReset { resource: resource.into(), database, token, force })
}

#[test]
fn commands_are_read() {
    for (text, commands) in [
        ("", vec![]),
        (" ;\n; ", vec![]),
        ("show Fences", vec![Command::Show(Show::Fences)]),
        ("SHOW FENCES;SHOW\tPolicies ;", vec![Command::Show(Show::Fences), Command::Show(Show::Policies)]),
        ("Help; reload", vec![Command::Show(Show::Help), Command::Reload]),
        ("fence reset shard/3 to 9223372036854775807", vec![reset("shard/3", None, i64::MAX, false)]),
        ("FENCE RESET Shard IN DATABASE App TO 7 force", vec![reset("Shard", Some("app"), 7, true)]),
        ("FENCE RESET 'shard/3' IN DATABASE \"My \"\"App\" TO 7;", vec![reset("shard/3", Some("My \"App"), 7, false)]),
        ("FENCE RESET to TO 7", vec![reset("to", None, 7, false)]),
        ("FENCE RESET FORCE TO 7", vec![reset("FORCE", None, 7, false)]),
        ("FENCE RESET 'it''s; TO 8'TO 7", vec![reset("it's; TO 8", None, 7, false)]),
    ] {
        assert_eq!(parse(text), Ok(commands), "{text:?}");
    }
}

#[test]
fn every_listed_command_is_parsed() {
    for CommandHelp { command, arguments, .. } in &COMMANDS {
        let arguments = match *arguments {
            "" => "",
            RESET_ARGUMENTS => "r IN DATABASE d TO 7 FORCE",
            _ => "7",
        };
        assert!(parse(&format!("{command} {arguments}")).is_ok(), "{command}");
    }
}

#[test]
fn a_text_with_an_invalid_command_is_rejected() {
    for text in [
        "SELECT 2",
        "SHOW",
        "SHOW FENCES now",
        "'SHOW' FENCES",
        "SHOW FENCES; nonsense",
        "RELOAD now",
        "FENCE RESET r",
        "FENCE RESET r TO",
        "FENCE RESET r TO FORCE",
        "FENCE RESET r TO 0",
        "FENCE RESET r TO -1",
        "FENCE RESET r TO +1",
        "FENCE RESET r TO '7'",
        "FENCE RESET r TO 9223372036854775808",
        "FENCE RESET r TO 7 FORCE FORCE",
        "FENCE RESET r IN DATABASE TO 7",
        "FENCE RESET r IN DATABASE '' TO 7",
        "FENCE RESET r IN app TO 7",
        "FENCE RESET 'r TO 7",
        "KILL",
        "KILL all",
        "KILL -1",
        "KILL '1'",
        "PAUSE",
        "PAUSE ''",
        "RESUME a b",
    ] {
        assert_eq!(parse(text).map_err(|error| error.code), Err("42601"), "{text:?}");
    }
}

#[test]
fn the_number_of_commands_in_a_text_is_limited() {
    assert_eq!(parse(&"HELP;".repeat(MOST_COMMANDS)).map(|commands| commands.len()), Ok(MOST_COMMANDS));
    assert_eq!(parse(&"HELP;".repeat(MOST_COMMANDS + 1)).map_err(|error| error.code), Err("54000"));
}

#[test]
fn unknown_commands_get_suggestions() {
    let hint = |text| parse(text).unwrap_err().hint;
    for (said, meant) in [
        ("SHOW FENCE", "SHOW FENCES"),
        ("show policy", "SHOW POLICIES"),
        ("SHWO STATS", "SHOW STATS"),
        ("RELAOD", "RELOAD"),
        ("FENCES RESET r TO 7", "FENCE RESET"),
    ] {
        assert!(hint(said).starts_with(&format!("Did you mean {meant}?")), "{said}: {}", hint(said));
    }
    assert_eq!(parse("SHOW FENCES $1").unwrap_err().message, "SHOW FENCES takes no arguments");
    assert_eq!(hint("KILL"), "Usage: KILL <session>");
    assert_eq!(hint("nonsense"), "SHOW HELP lists the commands.");
    assert!(hint("select * from t").contains("connect to a database"));
}

#[test]
fn a_text_is_split_into_words() {
    let plain = |text: &str| CommandWord::Plain(text.to_owned());
    let quoted = |text: &str| CommandWord::Quoted(text.to_owned());
    for (text, expected) in [
        ("", vec![]),
        (" -- ping", vec![]),
        ("/* a /* b */ ; */ SHOW", vec![plain("SHOW")]),
        ("SHOW--x\nFENCES;", vec![plain("SHOW"), plain("FENCES"), CommandWord::Semicolon]),
        ("'it''s; -- x'TO 7", vec![quoted("it's; -- x"), plain("TO"), plain("7")]),
        ("shard/3/*c*/\"\"", vec![plain("shard/3"), quoted("")]),
    ] {
        assert_eq!(words(text), Ok(expected), "{text:?}");
    }
    for text in ["/*", "/* /* */", "'x", "\"x\"\"", "\u{e9}\""] {
        assert_eq!(words(text).unwrap_err().code, "42601", "{text:?}");
    }
}

#[test]
fn only_unquoted_sql_names_are_folded() {
    let name = |text| words(text).unwrap().pop().unwrap();
    assert_eq!(name("App").sql_name().as_deref(), Some("app"));
    assert_eq!(name("\"App\"").sql_name().as_deref(), Some("App"));
    assert_eq!(name("App").name().as_deref(), Some("App"));
    assert_eq!(name("''").sql_name(), None);
}
