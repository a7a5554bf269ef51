//! Texts of settings and their sources. Precedence: flag, environment variable, file, default.
//!
//! Owns the source that an error names. Must never print a secret.

use super::table::{Fallback, Form, SETTINGS, Setting};
use super::{ConfigError, SettingError};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use fencegate_policy::yaml::{self, Fault, FileError, LARGEST_FILE, Node, NodeReader, Value};
use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

/// Flags and environment variables of all settings, or only of those for connecting to etcd. Not `Debug`: they contain
/// passwords.
#[derive(Clone, Default)]
pub struct Flags<const OF_ETCD: bool>(Texts);

/// Settings from the command line and the environment.
#[derive(clap::Args, Clone, Default)]
pub struct SettingsArguments {
    /// YAML file of settings; keys are the flags below with `_` instead of `-`
    #[arg(long, env = "FENCEGATE_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<String>,
    #[command(flatten)]
    pub(super) flags: Flags<false>,
}

impl<const OF_ETCD: bool> Flags<OF_ETCD> {
    fn settings() -> impl Iterator<Item = &'static Setting> {
        SETTINGS.iter().filter(|setting| !OF_ETCD || setting.key.starts_with("etcd_"))
    }

    /// Adds a flag.
    pub(super) fn with(mut self, key: &'static str, texts: &[String]) -> Self {
        self.0.set(key, texts, &Source::Argument);
        self
    }
}

impl<const OF_ETCD: bool> clap::Args for Flags<OF_ETCD> {
    fn augment_args(command: Command) -> Command {
        command.args(Self::settings().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument(setting: &Setting) -> Arg {
    let default = match setting.default {
        Fallback::Required => String::new(),
        Fallback::Is(text) => format!(" [default: {text}]"),
        Fallback::Nothing(meaning) => format!(" [default: {meaning}]").replace('`', ""),
    };
    let argument = Arg::new(setting.key)
        .long(setting.flag())
        .env(setting.variable())
        .value_name(setting.value)
        .hide_env_values(setting.form == Form::Secret)
        .help(format!("{}: {}{default}", setting.help, setting.range.replace('`', "")));
    match setting.form {
        Form::List => argument.action(ArgAction::Append).value_delimiter(','),
        Form::Text | Form::Secret | Form::Number => argument,
    }
}

impl<const OF_ETCD: bool> clap::FromArgMatches for Flags<OF_ETCD> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Texts::default();
        for setting in Self::settings() {
            let texts: Vec<_> = matches.get_many::<String>(setting.key).into_iter().flatten().cloned().collect();
            let is_flag = matches.value_source(setting.key) == Some(ValueSource::CommandLine);
            if is_flag && texts.iter().any(String::is_empty) {
                let message = format!("--{} is empty: set a value or omit it\n", setting.flag());
                return Err(clap::Error::raw(ErrorKind::InvalidValue, message));
            }
            flags.set(setting.key, &texts, &Source::Argument);
        }
        Ok(Self(flags))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A setting's text and its source.
#[derive(Clone)]
pub(super) struct Given {
    key: &'static str,
    pub(super) text: String,
    source: Source,
}

#[derive(Clone, PartialEq)]
enum Source {
    Argument,
    File(PathBuf, yaml::Position),
    Default,
}

impl Given {
    fn read<T, E: Into<SettingError>>(&self, read: impl Fn(&str) -> Result<T, E>) -> Result<T, ConfigError> {
        read(&self.text).map_err(|error| self.fault(error.into()))
    }

    fn fault(&self, error: SettingError) -> ConfigError {
        match &self.source {
            Source::Argument | Source::Default => ConfigError::Argument { key: self.key, error },
            Source::File(file, at) => FileError::new(file, *at, &format!("`{}` {error}", self.key)).into(),
        }
    }

    /// True if the setting is not set.
    pub(super) fn is_default(&self) -> bool {
        self.source == Source::Default
    }

    /// The source as `SHOW CONFIG` shows it.
    fn source(&self) -> String {
        match &self.source {
            Source::Argument => "flag or environment".to_owned(),
            Source::File(file, at) => format!("{}:{}:{}", file.display(), at.line, at.column),
            Source::Default => "default".to_owned(),
        }
    }
}

/// Texts of settings, by key.
#[derive(Clone, Default)]
pub(super) struct Texts(HashMap<&'static str, Vec<Given>>);

impl Texts {
    /// Combines the flags, the file and the defaults.
    pub(super) fn join<const OF_ETCD: bool>(flags: &Flags<OF_ETCD>, file: Texts) -> Self {
        let mut joined = file;
        joined.0.extend(flags.0.0.clone());
        for setting in &SETTINGS {
            if let Fallback::Is(text) = setting.default {
                joined.fall_back(setting.key, text);
            }
        }
        joined
    }

    /// Sets the texts of a setting. An empty text, such as an empty variable, counts as not set.
    fn set(&mut self, key: &'static str, texts: &[String], source: &Source) {
        if texts.iter().any(|text| !text.is_empty()) {
            let given = |text: &String| Given { key, text: text.clone(), source: source.clone() };
            self.0.insert(key, texts.iter().map(given).collect());
        }
    }

    /// Sets the default of a setting.
    pub(super) fn fall_back(&mut self, key: &'static str, text: &str) {
        if self.several(key).is_empty() {
            self.set(key, &[text.to_owned()], &Source::Default);
        }
    }

    /// Reads a settings file.
    /// Errors: the first problem in the file.
    pub(super) fn read(path: &Path) -> Result<Self, ConfigError> {
        let mut bytes = Vec::new();
        fs::File::open(path)
            .and_then(|file| file.take(LARGEST_FILE + 1).read_to_end(&mut bytes))
            .map_err(|error| ConfigError::Unreadable { file: path.to_owned(), error })?;
        Self::parse(path, &bytes)
    }

    pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Self, ConfigError> {
        let in_file = |fault: Fault| FileError::new(path, fault.at, &fault.message);
        let root = yaml::parse(bytes).map_err(in_file)?;
        let mut reader = NodeReader::default();
        let mut texts = Self::default();
        let keys = SETTINGS.each_ref().map(|setting| setting.key);
        if let Some(fields) = reader.fields(&root, "the file", &keys) {
            for setting in &SETTINGS {
                let Some(node) = fields.find(setting.key) else { continue };
                let items = match &node.value {
                    Value::List(list) if setting.form == Form::List => list.iter().collect(),
                    _ => vec![node],
                };
                let given = items.into_iter().filter_map(|item| of_node(&mut reader, path, setting, item)).collect();
                texts.0.insert(setting.key, given);
            }
        }
        match reader.faults.into_iter().next() {
            Some(fault) => Err(in_file(fault).into()),
            None => Ok(texts),
        }
    }

    /// The values of a list.
    pub(super) fn read_all<T, E: Into<SettingError>>(
        &self,
        key: &'static str,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Vec<T>, ConfigError> {
        self.several(key).iter().map(|given| given.read(&read)).collect()
    }

    /// All texts of a list.
    pub(super) fn several(&self, key: &'static str) -> &[Given] {
        self.0.get(key).map(Vec::as_slice).unwrap_or_default()
    }

    /// The text of a setting with a single value.
    pub(super) fn one(&self, key: &'static str) -> Option<&Given> {
        self.several(key).last().filter(|given| !given.text.is_empty())
    }

    /// The error, with the source of the setting.
    pub(super) fn fault(&self, key: &'static str, error: impl Into<SettingError>) -> ConfigError {
        let error = error.into();
        match self.one(key) {
            Some(given) => given.fault(error),
            None => ConfigError::Argument { key, error },
        }
    }

    /// The value of an optional setting.
    pub(super) fn read_one<T, E: Into<SettingError>>(
        &self,
        key: &'static str,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<T>, ConfigError> {
        self.one(key).map(|given| given.read(read)).transpose()
    }

    /// Errors: required settings that are missing.
    pub(super) fn are_complete(&self) -> Result<(), ConfigError> {
        let is_missing = |setting: &&Setting| setting.default == Fallback::Required && self.one(setting.key).is_none();
        let missing: Vec<_> = SETTINGS.iter().filter(is_missing).map(|setting| setting.key).collect();
        if missing.is_empty() { Ok(()) } else { Err(ConfigError::Missing(missing)) }
    }

    /// The value of a required setting.
    pub(super) fn require<T, E: Into<SettingError>>(
        &self,
        key: &'static str,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Result<T, ConfigError> {
        self.read_one(key, read)?.ok_or_else(|| ConfigError::Missing(vec![key]))
    }

    /// All settings without secrets.
    pub(super) fn shown(&self) -> Vec<Shown> {
        let shown = |setting: &'static Setting| {
            let given = self.several(setting.key);
            let texts: Vec<_> = given.iter().map(|given| without_secret(setting, &given.text)).collect();
            let source = given.first().map_or_else(|| "default".to_owned(), Given::source);
            let value = (!texts.is_empty()).then(|| texts.join(","));
            Shown { setting, value, source, given: Unmasked(given.iter().map(|given| given.text.clone()).collect()) }
        };
        SETTINGS.iter().map(shown).collect()
    }
}

/// A setting as `SHOW CONFIG` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The setting.
    pub setting: &'static Setting,
    /// Its text without secrets; None if it is not set and has no default.
    pub value: Option<String>,
    /// Source of the text.
    pub source: String,
    pub(super) given: Unmasked,
}

/// Original texts, for comparison only: they may contain passwords.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Unmasked(Vec<String>);

impl fmt::Debug for Unmasked {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Unmasked").finish_non_exhaustive()
    }
}

fn of_node(reader: &mut NodeReader, path: &Path, setting: &'static Setting, node: &Node) -> Option<Given> {
    let text = match &node.value {
        Value::Integer(number) if setting.form == Form::Number => number.to_string(),
        _ => reader.text(node, &format!("`{}`", setting.key))?.to_owned(),
    };
    Some(Given { key: setting.key, text, source: Source::File(path.to_owned(), node.at) })
}

/// Removes the password from a URL, and hides other secrets.
fn without_secret(setting: &Setting, text: &str) -> String {
    const HIDDEN: &str = "***";
    if setting.form != Form::Secret {
        return text.to_owned();
    }
    let url = text.split_once("://").filter(|(_, rest)| !rest.contains("password"));
    let Some((scheme, rest)) = url else { return HIDDEN.to_owned() };
    match rest.rsplit_once('@').map(|(user, host)| (user.split_once(':').map_or(user, |(user, _)| user), host)) {
        Some((user, host)) => format!("{scheme}://{user}:{HIDDEN}@{host}"),
        None => format!("{scheme}://{rest}"),
    }
}
